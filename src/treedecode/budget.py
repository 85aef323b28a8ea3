"""The live budget: cuts every proposed tree to the size that pays, by measured cost and observed acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from treedecode.planner import choose_budget
from treedecode.surface import Cost
from treedecode.tree import DraftTree

# Beta prior of an edge whose drafter gives no score: (accepted, seen), by rank among siblings.
_PRIOR = ((1.2, 2.0), (0.3, 2.0))


class BudgetPlanner:
    """Chooses how many nodes of each tree to verify.

    Takes the number of nodes with the most expected tokens per millisecond of this step (``choose_budget``). Valuing a
    step's time at the rate of the steps before it would be the optimum for known reach; with estimated reach it lagged
    behind the text and was 5% slower on the tuning prompts.

    Args:
        cost: Milliseconds by number of rows and context, of the machine and model in use.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._edges: dict[tuple[int, int], list[float]] = {}

    def cut(self, tree: DraftTree, prefix_len: int = 0) -> DraftTree:
        """The best prefix of ``tree`` for a step after ``prefix_len`` cached tokens."""
        reach = self._reach(tree)
        return tree.prefix(choose_budget(reach, self._cost.at(prefix_len), tree.num_drafted))

    def record(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Learns from a verified step: the tree as verified and the accepted nodes, root first."""
        if tree.scores is None:
            on_path = set(path)
            for node in path:
                for child in tree.shape.children(node):
                    counts = self._edge(tree, child)
                    counts[0] += child in on_path
                    counts[1] += 1

    def _edge(self, tree: DraftTree, node: int) -> list[float]:
        rank = tree.shape.rank_tuple[node]
        return self._edges.setdefault((tree.shape.depth_tuple[node], rank), list(_PRIOR[min(rank, 1)]))

    def _reach(self, tree: DraftTree) -> list[float]:
        """Reach of the drafted nodes: as scored, else from what was seen by depth and rank."""
        if tree.scores is not None:
            return [math.exp(score) for score in tree.scores[1:]]
        reach = [1.0]
        for node, parent in enumerate(tree.shape.parent_tuple[1:], 1):
            accepted, seen = self._edge(tree, node)
            reach.append(reach[parent] * accepted / seen)
        return reach[1:]
