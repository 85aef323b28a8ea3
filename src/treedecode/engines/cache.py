"""The K/V cache of a request: allocated once, written at the end, compacted in place.

Row ``i`` of every layer holds the keys and values of position ``i`` of the committed sequence, for rows below
``length``. A step writes its nodes in node order at rows ``length .. length + num_nodes``; ``commit`` moves the
accepted path to the front of that range. Rows at or above ``length`` are dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from treedecode.kv import commit_layers


@dataclass(frozen=True)
class LayerSpec:
    """What one attention layer stores and sees.

    Attributes:
        num_kv_heads: Key/value heads.
        head_dim: Size of one key head.
        window: Sliding window in tokens (a key is visible iff ``pos_q - window < pos_k``), or None for full.
        value_dim: Size of one value head where it is not that of the keys (multi-head latent attention), else None.
    """

    num_kv_heads: int
    head_dim: int
    window: int | None
    value_dim: int | None = None


class KVCache:
    """Keys and values of all layers, ``[layers, heads, capacity, dim]`` for each layer shape.

    Args:
        specs: One per layer. Layers of the same shape share one tensor, so a commit is one gather and one write.
        capacity: Rows to allocate: prompt + new tokens + the widest tree.
        dtype: Of keys and values.
        device: Where they live.
    """

    def __init__(
        self, specs: Sequence[LayerSpec], capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._take(_Storage(specs, 1, capacity, dtype, device), 0)

    @classmethod
    def several(
        cls, specs: Sequence[LayerSpec], count: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> list[Self]:
        """``count`` caches of ``capacity`` rows each, in one allocation: those of a batch.

        Raises:
            ValueError: ``count`` is below 1.
        """
        if count < 1:
            raise ValueError(f"a batch needs at least one cache, got {count}")
        storage = _Storage(specs, count, capacity, dtype, device)
        caches = [cls.__new__(cls) for _ in range(count)]
        for slot, cache in enumerate(caches):
            cache._take(storage, slot)
        return caches

    def _take(self, storage: _Storage, slot: int) -> None:
        self.capacity, self.length = storage.capacity, 0
        self._blocks = [(keys[:, slot], values[:, slot]) for keys, values in storage.blocks]
        self._layers = [
            (self._blocks[block][0][place], self._blocks[block][1][place]) for block, place in storage.places
        ]

    def clear(self) -> None:
        """Empties it for another request: all rows are dead, nothing is freed or allocated."""
        self.length = 0

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Key and value tensors of one layer, each ``[heads, capacity, head_dim]`` (views, not copies)."""
        return self._layers[index]

    def __len__(self) -> int:
        """Number of layers."""
        return len(self._layers)

    def data_ptrs(self) -> list[int]:
        """Addresses of the storage; they never change while the cache lives."""
        return [tensor.data_ptr() for block in self._blocks for tensor in block]

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the accepted path of the step just run; moves only the rows that are not in place.

        Args:
            path: Accepted nodes, root first, ascending in depth: row ``length + path[i]`` becomes ``length + i``.
        """
        commit_layers(self._blocks, self.length, path)
        self.length += len(path)


class _Storage:
    """Tensors ``[layers, slots, heads, capacity, dim]`` for keys and values of each layer shape.

    Attributes:
        places: By layer, its block and its place in it.
    """

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        num_slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.capacity = capacity
        shapes: dict[tuple[int, int, int], list[int]] = {}
        for index, spec in enumerate(specs):
            shape = (spec.num_kv_heads, spec.head_dim, spec.value_dim or spec.head_dim)
            shapes.setdefault(shape, []).append(index)
        self.blocks: list[tuple[Tensor, Tensor]] = []
        places: dict[int, tuple[int, int]] = {}
        for block, ((heads, key_dim, value_dim), members) in enumerate(shapes.items()):
            size = (len(members), num_slots, heads, capacity)
            keys = torch.zeros(*size, key_dim, dtype=dtype, device=device)
            values = torch.zeros(*size, value_dim, dtype=dtype, device=device)
            self.blocks.append((keys, values))
            places.update({index: (block, place) for place, index in enumerate(members)})
        self.places = [places[index] for index in range(len(specs))]
