"""``TreeShape``: the topology of a tree of candidate tokens.

Layout contract: node 0 is the root, the last committed token; a parent always precedes its children;
``num_nodes`` counts the root and ``num_drafted`` does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import FrozenInstanceError
from functools import cached_property
from typing import NoReturn, final

import numpy as np
from numpy.typing import ArrayLike

from treedecode import interchange, topology
from treedecode import mask as masks
from treedecode.topology import RankPath


class Frozen:
    """Refuses assignment; constructors and ``cached_property`` write to the instance's ``__dict__``."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"{type(self).__name__} is frozen: cannot set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"{type(self).__name__} is frozen: cannot delete {name}")


def read_only(values: Sequence[float], dtype: type[np.generic]) -> np.ndarray:
    array = np.array(values, dtype)
    array.setflags(write=False)
    return array


@final
class TreeShape(Frozen):
    """The topology of a tree, frozen.

    Args:
        parents: ``[N]`` integers, ``parents[0] == -1`` and ``0 <= parents[i] < i``.
        ranks: ``[N]`` integers, the candidate rank of every node under its parent (the root's is ignored),
            siblings pairwise different. ``None`` numbers siblings in node order.

    Attributes:
        parent_tuple: parents as Python integers, for loops.
        rank_tuple: ranks as Python integers.

    Raises:
        TypeError: a parent or a rank is not an integer.
        ValueError: the parents are no tree in which parents precede children, or the ranks do not fit it.
    """

    parent_tuple: tuple[int, ...]

    def __init__(
        self, parents: ArrayLike | Sequence[int], ranks: ArrayLike | Sequence[int] | None = None
    ) -> None:
        checked = topology.check_parents(topology.int_tuple(parents, "parent"))
        self.__dict__["parent_tuple"] = checked
        if ranks is not None:
            self.__dict__["rank_tuple"] = _check_ranks(checked, topology.int_tuple(ranks, "rank"))

    @classmethod
    def trusted(cls, parents: tuple[int, ...], ranks: tuple[int, ...] | None = None) -> TreeShape:
        """Build without any check, for code that has made sure of the invariants itself. Internal."""
        shape = object.__new__(cls)
        shape.__dict__["parent_tuple"] = parents
        if ranks is not None:
            shape.__dict__["rank_tuple"] = ranks
        return shape

    @classmethod
    def from_parents(cls, parents: ArrayLike | Sequence[int]) -> TreeShape:
        """Build from parents ``[N]``, root first, keeping the caller's node order."""
        return cls(parents)

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> TreeShape:
        """Build from rank paths (Medusa's and EAGLE's choices) in canonical order: by length, then rank.

        Ranks are kept: ``(0, 1)`` without ``(0, 0)`` is legal. A path given twice counts once; ``()`` is the
            root.

        Raises:
            TypeError: a path is not a sequence or a rank not an integer.
            ValueError: a rank is negative or a path's parent is missing.
        """
        return cls.trusted(*topology.from_rank_paths(paths))

    @classmethod
    def chain(cls, depth: int) -> TreeShape:
        """One node per depth: ``depth`` drafted nodes, 0 for the root alone."""
        return cls.trusted(tuple(range(-1, topology.count(depth, "depth"))))

    @classmethod
    def star(cls, width: int) -> TreeShape:
        """``width`` children of the root, nothing below."""
        return cls.trusted((-1,) + (0,) * topology.count(width, "width"))

    @classmethod
    def from_widths(cls, widths: Sequence[int]) -> TreeShape:
        """Give every node at depth d ``widths[d]`` children; [2, 2, 1] drafts 2 + 4 + 4 = 10 nodes."""
        parents, level = [-1], [0]
        for depth, width in enumerate(topology.int_tuple(widths, "width", "depth")):
            width = topology.count(width, f"width of depth {depth}", minimum=1)
            start = len(parents)
            parents += [node for node in level for _ in range(width)]
            level = list(range(start, len(parents)))
        return cls.trusted(tuple(parents))

    @classmethod
    def leaf_siblings(cls, depth: int, width: int) -> TreeShape:
        """A spine of ``depth`` nodes with ``width - 1`` runner-up leaves at each; (4, 3) drafts 12 nodes."""
        depth = topology.count(depth, "depth")
        width = topology.count(width, "width", minimum=1)
        return cls.from_paths([(0,) * level + (rank,) for level in range(depth) for rank in range(width)])

    @classmethod
    def from_mask(cls, mask: ArrayLike) -> TreeShape:
        """Invert ``mask()``: bool ``[N, N]``. ``ValueError`` if it is no tree's."""
        return cls.trusted(masks.parents_from_bits(masks.bits_from_dense(mask)))

    @classmethod
    def from_packed_mask(cls, words: ArrayLike, bits: int = 64) -> TreeShape:
        """Invert ``packed_mask(bits)``: words ``[N, ceil(N / bits)]``."""
        return cls.trusted(masks.parents_from_bits(masks.bits_from_packed(words, bits)))

    @classmethod
    def from_linked(cls, first_child: ArrayLike, next_sibling: ArrayLike) -> TreeShape:
        """Invert ``linked()``: SGLang's ``retrieve_next_token`` and ``retrieve_next_sibling``, ``[N]`` each."""
        return cls.trusted(*interchange.from_linked(first_child, next_sibling))

    @classmethod
    def from_retrieve_indices(cls, retrieve_indices: ArrayLike) -> TreeShape:
        """Invert ``retrieve_indices()``: Medusa's and EAGLE's paths ``[leaves, max_depth + 1]``, in any order."""
        return cls.trusted(interchange.from_leaf_paths(retrieve_indices))

    @classmethod
    def from_serving(cls, serving_parents: ArrayLike | Sequence[int]) -> TreeShape:
        """Invert ``serving_parents()``: parents without the root, -1 = child of the last accepted token."""
        return cls.trusted(interchange.from_serving(serving_parents))

    @property
    def num_nodes(self) -> int:
        """Number of nodes, root included."""
        return len(self.parent_tuple)

    @property
    def num_drafted(self) -> int:
        """Number of nodes, root excluded."""
        return len(self.parent_tuple) - 1

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node, 0 for the root alone."""
        return max(self.depth_tuple)

    @property
    def is_chain(self) -> bool:
        """Whether every node follows the one before it; so for the root alone."""
        return self.parent_tuple == tuple(range(-1, self.num_drafted))

    @cached_property
    def rank_tuple(self) -> tuple[int, ...]:
        return topology.sibling_ranks(self.parent_tuple)

    @cached_property
    def depth_tuple(self) -> tuple[int, ...]:
        """Depths as Python integers, for loops."""
        return topology.node_depths(self.parent_tuple)

    @cached_property
    def parents(self) -> np.ndarray:
        """Int32 ``[N]``, read-only; -1 for the root."""
        return read_only(self.parent_tuple, np.int32)

    @cached_property
    def depths(self) -> np.ndarray:
        """Int32 ``[N]``, read-only; 0 for the root."""
        return read_only(self.depth_tuple, np.int32)

    @cached_property
    def paths(self) -> tuple[RankPath, ...]:
        """Rank path of every node, ``()`` for the root."""
        return topology.rank_paths(self.parent_tuple, self.rank_tuple)

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        return topology.node_children(self.parent_tuple, self.rank_tuple)

    @cached_property
    def _ancestor_bits(self) -> tuple[int, ...]:
        return masks.ancestor_bits(self.parent_tuple)

    def children(self, node: int) -> tuple[int, ...]:
        """Children of ``node`` in rank order. ``TypeError`` if it is no integer, ``ValueError`` if there is none."""
        index = node if type(node) is int and node >= 0 else topology.count(node, "node")
        if index > self.num_drafted:
            raise ValueError(f"nodes are 0 to {self.num_drafted}, got {index}")
        return self._children[index]

    def prefix(self, num_drafted: int) -> TreeShape:
        """Keep the root and the first ``num_drafted`` drafted nodes (all of them if there are fewer)."""
        num_nodes = topology.count(num_drafted, "num_drafted") + 1
        if num_nodes >= self.num_nodes:
            return self
        return TreeShape.trusted(self.parent_tuple[:num_nodes], self.rank_tuple[:num_nodes])

    def mask(self) -> np.ndarray:
        """Bool ``[N, N]``, true at ``[i, j]`` iff ``j`` is ``i`` or an ancestor of ``i``. A fresh array."""
        return masks.dense_mask(self._ancestor_bits)

    def step_mask(self, prefix_len: int, window: int | None = None) -> np.ndarray:
        """Bool ``[N, prefix_len + N]`` over ``[prefix | tree]``, with a sliding window by depth.

        A key is visible only if ``pos_q - window < pos_key <= pos_q``. ``ValueError`` for a negative
        ``prefix_len`` or a window under 1.
        """
        return masks.step_mask(self.mask(), self.depths, prefix_len, window)

    def position_ids(self, prefix_len: int) -> np.ndarray:
        """Int64 ``[N]``: ``prefix_len + depth``, where ``prefix_len`` tokens are in the cache."""
        return self.depths.astype(np.int64) + topology.check_prefix_len(prefix_len)

    def packed_mask(self, bits: int = 64) -> np.ndarray:
        """Unsigned ``[N, ceil(N / bits)]``, bits 32 or 64: node j is bit ``j % bits`` of word ``j // bits``."""
        return masks.packed_mask(self._ancestor_bits, bits)

    def linked(self) -> tuple[np.ndarray, np.ndarray]:
        """``(first_child, next_sibling)``, int64 ``[N]`` each, -1 = none, siblings in rank order."""
        return interchange.to_linked(self._children)

    def retrieve_indices(self) -> np.ndarray:
        """Int64 ``[leaves, max_depth + 1]``: path from the root to every leaf, -1 padded, leaves in node order."""
        return interchange.to_leaf_paths(self.parent_tuple, self.depth_tuple)

    def choices(self) -> list[list[int]]:
        """Rank paths without the root's, as Medusa and EAGLE write trees; ``from_paths`` reads them."""
        return [list(path) for path in self.paths[1:]]

    def serving_parents(self) -> np.ndarray:
        """Int32 ``[num_drafted]``: parents without the root, -1 = child of the last accepted token."""
        return interchange.to_serving(self.parent_tuple)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeShape):
            return NotImplemented
        return self.parent_tuple == other.parent_tuple and self.rank_tuple == other.rank_tuple

    def __hash__(self) -> int:
        return hash((self.parent_tuple, self.rank_tuple))

    def __len__(self) -> int:
        return self.num_nodes

    def __repr__(self) -> str:
        return f"TreeShape.from_paths({self.paths[1:]})"

    def __reduce__(self) -> tuple[object, ...]:
        return TreeShape, (self.parent_tuple, self.rank_tuple)


def _check_ranks(parents: tuple[int, ...], ranks: tuple[int, ...]) -> tuple[int, ...]:
    if len(ranks) != len(parents):
        raise ValueError(f"expected one rank per node: {len(parents)} nodes, got {len(ranks)} ranks")
    taken: set[tuple[int, int]] = set()
    for node in range(1, len(parents)):
        if ranks[node] < 0:
            raise ValueError(f"ranks must be at least 0: node {node} has rank {ranks[node]}")
        if (parents[node], ranks[node]) in taken:
            raise ValueError(f"siblings have different ranks: node {node} repeats rank {ranks[node]}")
        taken.add((parents[node], ranks[node]))
    return (0, *ranks[1:])
