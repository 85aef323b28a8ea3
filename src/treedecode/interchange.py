"""Tree layouts of other systems, to and from ``parents``.

- *Linked* (SGLang, TensorRT-LLM, xgrammar): ``first_child`` and ``next_sibling``, there called
  ``retrieve_next_token`` and ``retrieve_next_sibling``; -1 = none. ``treedecode.batch`` adds
  ``retrieve_index``.
- *Per-leaf paths* (Medusa, EAGLE ``retrieve_indices``): one row of node ids per leaf, root first, -1 padded.
- *Serving*: the root is left out, node 0 is the first drafted one, parent -1 = child of the last accepted
  token.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from treedecode.topology import check_parents, int_tuple


def to_linked(children: tuple[tuple[int, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """``(first_child, next_sibling)``, int64 ``[N]`` each, from the children of every node in order."""
    first_child = np.full(len(children), -1, np.int64)
    next_sibling = np.full(len(children), -1, np.int64)
    for node, nodes in enumerate(children):
        if nodes:
            first_child[node] = nodes[0]
            next_sibling[list(nodes[:-1])] = nodes[1:]
    return first_child, next_sibling


def from_linked(first_child: ArrayLike, next_sibling: ArrayLike) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return ``(parents, ranks)`` of a linked tree; the rank of a node is its place in its sibling list.

    Raises:
        ValueError: the lengths differ, the root has a sibling, a link leaves the tree, a node is reached
            twice (a cycle) or never, or a child precedes its parent.
        TypeError: a link is not an integer.
    """
    first = int_tuple(first_child, "first_child")
    sibling = int_tuple(next_sibling, "next_sibling")
    if not len(first) == len(sibling) > 0:
        raise ValueError(
            f"expected two links per node and at least the root, "
            f"got {len(first)} of first_child, {len(sibling)} of next_sibling"
        )
    if sibling[0] != -1:
        raise ValueError(f"the root has no sibling: expected next_sibling[0] == -1, got {sibling[0]}")
    unseen = -2
    parents = [-1] + [unseen] * (len(first) - 1)
    ranks = [0] * len(first)
    pending = [0]
    while pending:
        parent = pending.pop()
        node, rank = first[parent], 0
        while node != -1:
            if not 0 < node < len(first):
                raise ValueError(
                    f"links lead to nodes 1 to {len(first) - 1} or are -1: under node {parent} got {node}"
                )
            if parents[node] != unseen:
                raise ValueError(f"every node has one parent: node {node} is reached twice")
            parents[node], ranks[node] = parent, rank
            pending.append(node)
            node, rank = sibling[node], rank + 1
    if unseen in parents:
        raise ValueError(f"every node must be reached from the root: node {parents.index(unseen)} is not")
    return check_parents(tuple(parents)), tuple(ranks)


def to_leaf_paths(parents: tuple[int, ...], depths: tuple[int, ...]) -> np.ndarray:
    """Int64 ``[leaves, max_depth + 1]``: nodes from the root to every leaf, -1 padded, leaves in node order."""
    inner = set(parents)
    leaves = [node for node in range(len(parents)) if node not in inner]
    rows = np.full((len(leaves), max(depths) + 1), -1, np.int64)
    for row, leaf in zip(rows, leaves, strict=True):
        node = leaf
        while node != -1:
            row[depths[node]] = node
            node = parents[node]
    return rows


def from_leaf_paths(retrieve_indices: ArrayLike) -> tuple[int, ...]:
    """Return the parents of a tree given as per-leaf paths; rows may stand in any order.

    Raises:
        ValueError: not two-dimensional, a row does not start at the root, has a gap, gives a node a second
            parent, or a node is on no row.
        TypeError: an id is not an integer.
    """
    rows = np.asarray(retrieve_indices)
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f"retrieve_indices has shape [leaves, max_depth + 1], got {rows.shape}")
    if rows.dtype.kind not in "iu":
        raise TypeError(f"retrieve_indices must be integers, got dtype {rows.dtype}")
    parent_of: dict[int, int] = {0: -1}
    for leaf, row in enumerate(rows.tolist()):
        path = row[: row.index(-1)] if -1 in row else row
        if path[:1] != [0] or any(node != -1 for node in row[len(path) :]) or min(path) < 0:
            raise ValueError(f"a path starts at node 0 and -1 only pads its end: row {leaf} is {row}")
        for parent, node in itertools.pairwise(path):
            if parent_of.setdefault(node, parent) != parent:
                raise ValueError(f"node {node} has two parents, {parent_of[node]} and {parent} (row {leaf})")
    missing = set(range(max(parent_of) + 1)) - set(parent_of)
    if missing:
        raise ValueError(f"every node lies on some path: node {min(missing)} is on none")
    return check_parents(tuple(parent_of[node] for node in range(len(parent_of))))


def to_serving(parents: tuple[int, ...]) -> np.ndarray:
    """Int32 ``[num_drafted]``: parents without the root, -1 = child of the last accepted token."""
    return np.array([parent - 1 for parent in parents[1:]], np.int32)


def from_serving(serving_parents: ArrayLike) -> tuple[int, ...]:
    """Return parents, root included, from the layout without the root.

    Raises:
        ValueError: a parent is under -1 or does not precede its child (in the serving numbering).
        TypeError: a parent is not an integer.
    """
    given = int_tuple(serving_parents, "serving parent")
    for node, parent in enumerate(given):
        if not -1 <= parent < node:
            raise ValueError(
                f"parents must precede children and -1 is the last accepted token: "
                f"serving node {node} has parent {parent}"
            )
    return (-1, *(parent + 1 for parent in given))
