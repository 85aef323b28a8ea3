"""Operations on batches of distributions, ``[B, V]``, on any device and without host synchronisation."""

from __future__ import annotations

import torch
from torch import Tensor


def normalised(weights: Tensor) -> Tensor:
    """Rows with sum 1, in float32 or wider; rows without mass stay as they are."""
    wide = weights if weights.dtype == torch.float64 else weights.float()
    return wide / _divisor(wide)


def normalised_rows(probs: Tensor, node: Tensor) -> Tensor:
    """``normalised(rows_of(probs, node))`` with one copy of the rows less: their own is divided in place."""
    rows = rows_of(probs, node)
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return wide.div_(_divisor(wide))


def _divisor(rows: Tensor) -> Tensor:
    """Sums ``[B, 1]``, 1 for rows without mass."""
    total = rows.sum(-1, keepdim=True)
    return torch.where(total > 0, total, 1)


def without(draft: Tensor, token: Tensor) -> Tensor:
    """``draft`` without ``token``, normalised: what the next sibling is drawn from if not replaced."""
    left = draft.scatter(1, token[:, None], 0.0)
    return left.div_(_divisor(left))


def rows_of(probs: Tensor, node: Tensor) -> Tensor:
    """Row ``node[b]`` of every batch row b of ``[B, N, V]``, as given."""
    return probs[torch.arange(len(node), device=node.device), node]


def at(rows: Tensor, token: Tensor) -> Tensor:
    """``rows[b, token[b]]``, ``[B]``."""
    return rows.gather(1, token[:, None])[:, 0]


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first token whose cumulative weight exceeds ``u`` times the total, int64 ``[B]``.

    A token of weight 0 is never drawn, at u = 0 neither.
    """
    cumulative = weights.cumsum(-1, dtype=wide_dtype(weights))
    total = cumulative[:, -1:]
    points = torch.minimum(
        uniforms[:, None].to(cumulative.dtype) * total, torch.nextafter(total, torch.zeros_like(total))
    )
    return torch.searchsorted(cumulative, points, right=True)[:, 0]


def draw_siblings(probs: Tensor, uniforms: Tensor, replacement: bool) -> Tensor:
    """Draw the children of one node of every tree, in the order in which the walks test them.

    Without replacement, every sibling is drawn from what its elder siblings left, normalised. Where nothing is left
    (more siblings than tokens with mass), the token is 0, which no walk accepts: its draft probability is 0.

    Args:
        probs: floating ``[B, V]``, the drafter's processed distributions: temperature and masks applied. Not
            modified. These rows, in this dtype, are what the walk needs as ``draft_probs``.
        uniforms: floating ``[B, K]`` in [0, 1), of another stream than those of the walk
            (``treedecode.streams``).
        replacement: whether siblings are drawn independently.

    Returns:
        int64 ``[B, K]``.
    """
    left = normalised(probs)
    tokens = []
    for sibling in range(uniforms.shape[1]):
        exhausted = left.sum(-1) == 0
        token = draw(left, uniforms[:, sibling]).masked_fill(exhausted, 0)
        tokens.append(token)
        if not replacement:
            left = without(left, token)
    return torch.stack(tokens, 1) if tokens else probs.new_zeros(len(probs), 0, dtype=torch.int64)


def wide_dtype(rows: Tensor) -> torch.dtype:
    """float64, but float32 on MPS, which has no wider type."""
    return torch.float32 if rows.device.type == "mps" else torch.float64
