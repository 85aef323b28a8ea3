"""The oracle: dense tree attention in plain tensor code. Every other kernel must give these numbers."""

from __future__ import annotations

from torch import Tensor


def tree_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Softmax attention of tree nodes over ``[prefix | tree]``, grouped-query heads included.

    Args:
        query: ``[N, num_heads, head_dim]``.
        key: ``[num_kv_heads, S, head_dim]``; head ``h`` of the query reads head ``h // group``.
        value: ``[num_kv_heads, S, head_dim]``.
        mask: bool ``[N, S]``, True where node i sees key j (``TreeShape.step_mask``).
        scale: Factor on the scores, usually ``head_dim ** -0.5``.

    Returns:
        ``[N, num_heads, head_dim]``.
    """
    group = query.shape[1] // key.shape[0]
    keys = key.repeat_interleave(group, dim=0)
    values = value.repeat_interleave(group, dim=0)
    scores = query.transpose(0, 1) @ keys.transpose(1, 2) * scale
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (weights @ values).transpose(0, 1)
