"""A step's trees over a paged cache with made-up numbers, and what dense attention makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from treedecode.attention.paged import PlacedTree
from treedecode.shape import TreeShape

# rows of no tree, before the first tree and after each
GAP = 2
SCALE = 0.3
UNTOUCHED = 7.0


@dataclass
class PagedBatch:
    """Queries, keys and values of all rows, and a cache whose unused slots are NaN.

    Attributes:
        query: ``[rows, heads, head_size]``.
        key, value: ``[rows, kv_heads, head_size]``.
        cache: ``[num_blocks, block_size, kv_heads, 2 * head_size]``: keys, then values.
        table: int32 ``[requests, max_blocks]``, blocks in any order.
        placed: the trees.
        prefixes: keys and values of every request's prefix, ``[prefix_len, kv_heads, head_size]``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    cache: Tensor
    table: Tensor
    placed: list[PlacedTree]
    prefixes: list[tuple[Tensor, Tensor]]

    def to(self, device: torch.device | str) -> PagedBatch:
        """The same batch on another device."""
        moved = {name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)}
        prefixes = [(keys.to(device), values.to(device)) for keys, values in self.prefixes]
        return replace(self, **moved, prefixes=prefixes)

    @property
    def caches(self) -> tuple[Tensor, ...]:
        """Views of keys and of values."""
        return self.cache.split(self.query.shape[-1], dim=-1)

    def expected(self, window: int | None = None, soft_cap: float = 0.0) -> Tensor:
        """Dense attention in float64, one request at a time; ``UNTOUCHED`` in rows of no tree."""
        output = torch.full_like(self.query, UNTOUCHED, dtype=torch.float64)
        group = self.query.shape[1] // self.key.shape[1]
        for tree, (prefix_keys, prefix_values) in zip(self.placed, self.prefixes, strict=True):
            rows = slice(tree.first_row, tree.first_row + tree.shape.num_nodes)
            keys = torch.cat([prefix_keys, self.key[rows]]).double().repeat_interleave(group, dim=1)
            values = torch.cat([prefix_values, self.value[rows]]).double().repeat_interleave(group, dim=1)
            scores = torch.einsum("nhd,shd->hns", self.query[rows].double(), keys) * SCALE
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            mask = torch.from_numpy(np.array(tree.shape.step_mask(tree.prefix_len, window))).to(scores.device)
            weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
            output[rows] = torch.einsum("hns,shd->nhd", weights, values)
        return output


def paged_batch(
    shapes: Sequence[TreeShape],
    prefix_lens: Sequence[int],
    heads: tuple[int, int] = (4, 2),
    head_size: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> PagedBatch:
    """One request per shape; ``heads`` counts query and key heads."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(num_rows: int, num_heads: int) -> Tensor:
        return torch.randn(num_rows, num_heads, head_size, generator=generator).to(dtype)

    num_heads, num_kv_heads = heads
    num_rows = GAP + sum(shape.num_nodes + GAP for shape in shapes)
    max_blocks = max(prefix_lens) // block_size + 1
    order = torch.randperm(len(shapes) * max_blocks, generator=generator)
    table = order.view(len(shapes), max_blocks).int()
    cache = torch.full((table.numel(), block_size, num_kv_heads, 2 * head_size), float("nan"), dtype=dtype)
    placed, prefixes, row = [], [], GAP
    for request, (shape, prefix_len) in enumerate(zip(shapes, prefix_lens, strict=True)):
        keys, values = numbers(prefix_len, num_kv_heads), numbers(prefix_len, num_kv_heads)
        places = torch.arange(prefix_len)
        cache[table[request, places // block_size].long(), places % block_size] = torch.cat(
            [keys, values], -1
        )
        placed.append(PlacedTree(request, row, prefix_len, shape))
        prefixes.append((keys, values))
        row += shape.num_nodes + GAP
    key, value = numbers(num_rows, num_kv_heads), numbers(num_rows, num_kv_heads)
    return PagedBatch(numbers(num_rows, num_heads), key, value, cache, table, placed, prefixes)
