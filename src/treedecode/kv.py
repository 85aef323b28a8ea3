"""Commit: move the accepted path's K/V rows to consecutive positions, in place.

A step writes its N rows at ``prefix_len .. prefix_len + N - 1`` in node order. After the walk, row
``prefix_len + i`` must hold node ``path[i]``; every other row of the step is dead. Only rows that are not in
place already are moved, and all of them are read before any is written, so sources and destinations may
overlap freely.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from treedecode.topology import check_prefix_len, int_tuple

if TYPE_CHECKING:
    import torch


def commit_moves(path: ArrayLike | Sequence[int]) -> tuple[list[int], list[int]]:
    """Return ``(sources, destinations)`` relative to ``prefix_len``: only the rows that must move.

    Raises:
        TypeError: a node is not an integer.
        ValueError: a node is negative or stands on the path twice.
    """
    nodes = int_tuple(path, "path node", "position")
    if nodes and min(nodes) < 0:
        raise ValueError(f"path nodes must be at least 0, got {list(nodes)}")
    if len(set(nodes)) != len(nodes):
        raise ValueError(f"a node stands on the path once, got {list(nodes)}")
    moved = [i for i, node in enumerate(nodes) if node != i]
    return [nodes[i] for i in moved], moved


def commit_path(
    key: torch.Tensor, value: torch.Tensor, prefix_len: int, path: ArrayLike | Sequence[int]
) -> None:
    """Commit ``path`` in one layer of a contiguous cache, in place.

    Args:
        key: ``[..., seq, dim]``, modified.
        value: ``[..., seq, dim]``, modified; its ``dim`` may differ.
        prefix_len: rows before the step's.
        path: accepted nodes, root first; any order of distinct nodes is moved right.

    Raises:
        TypeError: a node is not an integer, or a cache no tensor.
        ValueError: a node is negative, repeated, or past the end of the cache, or a cache has one dimension.
    """
    commit_layers([(key, value)], prefix_len, path)


def commit_layers(
    layers: Iterable[tuple[torch.Tensor, torch.Tensor]], prefix_len: int, path: ArrayLike | Sequence[int]
) -> None:
    """``commit_path`` for every ``(key, value)`` of ``layers``; the indices are made once."""
    import torch

    prefix_len = check_prefix_len(prefix_len)
    nodes = int_tuple(path, "path node", "position")
    sources, destinations = commit_moves(nodes)
    num_rows = prefix_len + 1 + max(nodes, default=-1)
    caches = [cache for layer in layers for cache in layer]
    _check_caches(caches, 2, "[..., seq, dim]")
    shortest = min((cache.shape[-2] for cache in caches), default=num_rows)
    if shortest < num_rows:
        raise ValueError(f"the path ends past the cache: expected at least {num_rows} rows, got {shortest}")
    if not sources:
        return
    indices = torch.tensor([sources, destinations]) + prefix_len
    for cache in caches:
        indices = indices.to(cache.device)
        cache.index_copy_(-2, indices[1], cache.index_select(-2, indices[0]))


def commit_batch(
    key: torch.Tensor, value: torch.Tensor, prefix_lens: torch.Tensor, path: torch.Tensor
) -> None:
    """Commit a batch of walks in one layer of a contiguous cache, in place, without host synchronisation.

    Args:
        key: ``[B, heads, seq, dim]``, modified.
        value: ``[B, heads, seq, dim]``, modified.
        prefix_lens: int64 ``[B]``.
        path: int64 ``[B, P]``, ``path[:, 0] == 0``, -1 padded: ``BatchAcceptance.path``. Rows must fit the
            cache.

    Raises:
        TypeError: a cache is no tensor.
        ValueError: a cache has fewer dimensions than four, or the shapes disagree.
    """
    import torch

    _check_caches((key, value), 4, "[B, heads, seq, dim]")
    _check_batch(prefix_lens, path, key.shape[0])
    sources, destinations = _batch_rows(prefix_lens, path)
    rows = torch.arange(len(path), device=path.device)[:, None]
    for cache in (key, value):
        by_row = cache.transpose(1, 2)
        by_row[rows, destinations] = by_row[rows, sources]


def commit_paged(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: ArrayLike | Sequence[int],
    prefix_len: int,
    path: ArrayLike | Sequence[int],
    slot_dim: int = 1,
) -> None:
    """Commit ``path`` of one request in one layer of a paged cache, in place.

    Args:
        key_cache: ``[num_blocks, block_size, heads, dim]``, or with the slots of a block along another
            dimension: ``slot_dim=2`` for ``[num_blocks, heads, block_size, dim]``. Modified.
        value_cache: likewise. Modified.
        block_table: the request's blocks, in order.
        prefix_len: rows before the step's.
        path: accepted nodes, root first.
        slot_dim: dimension of the slots within a block.

    Raises:
        TypeError: a node or a block is not an integer, or a cache no tensor.
        ValueError: a node is negative or repeated, the block table is too short for the path, one of its blocks
            is not in the cache or holds two parts of the path, or a cache has fewer dimensions than four.
    """
    import torch

    prefix_len = check_prefix_len(prefix_len)
    nodes = int_tuple(path, "path node", "position")
    sources, destinations = commit_moves(nodes)
    _check_caches((key_cache, value_cache), 4, "[num_blocks, block_size, heads, dim]")
    block_size = key_cache.shape[slot_dim]
    table = int_tuple(block_table, "block", "position")
    num_rows = prefix_len + 1 + max(nodes, default=-1)
    if len(table) * block_size < num_rows:
        raise ValueError(
            f"the path ends past the block table: expected at least {-(-num_rows // block_size)} blocks of "
            f"{block_size} rows, got {len(table)}"
        )
    if not sources:
        return
    used = table[prefix_len // block_size : -(-num_rows // block_size)]
    num_blocks = min(key_cache.shape[0], value_cache.shape[0])
    if not 0 <= min(used) <= max(used) < num_blocks or len(set(used)) != len(used):
        raise ValueError(f"expected distinct blocks from 0 to {num_blocks - 1}, got {list(used)}")
    rows = [[prefix_len + node for node in nodes] for nodes in (sources, destinations)]
    blocks = torch.tensor(
        [[table[row // block_size] for row in part] for part in rows], device=key_cache.device
    )
    slots = torch.tensor([[row % block_size for row in part] for part in rows], device=key_cache.device)
    _move_slots(key_cache, value_cache, blocks, slots, slot_dim)


def commit_paged_batch(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    prefix_lens: torch.Tensor,
    path: torch.Tensor,
    slot_dim: int = 1,
) -> None:
    """Commit a batch of walks in one layer of a paged cache, in place, without host synchronisation.

    Padding writes nothing new: it copies the row of the root onto itself.

    Args:
        key_cache: as for ``commit_paged``. Modified.
        value_cache: likewise. Modified.
        block_tables: integers ``[B, blocks]``; entries past a request's rows may hold anything.
        prefix_lens: int64 ``[B]``.
        path: int64 ``[B, P]``, ``path[:, 0] == 0``, -1 padded: ``BatchAcceptance.path``.
        slot_dim: dimension of the slots within a block.

    Raises:
        TypeError: a cache is no tensor.
        ValueError: a cache has fewer dimensions than four, or the shapes disagree.
    """
    import torch

    _check_caches((key_cache, value_cache), 4, "[num_blocks, block_size, heads, dim]")
    _check_batch(prefix_lens, path, len(block_tables))
    block_size = key_cache.shape[slot_dim]
    rows = torch.stack(_batch_rows(prefix_lens, path))
    blocks = block_tables.long().expand(2, *block_tables.shape).gather(2, rows // block_size)
    _move_slots(key_cache, value_cache, blocks, rows % block_size, slot_dim)


def _check_caches(caches: Sequence[torch.Tensor], num_dims: int, shape: str) -> None:
    import torch

    for cache in caches:
        if not isinstance(cache, torch.Tensor):
            raise TypeError(f"a cache must be a torch tensor {shape}, got {type(cache).__name__}")
        if cache.ndim < num_dims:
            raise ValueError(f"a cache must have shape {shape}, got {list(cache.shape)}")


def _check_batch(prefix_lens: torch.Tensor, path: torch.Tensor, batch_size: int) -> None:
    if path.ndim != 2 or len(path) != batch_size or prefix_lens.shape != (batch_size,):
        raise ValueError(
            f"expected path [{batch_size}, P] and prefix_lens [{batch_size}], "
            f"got {list(path.shape)} and {list(prefix_lens.shape)}"
        )


def _batch_rows(prefix_lens: torch.Tensor, path: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and destination rows ``[B, P]``; padding moves the root's row, always in place, onto itself."""
    import torch

    first = prefix_lens[:, None]
    steps = torch.arange(path.shape[1], device=path.device)
    return first + path.clamp(min=0), first + torch.where(path < 0, 0, steps)


def _move_slots(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    slots: torch.Tensor,
    slot_dim: int,
) -> None:
    for cache in (key_cache, value_cache):
        paged = cache.movedim(slot_dim, 1)
        paged[blocks[1], slots[1]] = paged[blocks[0], slots[0]]
