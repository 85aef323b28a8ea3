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
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[0]
    group = num_heads // num_kv_heads
    rows = query.view(num_rows, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    rows = rows.reshape(num_kv_heads, group * num_rows, head_dim)
    scores = torch.baddbmm(mask.repeat(group, 1), rows, key.transpose(1, 2), alpha=scale)
    mixed = torch.bmm(
        scores.softmax(-1, dtype=torch.float32 if scores.dtype.itemsize < 4 else None).to(value.dtype), value
    )
    mixed = mixed.view(num_kv_heads, group, num_rows, head_dim).permute(2, 0, 1, 3)
    return mixed.reshape(num_rows, num_heads * head_dim)
