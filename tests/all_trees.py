"""All trees of rank paths, written down one by one: what plans are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

RankPath = tuple[int, ...]
Tree = frozenset[RankPath]


@cache
def all_trees(num_ranks: int, max_drafted: int) -> tuple[Tree, ...]:
    """Every tree of at most ``max_drafted`` drafted nodes whose ranks are below ``num_ranks``."""
    trees: set[Tree] = {frozenset()}
    grown = trees
    for _ in range(max_drafted):
        grown = {
            tree | {(*parent, rank)}
            for tree in grown
            for parent in [(), *tree]
            for rank in range(num_ranks)
            if (*parent, rank) not in tree
        }
        trees = trees | grown
    return tuple(sorted(trees, key=sorted))


def value_of(tree: Tree, rows: Sequence[Sequence[float]]) -> float:
    """Expected tokens of a tree, path by path; ``rows`` holds the probabilities by depth, 0 below the last."""
    total = 1.0
    for path in tree:
        reach = 1.0
        for depth, rank in enumerate(path):
            reach *= rows[depth][rank] if depth < len(rows) and rank < len(rows[depth]) else 0.0
        total += reach
    return total


def widest(tree: Tree) -> int:
    """Most children of any one node."""
    return max(Counter(path[:-1] for path in tree).values(), default=0)


def deepest(tree: Tree) -> int:
    return max(map(len, tree), default=0)


def most_parents(tree: Tree) -> int:
    """Most nodes of one depth that have children, the root's aside."""
    return max(Counter(len(path) for path in {path[:-1] for path in tree}).values(), default=0)
