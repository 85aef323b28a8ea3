"""Checks and small computations on a tree's topology, as plain Python integers.

A topology is a tuple ``parents`` with ``parents[0] == -1`` and ``0 <= parents[i] < i`` for every other node.
Trees here have tens of nodes: a loop over Python integers beats numpy's per-call cost, and nothing but numpy
is imported.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

RankPath = tuple[int, ...]

# Everything here can become an int64 array.
_LIMIT_POWER = 63
# No context is longer, and the position of every node fits into 64 bits with room.
MAX_PREFIX_LEN = 2**31 - 1


def int_tuple(values: ArrayLike | Sequence[int], what: str, item: str = "node") -> tuple[int, ...]:
    """Return a flat sequence of integers as a tuple of Python integers.

    Args:
        values: list, tuple, integer array or integer tensor of one dimension.
        what: what the values are, for the message.
        item: what one position is, for the message.

    Raises:
        TypeError: a value is a bool, a float or anything else that is not an integer.
        ValueError: the values have more or fewer dimensions than one, or do not fit into 64 bits.
    """
    if isinstance(values, (list, tuple)):
        if set(map(type, values)) <= {int}:
            numbers = cast(tuple[int, ...], tuple(values))
            try:
                array("q", numbers)
            except OverflowError:
                pass
            else:
                return numbers
        return tuple(_as_int(value, f"{what} of {item} {i}") for i, value in enumerate(values))
    given = np.asarray(values)
    if given.ndim != 1:
        raise ValueError(f"{what} must have one dimension, got shape {given.shape}")
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, got dtype {given.dtype}")
    if given.dtype == np.uint64:
        return tuple(_as_int(value, f"{what} of {item} {i}") for i, value in enumerate(given.tolist()))
    return tuple(given.tolist())


def count(value: int, what: str, minimum: int = 0, limit_power: int = _LIMIT_POWER) -> int:
    """Return ``value`` as a Python integer that is at least ``minimum`` and below ``2**limit_power``.

    Raises:
        TypeError: it is not an integer.
        ValueError: it is too small or too large.
    """
    number = _as_int(value, what, limit_power)
    if number < minimum:
        raise ValueError(f"{what} must be at least {minimum}, got {number}")
    return number


def check_prefix_len(value: int) -> int:
    """Return a number of cached tokens as a Python integer; raises as ``count``, also above 2**31 - 1."""
    number = count(value, "prefix_len")
    if number > MAX_PREFIX_LEN:
        raise ValueError(f"prefix_len must be at most {MAX_PREFIX_LEN}, got {number}")
    return number


def _as_int(value: object, what: str, limit_power: int = _LIMIT_POWER) -> int:
    # bool has __index__, but True as a count, a token or a rank is always a mistake
    if not isinstance(value, (bool, np.bool_)):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if -(1 << limit_power) <= number < 1 << limit_power:
                return number
            raise ValueError(f"{what} must be below 2**{limit_power} in size, got {number}")
    raise TypeError(f"{what} must be an integer, got {value!r} ({type(value).__name__})")


def check_parents(parents: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``parents`` if it is a tree in which every parent precedes its children.

    Raises:
        ValueError: there is no root, a second root, a missing parent, or a parent that does not precede its
            child.
    """
    if not parents:
        raise ValueError("a tree has at least its root: expected parents[0] == -1, got no node")
    if parents[0] != -1:
        raise ValueError(f"node 0 is the root: expected parent -1, got {parents[0]}")
    for node, parent in enumerate(parents):
        if not 0 <= parent < node and node:
            if parent == -1:
                raise ValueError(f"only node 0 is the root: node {node} has parent -1")
            if not 0 <= parent < len(parents):
                raise ValueError(
                    f"parent is missing from the tree: node {node} has parent {parent}, "
                    f"expected 0 <= parent < {node}"
                )
            raise ValueError(f"parents must precede children: node {node} has parent {parent}")
    return parents


def sibling_ranks(parents: tuple[int, ...]) -> tuple[int, ...]:
    """Number every node among its siblings in node order (the root gets 0)."""
    num_children = [0] * len(parents)
    ranks = [0] * len(parents)
    for node in range(1, len(parents)):
        parent = parents[node]
        ranks[node] = num_children[parent]
        num_children[parent] += 1
    return tuple(ranks)


def node_depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    """Depth of every node, the root at 0."""
    depths = [0] * len(parents)
    for node in range(1, len(parents)):
        depths[node] = depths[parents[node]] + 1
    return tuple(depths)


def node_children(parents: tuple[int, ...], ranks: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Children of every node, in rank order."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    return tuple(tuple(sorted(nodes, key=ranks.__getitem__)) for nodes in children)


def rank_paths(parents: tuple[int, ...], ranks: tuple[int, ...]) -> tuple[RankPath, ...]:
    """Rank path of every node, ``()`` for the root."""
    paths: list[RankPath] = [()] * len(parents)
    for node in range(1, len(parents)):
        paths[node] = (*paths[parents[node]], ranks[node])
    return tuple(paths)


def from_rank_paths(paths: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Turn rank paths into ``(parents, ranks)`` in canonical order; a path given twice counts once.

    Raises:
        TypeError: a path is not a sequence, or a rank is not an integer.
        ValueError: a rank is negative, or a path's parent is not among the paths.
    """
    unique: set[RankPath] = {()}
    for path in paths:
        if isinstance(path, (str, bytes)) or not isinstance(path, (list, tuple, np.ndarray)):
            raise TypeError(f"a rank path must be a tuple of ranks, got {path!r} ({type(path).__name__})")
        ranks = int_tuple(path, f"rank path {path!r}: rank", "position")
        if ranks and min(ranks) < 0:
            raise ValueError(f"ranks must be at least 0, got rank path {ranks}")
        unique.add(ranks)
    ordered = sorted(unique, key=lambda path: (len(path), path))
    node_of = {path: node for node, path in enumerate(ordered)}
    parents = [-1]
    for path in ordered[1:]:
        parent = node_of.get(path[:-1])
        if parent is None:
            raise ValueError(f"rank path {path} needs its parent {path[:-1]}, which is not in the tree")
        parents.append(parent)
    return tuple(parents), tuple(path[-1] if path else 0 for path in ordered)
