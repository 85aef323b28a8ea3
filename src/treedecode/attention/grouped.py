"""Tree attention as two batched products: the query heads of a group become rows of their key head."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Same result as :func:`treedecode.attention.reference.tree_attention`, without repeating keys or values.

    Args:
        query: ``[N, num_heads, head_dim]``.
        key: ``[num_kv_heads, S, head_dim]``.
        value: ``[num_kv_heads, S, head_dim]``.
        mask: Additive ``[N, S]`` in the dtype of the query: 0 where visible, -inf elsewhere.
        scale: Factor on the scores.

    Returns:
        ``[N, num_heads * head_dim]``.
    """
    num_kv_heads = key.shape[0]
    group = query.shape[1] // num_kv_heads
    return grouped_attention(
        group_heads(query, num_kv_heads), key, value, mask.repeat(group, 1), scale, group
    )


def group_heads(query: Tensor, num_kv_heads: int) -> Tensor:
    """``[N, num_heads, head_dim]`` to ``[num_kv_heads, group * N, head_dim]``, the N rows of one head together."""
    num_rows, _, head_dim = query.shape
    rows = query.view(num_rows, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    return rows.reshape(num_kv_heads, -1, head_dim)


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, group: int
) -> Tensor:
    """:func:`tree_attention` for queries that are grouped already.

    Args:
        query: ``[num_kv_heads, group * N, head_dim]``, from :func:`group_heads`.
        key, value, scale: As there.
        mask: ``[group * N, S]``, the additive mask once for every head of a group.
        group: Query heads per key/value head.

    Returns:
        ``[N, num_heads * head_dim]``.
    """
    num_kv_heads, _, head_dim = query.shape
    scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scale)
    weights = scores.softmax(-1, dtype=torch.float32) if scores.dtype.itemsize < 4 else scores.softmax(-1)
    mixed = torch.bmm(weights.to(value.dtype), value)
    mixed = mixed.view(num_kv_heads, group, -1, head_dim).permute(2, 0, 1, 3)
    return mixed.reshape(mixed.shape[0], -1)
