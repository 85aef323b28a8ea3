"""The best tree of a family that is cheap to draft: leaf siblings, and continuation branches.

A drafter's forward pass gives the candidates after a node. ``plan_tree`` may ask for any number of passes;
these families bound how many nodes of one depth are drafted on, hence the rows of the drafter's batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from treedecode import topology
from treedecode.planner import grow_tree
from treedecode.shape import TreeShape


def plan_leaf_siblings(
    rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]],
    budget: int,
    max_depth: int | None = None,
    max_width: int | None = None,
) -> TreeShape:
    """The best leaf-sibling tree: a spine with runner-up leaves beside each of its nodes.

    One drafter row per depth, as for a chain: only one node of a depth has children. That is the most probable
    candidate, rank 0 unless ``rank_probs`` say otherwise. How long the spine and how many leaves at each depth
    follows from the reach: the tree has the highest expected tokens of all such trees within the budget, and
    is in descending reach and nested in the budget.

    Args:
        rank_probs: by rank ``[ranks]``, or one row per depth; see ``RankProbs``.
        budget: number of drafted nodes, at least 0.
        max_depth: length of the spine at most (drafter passes), at least 0; ``None`` for no limit.
        max_width: children of any one node, at least 1; 1 gives a chain, ``None`` no limit.

    Raises:
        TypeError, ValueError: as ``plan_tree``.
    """
    return grow_tree(rank_probs, budget, max_depth, max_width, max_parents=1)


def plan_branches(
    rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]],
    budget: int,
    num_branches: int,
    max_depth: int | None = None,
    max_width: int | None = None,
) -> TreeShape:
    """The best tree of continuation branches: at most ``num_branches`` nodes of one depth are drafted on.

    Drafting takes one pass of up to ``num_branches`` rows per depth. A branch may start anywhere and carries
    runner-up leaves like a spine; one branch is ``plan_leaf_siblings``, and as many as the budget is
    ``plan_tree``. The tree has the highest expected tokens of all such trees within the budget, and is in
    descending reach and nested in the budget.

    Args:
        rank_probs: by rank ``[ranks]``, or one row per depth; see ``RankProbs``.
        budget: number of drafted nodes, at least 0.
        num_branches: nodes of one depth that may have children, at least 1.
        max_depth: depth of the deepest node (drafter passes), at least 0; ``None`` for no limit.
        max_width: children of any one node, at least 1; ``None`` for no limit.

    Raises:
        TypeError, ValueError: as ``plan_tree``; ``num_branches`` is not an integer or under 1.
    """
    num_branches = topology.count(num_branches, "num_branches", minimum=1)
    return grow_tree(rank_probs, budget, max_depth, max_width, max_parents=num_branches)
