"""The live budget: cuts every proposed tree to the size that pays, by measured cost and observed acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from treedecode.cost import CostCurve
from treedecode.planner import choose_budget
from treedecode.tree import DraftTree

# Weight of past steps in the long-run rate: about the last 30 steps count.
_KEEP = 0.97
# Beta prior of an edge whose drafter gives no score: (accepted, seen), by rank among siblings.
_PRIOR = ((1.2, 2.0), (0.3, 2.0))


class BudgetPlanner:
    """Chooses how many nodes of each tree to verify.

    A step of ``n`` drafted nodes is worth its expected tokens minus its cost at the rate decoding has reached of late
    (``choose_budget`` with ``rate``), so a good draft may grow while a poor one shrinks to nothing.

    Args:
        cost: Milliseconds by number of rows, of the machine and model in use.
    """

    def __init__(self, cost: CostCurve) -> None:
        self._cost = cost
        self._tokens = 1.0
        self._ms = cost.ms(1)
        self._edges: dict[tuple[int, int], list[float]] = {}

    def cut(self, tree: DraftTree) -> DraftTree:
        """The best prefix of ``tree``."""
        reach = self._reach(tree)
        rate = max(self._tokens / self._ms, 1.0 / self._cost.ms(1))
        return tree.prefix(choose_budget(reach, self._cost, tree.num_drafted, rate))

    def record(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Learns from a verified step: the tree as verified and the accepted nodes, root first."""
        self._tokens = _KEEP * self._tokens + len(path)
        self._ms = _KEEP * self._ms + self._cost.ms(tree.num_nodes)
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
