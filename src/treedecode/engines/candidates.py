"""The best few of a large vocabulary per row, without sorting it."""

from __future__ import annotations

import torch
from torch import Tensor


def top_candidates(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest logits of each row, best first; equal logits stand in order of their id.

    Two passes: the maximum of every block of about ``sqrt(vocab / count)`` ids, then the ``count`` best
    blocks in full. The
    ``count`` largest values lie in the ``count`` blocks with the largest maxima, so the values are exact. Which of
    several ids with the same logit is kept at the last place is not specified; the first place is always the lowest.

    Args:
        logits: ``[N, vocab]``, any float dtype, any device. Not modified.
        count: How many, at most ``vocab``.

    Returns:
        ``(values, ids)``, each ``[N, count]``; ids int64. ``ids[:, 0]`` is the greedy choice: the lowest id among ties.
    """
    vocab = logits.shape[1]
    # the pool of the second pass, count * width, is then about as large as the first pass's maxima, vocab / width
    width = 1 << max(0, ((vocab // count).bit_length() - 1) // 2)
    num_blocks = vocab // width
    if count >= num_blocks:
        greedy = logits.argmax(-1, keepdim=True)
        values, ids = logits.topk(count, dim=-1)
    else:
        blocks = logits[:, : num_blocks * width].unflatten(1, (num_blocks, width))
        maxima = blocks.amax(-1)
        first = maxima.argmax(-1, keepdim=True)
        greedy = first * width + blocks.gather(1, first[..., None].expand(-1, -1, width)).argmax(-1)
        best = maxima.topk(count, dim=-1).indices
        pool = blocks.gather(1, best[..., None].expand(-1, -1, width)).flatten(1)
        rest = logits[:, num_blocks * width :]
        if rest.shape[1]:
            pool = torch.cat([pool, rest], dim=1)
            greedy = torch.where(
                rest.amax(-1, keepdim=True) > maxima.amax(-1, keepdim=True),
                num_blocks * width + rest.argmax(-1, keepdim=True),
                greedy,
            )
        values, places = pool.topk(count, dim=-1)
        block = best.gather(1, (places // width).clamp_(max=count - 1))
        in_rest = num_blocks * width + places - count * width
        ids = torch.where(places < count * width, block * width + places % width, in_rest)
    values, ids = order_candidates(values, ids)
    ids[:, :1] = greedy  # the same id, unless more than ``count`` ids share the largest logit
    return values, ids


def order_candidates(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts candidates ``[N, count]`` by value, largest first; equal values by id."""
    order = ids.argsort(-1)
    values, ids = values.gather(1, order), ids.gather(1, order)
    order = values.sort(stable=True, dim=-1, descending=True).indices
    return values.gather(1, order), ids.gather(1, order)
