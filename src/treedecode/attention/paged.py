"""Trees of a batch as flat arrays, for kernels that read a paged cache: built once per step, whatever the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treedecode.shape import TreeShape
from treedecode.topology import check_prefix_len, count

# one root and the most drafts of a step
MAX_NODES = 129
_WORD_BITS = 32


@dataclass(frozen=True)
class PlacedTree:
    """One tree of the step.

    Attributes:
        request: its row of the block table.
        first_row: row of the root among the step's queries, keys and values; the nodes follow in node order.
        prefix_len: tokens in the cache before the root's; 0 is none.
        shape: its topology, at most ``MAX_NODES`` nodes.
    """

    request: int
    first_row: int
    prefix_len: int
    shape: TreeShape


@dataclass(frozen=True)
class PackedTrees:
    """``T`` trees of ``R`` nodes together, as a kernel reads them.

    Attributes:
        trees: int32 ``[T, 5]``: request, first row, prefix length, number of nodes, the root's place in ``words`` and
            ``depths``.
        words: int32 ``[R, W]``: bit ``j % 32`` of word ``j // 32`` is set where a node sees node ``j`` of its tree.
        depths: int32 ``[R]``, 0 for roots.
        max_nodes: of the largest tree.
        max_prefix: the longest prefix.
    """

    trees: Tensor
    words: Tensor
    depths: Tensor
    max_nodes: int
    max_prefix: int


def pack_trees(placed: Sequence[PlacedTree], device: torch.device | str = "cpu") -> PackedTrees:
    """The trees of a step, in one copy to the device.

    Args:
        placed: at least one tree.
        device: of the kernel that reads them.

    Raises:
        ValueError: no tree, one with more than ``MAX_NODES`` nodes, or a row, request or prefix length below 0 or above
            32 bits.
    """
    if not placed:
        raise ValueError("pack_trees needs at least one tree, got none")
    rows, place = [], 0
    for number, tree in enumerate(placed):
        if tree.shape.num_nodes > MAX_NODES:
            raise ValueError(
                f"a tree must have at most {MAX_NODES} nodes, root included: tree {number} has {tree.shape.num_nodes}"
            )
        request, first_row = (
            count(tree.request, "request", limit_power=31),
            count(tree.first_row, "first_row", limit_power=31),
        )
        rows.append((request, first_row, check_prefix_len(tree.prefix_len), tree.shape.num_nodes, place))
        place += tree.shape.num_nodes
    max_nodes = max(tree.shape.num_nodes for tree in placed)
    num_words = -(-max_nodes // _WORD_BITS)
    words = np.zeros((place, num_words), np.uint32)
    for tree, (*_, num_nodes, first) in zip(placed, rows, strict=True):
        of_tree = tree.shape.packed_mask(bits=_WORD_BITS)
        words[first : first + num_nodes, : of_tree.shape[1]] = of_tree
    parts = [np.array(rows, np.int32), words.view(np.int32), np.concatenate([t.shape.depths for t in placed])]
    flat = torch.from_numpy(np.concatenate([part.astype(np.int32, copy=False).ravel() for part in parts]))
    on_device = flat.to(device, non_blocking=True)
    trees, words_there, depths = on_device.split([part.size for part in parts])
    return PackedTrees(
        trees.view(len(placed), -1),
        words_there.view(place, num_words),
        depths,
        max_nodes,
        max(tree.prefix_len for tree in placed),
    )
