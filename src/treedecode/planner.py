"""How large a tree pays (``choose_budget``) and which tree of a given size is best (``plan_tree``)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from numpy.typing import ArrayLike

from treedecode import topology
from treedecode.cost import CostCurve
from treedecode.expect import RankProbs
from treedecode.shape import TreeShape


def choose_budget(reach: Sequence[float], cost: CostCurve, max_drafted: int) -> int:
    """Number of drafted nodes that gives the most tokens per millisecond.

    A tree of the first ``n`` nodes emits ``E(n) = 1 + sum(reach[:n])`` tokens and costs ``c(n) = cost.ms(1 +
    n)``. Every ``n`` is looked at: real kernels have staircase costs, at which a rule that stops once a node
    no longer pays would stop too early. The smallest ``n`` wins a tie.

    Args:
        reach: reach probability of every drafted node, best first, as ``exp(tree.scores[1:])``.
        cost: milliseconds by number of rows.
        max_drafted: never return more.

    Returns:
        0 (plain decoding) to ``min(len(reach), max_drafted)``.
    """
    limit = min(len(reach), max_drafted)
    if limit <= 0:
        return 0
    ms = cost.table(1 + limit)
    best, expected = 0, 1.0
    best_expected, best_ms = 1.0, ms[1]
    for n in range(1, limit + 1):
        expected += reach[n - 1]
        if expected * best_ms > best_expected * ms[n + 1]:
            best, best_expected, best_ms = n, expected, ms[n + 1]
    return best


def plan_tree(
    rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]],
    budget: int,
    max_depth: int | None = None,
    max_width: int | None = None,
) -> TreeShape:
    """The tree of at most ``budget`` drafted nodes with the highest expected tokens.

    A child's reach is never higher than its parent's, so the best tree of ``n`` nodes is the ``n`` nodes of
    highest reach, found best first (OPT-Tree, arXiv:2406.17276, and Sequoia, arXiv:2402.12374, give the same
    optimum). Nodes come out in descending reach (ties: smaller depth, then the order in which they were
    found), so every prefix is the plan for that smaller budget. The limits leave out nodes of the lowest reach
    at their place, so the plan is optimal and nested among the trees that keep to them, too.

    Args:
        rank_probs: by rank ``[ranks]``, or one row per depth; see ``RankProbs``.
        budget: number of drafted nodes, at least 0.
        max_depth: depth of the deepest node, at least 0; ``None`` for no limit.
        max_width: children of any one node (not nodes of one depth), at least 1; ``None`` for no limit.

    Returns:
        The tree, with the ranks of its nodes; smaller than the budget if no other node can be accepted.

    Raises:
        TypeError, ValueError: as ``RankProbs``; the budget or a limit is not an integer or too small.
    """
    return grow_tree(rank_probs, budget, max_depth, max_width)


def grow_tree(
    rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]],
    budget: int,
    max_depth: int | None = None,
    max_width: int | None = None,
    max_parents: int | None = None,
) -> TreeShape:
    """``plan_tree``, with at most ``max_parents`` nodes of one depth that have children. Internal.

    Nodes of one depth are found in descending reach and the same probabilities apply below each of them, so
    the best parents are the first that are found.
    """
    probs = RankProbs(rank_probs)
    budget = topology.count(budget, "budget")
    if max_depth is not None:
        max_depth = topology.count(max_depth, "max_depth")
    if max_width is not None:
        max_width = topology.count(max_width, "max_width", minimum=1)
    # by depth: ranks that can be accepted, best first
    ordered: list[list[int]] = [[]]
    num_parents: list[int] = [0]

    def at(depth: int) -> list[int]:
        while len(ordered) <= depth:
            row = probs.at(len(ordered)) if max_depth is None or len(ordered) <= max_depth else ()
            ranks = sorted((r for r, prob in enumerate(row) if prob > 0.0), key=lambda r: -row[r])
            ordered.append(ranks[:max_width])
            num_parents.append(0)
        return ordered[depth]

    parents, ranks = [-1], [0]
    found = 0
    # (-reach, depth, found, parent, parent's reach, place among its siblings)
    heap: list[tuple[float, int, int, int, float, int]] = []

    def offer(depth: int, parent: int, parent_reach: float, place: int) -> None:
        nonlocal found
        if place < len(at(depth)):
            reach = parent_reach * probs.of(depth, at(depth)[place])
            if reach > 0.0:  # products of small probabilities can underflow
                heapq.heappush(heap, (-reach, depth, found, parent, parent_reach, place))
                found += 1

    offer(1, 0, 1.0, 0)
    while heap and len(parents) <= budget:
        minus_reach, depth, _, parent, parent_reach, place = heapq.heappop(heap)
        parents.append(parent)
        ranks.append(at(depth)[place])
        offer(depth, parent, parent_reach, place + 1)
        if max_parents is None or num_parents[depth] < max_parents:
            num_parents[depth] += 1
            offer(depth + 1, len(parents) - 1, -minus_reach, 0)
    return TreeShape.trusted(tuple(parents), tuple(ranks))
