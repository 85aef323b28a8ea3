"""From processed logits to the target's own choice after every node: warpers and one keyed draw per node.

The noise of a draw depends on the request's seed and the absolute output position only, so a request gives the same
tokens with or without trees, at any budget. What depends on a node's path (``processing``) comes first; order and
meaning of the steps here follow transformers' ``generate``: temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from treedecode.drawing import draw
from treedecode.engines.candidates import top_candidates
from treedecode.engines.params import SamplingParams

# Rows of a nucleus that are looked at before the whole vocabulary is sorted (CPU only).
_NUCLEUS_POOL = 1024
# Below it logits over temperature may overflow; only their distances to the best one count there.
_COLD = 1e-20


def processed_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities ``[N, vocab]`` (float32 or wider) after temperature, top-k, top-p and min-p."""
    scores = logits.float() if logits.dtype.itemsize < 4 else logits
    if params.temperature < _COLD:
        scores = scores - scores.amax(-1, keepdim=True)
    scores = scores / max(params.temperature, torch.finfo(scores.dtype).tiny)
    if params.top_k is not None and params.top_k < scores.shape[-1]:
        kth = scores.topk(params.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, -math.inf)
    probs = scores.softmax(-1)
    if params.top_p is not None and params.top_p < 1:
        probs = _nucleus(probs, params.top_p)
    if params.min_p:
        probs = probs.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), 0.0)
    return probs / probs.sum(-1, keepdim=True)


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Zeroes all outside the smallest set of likeliest tokens with total probability of at least ``top_p``.

    Tokens as likely as the last of the set are kept as well (as in top-k): a row's set then depends neither on the
    order in which equal values are sorted nor on the other rows of the step.
    """
    pool = min(_NUCLEUS_POOL, probs.shape[-1])
    if probs.device.type == "cpu" and bool((probs.topk(pool, dim=-1).values.sum(-1) >= top_p).all()):
        values = probs.topk(pool, dim=-1).values
    else:
        values = probs.sort(dim=-1, descending=True).values
    keep = values.cumsum(-1) - values < top_p  # the mass before a token has not reached top_p yet
    least = values.gather(-1, keep.sum(-1, keepdim=True) - 1)
    return probs.masked_fill(probs < least, 0.0)


def choose(
    logits: Tensor, params: SamplingParams, uniforms: Tensor | None, ids: Tensor | None = None
) -> Tensor:
    """The target's choice after each row, int64 ``[N]``.

    Args:
        logits: ``[N, vocab]``, processed.
        params: How to choose.
        uniforms: ``[N]`` float64 in [0, 1), one per row; None for greedy.
        ids: ``top_candidates`` of the same logits if at hand; its first column is the greedy choice.
    """
    if params.greedy:
        return (top_candidates(logits, 1)[1] if ids is None else ids)[:, 0]
    if uniforms is None:
        raise ValueError("sampling needs one uniform per row, got None")
    return draw(processed_probs(logits, params), uniforms)
