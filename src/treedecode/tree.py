"""``DraftTree``: a ``TreeShape`` with candidate tokens and scores; frozen, checked once."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from treedecode import topology
from treedecode.shape import Frozen, TreeShape, read_only

__all__ = ["DraftTree", "TreeShape", "check_tree", "depth_room"]


@final
class DraftTree(Frozen):
    """A tree of drafted tokens under the last committed one, frozen.

    For deterministic drafts (top-k lists, retrieval): siblings must have different tokens. Drafts drawn from a
    distribution are built by ``DraftTree.sampled``.

    Args:
        shape: the topology.
        token_ids: ``[N]`` integers, ``token_ids[0]`` is the root's token.
        scores: ``[N]`` log reach probabilities, 0.0 for the root; ``None`` if unknown.
        sources: ``[N]`` names of who drafted each node, ``"root"`` for the root; ``None`` if of no interest.

    Attributes:
        shape: the topology.
        token_tuple: token ids as Python integers, for loops.
        sources: the given names or ``None``.
        drawn: whether ``DraftTree.sampled`` made it: only its siblings are known to be in draw order, with duplicates.

    Raises:
        TypeError: ``shape`` is no TreeShape, or a token id is not an integer.
        ValueError: a length differs from N, a token id is negative, a score is NaN or +inf, or siblings
            repeat a token (``DraftTree.build`` merges them).
    """

    shape: TreeShape
    token_tuple: tuple[int, ...]
    sources: tuple[str, ...] | None
    drawn: bool

    def __init__(
        self,
        shape: TreeShape,
        token_ids: ArrayLike | Sequence[int],
        scores: ArrayLike | Sequence[float] | None = None,
        sources: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(shape, TreeShape):
            raise TypeError(
                f"shape must be a TreeShape, got {type(shape).__name__}; see TreeShape.from_parents"
            )
        tokens = _check_tokens(token_ids, shape.num_nodes)
        _check_siblings(shape.parent_tuple, tokens)
        self.__dict__.update(
            shape=shape,
            token_tuple=tokens,
            _scores=_check_scores(scores, shape.num_nodes),
            sources=_check_sources(sources, shape.num_nodes),
            drawn=False,
        )

    @classmethod
    def sampled(cls, shape: TreeShape, token_ids: ArrayLike | Sequence[int]) -> DraftTree:
        """Build a tree whose siblings were drawn from the drafter's distribution, in rank order.

        Nothing is merged, sorted or left out: drawn siblings keep their draw order and, if drawn with
        replacement, their duplicates. ``shape`` must not depend on the drawn tokens.

        Args:
            shape: the topology.
            token_ids: ``[N]``, ``token_ids[0]`` is the root's token.

        Raises:
            TypeError, ValueError: as the class, save for repeated siblings.
        """
        if not isinstance(shape, TreeShape):
            raise TypeError(f"shape must be a TreeShape, got {type(shape).__name__}")
        return cls._of(shape, _check_tokens(token_ids, shape.num_nodes), None, None, drawn=True)

    @classmethod
    def trusted(
        cls,
        parents: Sequence[int],
        token_ids: Sequence[int],
        scores: Sequence[float] | None = None,
        sources: Sequence[str] | None = None,
    ) -> DraftTree:
        """Build without any check, for drafters that have made sure of the invariants. Internal."""
        return cls._of(TreeShape.trusted(tuple(parents)), tuple(token_ids), scores, sources)

    @classmethod
    def _of(
        cls,
        shape: TreeShape,
        token_tuple: tuple[int, ...],
        scores: Sequence[float] | np.ndarray | None,
        sources: Sequence[str] | None,
        drawn: bool = False,
    ) -> DraftTree:
        tree = object.__new__(cls)
        tree.__dict__.update(
            shape=shape,
            token_tuple=token_tuple,
            _scores=None if scores is None else tuple(scores),
            sources=None if sources is None else tuple(sources),
            drawn=drawn,
        )
        return tree

    @classmethod
    def root_only(cls, token_id: int) -> DraftTree:
        """The tree without drafts: plain decoding of the token after ``token_id``."""
        return cls(TreeShape.chain(0), [token_id], [0.0], ["root"])

    @classmethod
    def build(
        cls,
        parents: ArrayLike | Sequence[int],
        token_ids: ArrayLike | Sequence[int],
        scores: ArrayLike | Sequence[float] | None = None,
        sources: Sequence[str] | None = None,
    ) -> tuple[DraftTree, np.ndarray]:
        """Build a tree from deterministic drafts, merging siblings with the same token and their subtrees.

        A merged node keeps the best score and that draft's source. With scores, nodes come out best first: by
        score descending, then depth, then the caller's order, a parent always before its children, so that
        every prefix is the best smaller tree. Without, the caller's order is kept.

        Args:
            parents: ``[N_old]``, as for ``TreeShape``.
            token_ids: ``[N_old]``.
            scores: ``[N_old]`` or ``None``.
            sources: ``[N_old]`` or ``None``.

        Returns:
            The tree and ``old_to_new``, int32 ``[N_old]``: where every given node went.

        Raises:
            TypeError, ValueError: as the class, save for repeated siblings.
        """
        given = topology.check_parents(topology.int_tuple(parents, "parent"))
        tokens = _check_tokens(token_ids, len(given))
        log_reach = _check_scores(scores, len(given))
        names = _check_sources(sources, len(given))

        kept = list(range(len(given)))  # the first node of every group of repeated siblings, by member
        best = list(kept)  # the best scored member of every group, by first node
        seen: dict[tuple[int, int], int] = {}
        for node in range(1, len(given)):
            first = seen.setdefault((kept[given[node]], tokens[node]), node)
            kept[node] = first
            if log_reach is not None and log_reach[node] > log_reach[best[first]]:
                best[first] = node
        order = [0, *seen.values()]
        if log_reach is not None:
            order = _best_first(
                order, [kept[given[n]] for n in order[1:]], [log_reach[best[n]] for n in order]
            )
        new_of = {old: new for new, old in enumerate(order)}
        tree = cls._of(
            TreeShape.trusted((-1, *(new_of[kept[given[node]]] for node in order[1:]))),
            tuple(tokens[node] for node in order),
            None if log_reach is None else [log_reach[best[node]] for node in order],
            None if names is None else [names[best[node]] for node in order],
        )
        return tree, np.array([new_of[node] for node in kept], np.int32)

    @cached_property
    def token_ids(self) -> np.ndarray:
        """Int64 ``[N]``, read-only."""
        return read_only(self.token_tuple, np.int64)

    @property
    def score_tuple(self) -> tuple[float, ...] | None:
        """Log reach of every node, or ``None``; :attr:`scores` without an array."""
        return self.__dict__["_scores"]

    @cached_property
    def scores(self) -> np.ndarray | None:
        """Float64 ``[N]`` log reach, read-only, or ``None``."""
        scores = self.score_tuple
        return None if scores is None else read_only(scores, np.float64)

    @property
    def parents(self) -> np.ndarray:
        """Int32 ``[N]``, read-only; -1 for the root."""
        return self.shape.parents

    @property
    def depths(self) -> np.ndarray:
        """Int32 ``[N]``, read-only; 0 for the root."""
        return self.shape.depths

    @property
    def num_nodes(self) -> int:
        """Number of nodes, root included."""
        return self.shape.num_nodes

    @property
    def num_drafted(self) -> int:
        """Number of nodes, root excluded."""
        return self.shape.num_drafted

    def prefix(self, num_drafted: int) -> DraftTree:
        """Keep the root and the first ``num_drafted`` drafted nodes (all of them if there are fewer)."""
        shape = self.shape.prefix(num_drafted)
        if shape is self.shape:
            return self
        return self._cut(shape, range(shape.num_nodes), self.drawn)

    def within_depth(self, max_depth: int) -> DraftTree:
        """The tree without the nodes deeper than ``max_depth`` (0 = the root alone); see ``depth_room``."""
        max_depth = topology.count(max_depth, "max_depth")
        depths = self.shape.depth_tuple
        if max(depths) <= max_depth:
            return self
        return self._of_nodes([node for node, depth in enumerate(depths) if depth <= max_depth], self.drawn)

    def only(self, nodes: Sequence[int]) -> DraftTree:
        """The tree of ``nodes``, in ascending order, the root and every node's parent among them; not checked.

        For deterministic drafts only: leaving out drawn siblings biases the output, so what is left is not ``drawn``.
        """
        return self._of_nodes(nodes, drawn=False)

    def _of_nodes(self, nodes: Sequence[int], drawn: bool) -> DraftTree:
        new_of = {old: new for new, old in enumerate(nodes)}
        parents = (-1, *(new_of[self.shape.parent_tuple[node]] for node in nodes[1:]))
        ranks = tuple(self.shape.rank_tuple[node] for node in nodes)
        return self._cut(TreeShape.trusted(parents, ranks), nodes, drawn)

    def along(self, path: Sequence[int]) -> DraftTree:
        """The chain of the nodes of ``path``, which leads from the root (0) down the tree's edges; not checked.

        Like :meth:`only` it leaves siblings out: what is left is not ``drawn``.
        """
        return self._cut(TreeShape.trusted(tuple(range(-1, len(path) - 1))), path, drawn=False)

    def _cut(self, shape: TreeShape, nodes: Sequence[int], drawn: bool) -> DraftTree:
        scores, sources = self.score_tuple, self.sources
        return DraftTree._of(
            shape,
            tuple(self.token_tuple[node] for node in nodes),
            None if scores is None else [scores[node] for node in nodes],
            None if sources is None else [sources[node] for node in nodes],
            drawn,
        )

    def _content(self) -> tuple[object, ...]:
        return self.shape, self.token_tuple, self.score_tuple, self.sources

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DraftTree):
            return NotImplemented
        return self._content() == other._content()

    def __hash__(self) -> int:
        return hash((self.shape, self.token_tuple))

    def __len__(self) -> int:
        return self.num_nodes

    def __repr__(self) -> str:
        return f"DraftTree({self.shape!r}, {self.token_tuple})"

    def __reduce__(self) -> tuple[object, ...]:
        return DraftTree._of, (*self._content(), self.drawn)


def depth_room(prefix_len: int, max_len: int) -> int:
    """Deepest draft that can still be emitted with ``prefix_len`` tokens cached and at most ``max_len`` in all.

    The root is token ``prefix_len + 1`` and every step emits one token beyond the accepted ones, so a draft
    of depth d is of use only if ``prefix_len + 1 + d + 1 <= max_len``. Never negative.
    """
    return max(0, max_len - prefix_len - 2)


def check_tree(tree: object, what: str = "tree") -> None:
    """Raises TypeError unless ``tree`` is a DraftTree; a bare shape has no tokens to compare."""
    if not isinstance(tree, DraftTree):
        raise TypeError(f"{what} must be a DraftTree, got {type(tree).__name__}")


def _check_tokens(token_ids: ArrayLike | Sequence[int], num_nodes: int) -> tuple[int, ...]:
    tokens = topology.int_tuple(token_ids, "token id")
    if len(tokens) != num_nodes:
        raise ValueError(f"expected one token id per node: {num_nodes} nodes, got {len(tokens)} token ids")
    if min(tokens) < 0:
        node = next(i for i, token in enumerate(tokens) if token < 0)
        raise ValueError(f"token ids must be at least 0: node {node} has token {tokens[node]}")
    return tokens


def _check_siblings(parents: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    if len(set(zip(parents, tokens, strict=True))) == len(parents):
        return
    seen: dict[tuple[int, int], int] = {}
    for node, edge in enumerate(zip(parents, tokens, strict=True)):
        if edge in seen:
            raise ValueError(
                f"siblings must have different tokens: nodes {seen[edge]} and {node} are both "
                f"token {edge[1]} under node {edge[0]}; DraftTree.build merges them"
            )
        seen[edge] = node


def _check_scores(scores: ArrayLike | Sequence[float] | None, num_nodes: int) -> tuple[float, ...] | None:
    if scores is None:
        return None
    try:
        array = np.asarray(scores)
    except RuntimeError as error:  # a tensor that tracks gradients
        raise TypeError(f"scores must be numbers (log reach): {error}") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"scores must be numbers (log reach), got dtype {array.dtype}")
    if array.shape != (num_nodes,):
        raise ValueError(f"expected one score per node, shape [{num_nodes}], got shape {list(array.shape)}")
    values = tuple(array.astype(np.float64).tolist())
    for node, value in enumerate(values):
        if math.isnan(value) or value == math.inf:
            raise ValueError(
                f"scores must be below +inf and not NaN (log reach): node {node} has score {value}"
            )
    return values


def _check_sources(sources: Sequence[str] | None, num_nodes: int) -> tuple[str, ...] | None:
    if sources is None:
        return None
    if isinstance(sources, str) or len(sources) != num_nodes:
        raise ValueError(f"expected one source per node: {num_nodes} nodes, got {sources!r}")
    return tuple(sources)


def _best_first(nodes: list[int], parents: list[int], scores: list[float]) -> list[int]:
    """Order ``nodes``, given root first, by score, depth and given order, parents before children."""
    place = {node: i for i, node in enumerate(nodes)}
    below: list[list[int]] = [[] for _ in nodes]
    for i, parent in enumerate(parents, start=1):
        below[place[parent]].append(i)
    ready = [(-scores[0], 0, 0)]
    ordered = []
    while ready:
        _, depth, i = heapq.heappop(ready)
        ordered.append(nodes[i])
        for child in below[i]:
            heapq.heappush(ready, (-scores[child], depth + 1, child))
    return ordered
