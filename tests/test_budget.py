from __future__ import annotations

import math
from typing import Any

import pytest

from treedecode.budget import BudgetPlanner
from treedecode.cost import CostCurve
from treedecode.tree import DraftTree, TreeShape

FLAT = CostCurve(rows=[1, 64], ms=[10.0, 10.001])
STEEP = CostCurve(rows=[1, 64], ms=[1.0, 64.0])


def tree_of(reach: list[float], parents: list[int] | None = None) -> DraftTree:
    """A chain, or any tree, with this reach of its drafted nodes."""
    parents = list(range(-1, len(reach))) if parents is None else parents
    scores = [0.0, *(math.log(value) for value in reach)]
    return DraftTree(TreeShape.from_parents(parents), list(range(len(parents))), scores)


def test_nodes_that_cost_nothing_are_all_taken() -> None:
    assert BudgetPlanner(FLAT).cut(tree_of([0.9, 0.5, 0.1])).num_drafted == 3


def test_nodes_that_cost_a_step_each_are_not_taken() -> None:
    assert BudgetPlanner(STEEP).cut(tree_of([0.9, 0.5, 0.1])).num_drafted == 0


def test_the_cut_is_the_best_prefix() -> None:
    """Every n is looked at: the second step of a staircase pays although the row before it does not."""
    cost = CostCurve(rows=[1, 2, 3, 4, 5], ms=[10.0, 14.0, 14.0, 14.0, 30.0])
    tree = tree_of([0.3, 0.3, 0.3, 0.3], [-1, 0, 0, 0, 0])
    cut = BudgetPlanner(cost).cut(tree)
    assert cut.num_drafted == 3
    assert cut.token_tuple == tree.token_tuple[:4]


def test_the_same_tree_is_cut_alike_whatever_came_before() -> None:
    """A scored tree is judged by its own reach alone, not by how well earlier steps went."""
    cost = CostCurve(rows=[1, 8], ms=[10.0, 17.0])
    poor, good = tree_of([0.15]), tree_of([0.9] * 7)
    planner = BudgetPlanner(cost)
    for _ in range(60):
        planner.record(good, range(8))
    assert planner.cut(poor).num_drafted == BudgetPlanner(cost).cut(poor).num_drafted == 1


def test_unscored_trees_are_judged_by_what_was_seen() -> None:
    cost = CostCurve(rows=[1, 8], ms=[10.0, 17.0])
    tree = DraftTree(TreeShape.star(3), [0, 1, 2, 3])
    planner = BudgetPlanner(cost)
    assert planner.cut(tree).num_drafted > 0
    for _ in range(60):
        planner.record(tree, [0])
    assert planner.cut(tree).num_drafted == 0
    for _ in range(200):
        planner.record(tree, [0, 1])
    assert planner.cut(tree).num_drafted == 1


def test_unscored_edges_are_told_apart_by_depth_and_rank() -> None:
    planner = BudgetPlanner(FLAT)
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 1]), [0, 1, 2, 3])
    for _ in range(50):
        planner.record(tree, [0, 2])
    reach: Any = planner._reach(tree)
    assert reach[0] < 0.1
    assert reach[1] > 0.9
    assert reach[2] < reach[0]  # under a node that is seldom reached; its own edge was never seen


@pytest.mark.parametrize("scored", [True, False])
def test_nothing_drafted_is_nothing_to_cut(scored: bool) -> None:
    tree = tree_of([]) if scored else DraftTree.root_only(5)
    planner = BudgetPlanner(FLAT)
    planner.record(tree, [0])
    assert planner.cut(tree).num_drafted == 0
