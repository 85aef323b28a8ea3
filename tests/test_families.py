"""Families of trees against every tree that keeps to their rule."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treedecode as td
from tests.all_trees import Tree, all_trees, deepest, most_parents, value_of, widest
from treedecode.families import plan_branches, plan_leaf_siblings


def shares(max_size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(0.0, 1.0), min_size=1, max_size=max_size).map(
        lambda xs: [x / max(1.0, sum(xs) * (1 + 1e-12)) for x in xs]
    )


LIMITS = st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(1, 2))


def is_leaf_sibling(tree: Tree) -> bool:
    """By the definition: all nodes with children lie on one path."""
    inner = sorted({path[:-1] for path in tree}, key=len)
    return all(inner[-1][: len(path)] == path for path in inner)


@settings(max_examples=25, deadline=None)
@given(st.lists(shares(2), min_size=1, max_size=8), st.integers(0, 8), LIMITS)
def test_leaf_siblings_are_the_best_of_all(
    rows: list[list[float]], budget: int, limits: tuple[int | None, int | None]
) -> None:
    max_depth, max_width = limits
    shape = plan_leaf_siblings(rows, budget, max_depth, max_width)
    allowed = [
        tree
        for tree in all_trees(2, 8)
        if len(tree) <= budget
        and is_leaf_sibling(tree)
        and (max_depth is None or deepest(tree) <= max_depth)
        and (max_width is None or widest(tree) <= max_width)
    ]
    assert frozenset(shape.paths[1:]) in allowed
    best = max(value_of(tree, rows) for tree in allowed)
    assert td.expected_tokens(shape, rows) == pytest.approx(best, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.lists(shares(3), min_size=1, max_size=6), st.integers(0, 6), st.integers(1, 3), LIMITS)
def test_branches_are_the_best_of_all(
    rows: list[list[float]], budget: int, num_branches: int, limits: tuple[int | None, int | None]
) -> None:
    max_depth, max_width = limits
    shape = plan_branches(rows, budget, num_branches, max_depth, max_width)
    allowed = [
        tree
        for tree in all_trees(3, 6)
        if len(tree) <= budget
        and most_parents(tree) <= num_branches
        and (max_depth is None or deepest(tree) <= max_depth)
        and (max_width is None or widest(tree) <= max_width)
    ]
    assert frozenset(shape.paths[1:]) in allowed
    best = max(value_of(tree, rows) for tree in allowed)
    assert td.expected_tokens(shape, rows) == pytest.approx(best, abs=1e-12)


@given(shares(4), st.integers(0, 24), st.integers(0, 24), st.integers(1, 3), LIMITS)
def test_families_are_nested_in_the_budget(
    probs: list[float],
    small: int,
    large: int,
    num_branches: int,
    limits: tuple[int | None, int | None],
) -> None:
    small, large = sorted((small, large))
    branches = plan_branches(probs, large, num_branches, *limits)
    assert branches.prefix(small) == plan_branches(probs, small, num_branches, *limits)
    spine = plan_leaf_siblings(probs, large, *limits)
    assert spine.prefix(small) == plan_leaf_siblings(probs, small, *limits)


@given(shares(4), st.integers(0, 16))
def test_the_families_lie_between_a_chain_and_any_tree(probs: list[float], budget: int) -> None:
    values = [
        td.expected_tokens(shape, probs)
        for shape in (
            td.plan_tree(probs, budget, max_width=1),
            plan_leaf_siblings(probs, budget),
            plan_branches(probs, budget, 2),
            plan_branches(probs, budget, 3),
            td.plan_tree(probs, budget),
        )
    ]
    assert all(low <= high + 1e-12 for low, high in pairwise(values))
    assert plan_branches(probs, budget, 1) == plan_leaf_siblings(probs, budget)
    assert plan_branches(probs, budget, budget + 1) == td.plan_tree(probs, budget)


def test_known_trees() -> None:
    """Leaves stand at the top of the spine, where reach is high, and two branches run side by side."""
    assert plan_leaf_siblings((0.6, 0.2), 5).paths == ((), (0,), (0, 0), (0, 0, 0), (1,), (0, 0, 0, 0))
    tied = td.TreeShape.from_paths(plan_leaf_siblings((0.5, 0.5), 8).paths)
    assert tied == td.TreeShape.leaf_siblings(depth=4, width=2)
    branches = plan_branches((0.5, 0.4), 6, 2, max_depth=3)
    assert most_parents(frozenset(branches.paths[1:])) == 2
    assert sorted(branches.paths[1:]) == [(0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1)]
    assert plan_leaf_siblings((0.2, 0.7), 3).paths == ((), (1,), (1, 1), (1, 1, 1))
    assert plan_leaf_siblings((0.5,), 0) == td.TreeShape.chain(0)


@pytest.mark.parametrize(
    ("num_branches", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_bad_branches(num_branches: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="num_branches must be"):
        plan_branches((0.5,), 4, num_branches)


def test_bad_arguments() -> None:
    for plan in (plan_leaf_siblings, lambda *given, **named: plan_branches(*given, 2, **named)):
        with pytest.raises(ValueError, match="budget must be at least 0, got -1"):
            plan((0.5,), -1)
        with pytest.raises(ValueError, match="sum to at most 1"):
            plan((0.9, 0.9), 4)
        with pytest.raises(ValueError, match="max_width must be at least 1"):
            plan((0.5,), 4, max_width=0)
