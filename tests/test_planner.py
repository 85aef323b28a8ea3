"""The planner against brute force."""

from __future__ import annotations

import itertools
import math
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treedecode as td
from tests.all_trees import all_trees, deepest, value_of, widest
from treedecode.planner import choose_budget

PROBS = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4).map(
    lambda xs: [x / max(1.0, math.fsum(xs) * (1 + 1e-12)) for x in xs]
)


def best_of_all_trees(probs: list[float], budget: int) -> float:
    """Highest expected tokens over ALL trees of at most ``budget`` drafted nodes, by splitting the budget."""

    @cache
    def below(nodes: int, rank: int) -> float:
        """Expected accepted tokens of ``nodes`` nodes spread over children of ``rank`` and up."""
        if not nodes or rank == len(probs):
            return 0.0
        return max(
            (probs[rank] * (1.0 + below(size - 1, 0)) if size else 0.0) + below(nodes - size, rank + 1)
            for size in range(nodes + 1)
        )

    return 1.0 + below(budget, 0)


@settings(max_examples=200)
@given(PROBS, st.integers(0, 8))
def test_plan_equals_brute_force(probs: list[float], budget: int) -> None:
    shape = td.plan_tree(probs, budget)
    assert shape.num_drafted <= budget
    assert td.expected_tokens(shape, probs) == pytest.approx(best_of_all_trees(probs, budget), abs=1e-12)


ROWS = st.lists(PROBS, min_size=1, max_size=3)
DEPTHS = st.none() | st.integers(0, 4)
WIDTHS = st.none() | st.integers(1, 3)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(PROBS.filter(lambda row: len(row) <= 2), min_size=1, max_size=8),
    st.integers(0, 8),
    DEPTHS,
    WIDTHS,
)
def test_plan_is_the_best_of_all_trees_written_down(
    rows: list[list[float]], budget: int, max_depth: int | None, max_width: int | None
) -> None:
    """Two ranks, up to 8 nodes: all 6,917 trees."""
    shape = td.plan_tree(rows, budget, max_depth, max_width)
    allowed = [
        tree
        for tree in all_trees(2, 8)
        if len(tree) <= budget
        and (max_depth is None or deepest(tree) <= max_depth)
        and (max_width is None or widest(tree) <= max_width)
    ]
    assert frozenset(shape.paths[1:]) in allowed
    best = max(value_of(tree, rows) for tree in allowed)
    assert td.expected_tokens(shape, rows) == pytest.approx(best, abs=1e-12)


def best_within_limits(
    rows: list[list[float]], budget: int, max_depth: int | None, max_width: int | None
) -> float:
    """Highest expected tokens over all trees that keep to the limits, by splitting the budget."""

    @cache
    def below(nodes: int, depth: int, rank: int, room: int) -> float:
        """Of ``nodes`` nodes under at most ``room`` children at ``depth`` of ``rank`` and up."""
        if not nodes or not room or depth > len(rows) or rank == len(rows[depth - 1]):
            return 0.0
        if max_depth is not None and depth > max_depth:
            return 0.0
        taken = (
            rows[depth - 1][rank] * (1.0 + below(size - 1, depth + 1, 0, width))
            + below(nodes - size, depth, rank + 1, room - 1)
            for size in range(1, nodes + 1)
        )
        return max(below(nodes, depth, rank + 1, room), *taken)

    width = 99 if max_width is None else max_width
    return 1.0 + below(budget, 1, 0, width)


@settings(max_examples=300)
@given(ROWS, st.integers(0, 8), DEPTHS, WIDTHS)
def test_plan_within_limits_equals_brute_force(
    rows: list[list[float]], budget: int, max_depth: int | None, max_width: int | None
) -> None:
    shape = td.plan_tree(rows, budget, max_depth, max_width)
    assert shape.num_drafted <= budget
    assert max_depth is None or shape.max_depth <= max_depth
    assert max_width is None or widest(frozenset(shape.paths[1:])) <= max_width
    best = best_within_limits(rows, budget, max_depth, max_width)
    assert td.expected_tokens(shape, rows) == pytest.approx(best, abs=1e-12)


@given(PROBS, st.integers(0, 24), st.integers(0, 24), DEPTHS, WIDTHS)
def test_plan_within_limits_is_nested(
    probs: list[float], small: int, large: int, max_depth: int | None, max_width: int | None
) -> None:
    small, large = sorted((small, large))
    planned = td.plan_tree(probs, large, max_depth, max_width)
    assert planned.prefix(small) == td.plan_tree(probs, small, max_depth, max_width)


def test_width_counts_the_children_of_a_node() -> None:
    """Not the nodes of a depth: with two children each there are four nodes at depth 2."""
    shape = td.plan_tree((0.4, 0.35, 0.25), 6, max_depth=2, max_width=2)
    assert shape.num_drafted == 6
    assert td.TreeShape.from_paths(shape.paths) == td.TreeShape.from_widths([2, 2])
    assert td.plan_tree((0.5, 0.4), 5, max_width=1) == td.TreeShape.chain(5)
    assert td.plan_tree((0.2, 0.1, 0.6), 9, max_depth=1, max_width=2).paths == ((), (2,), (0,))
    assert td.plan_tree((0.5,), 5, max_depth=0).num_drafted == 0


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ({"max_depth": -1}, ValueError, "max_depth must be at least 0, got -1"),
        ({"max_depth": 1.0}, TypeError, "max_depth must be an integer"),
        ({"max_width": 0}, ValueError, "max_width must be at least 1, got 0"),
        ({"max_width": "2"}, TypeError, "max_width must be an integer"),
    ],
)
def test_bad_limits(limits: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        td.plan_tree((0.5,), 4, **limits)


@given(PROBS, st.integers(0, 24), st.integers(0, 24))
def test_plan_is_nested(probs: list[float], small: int, large: int) -> None:
    small, large = sorted((small, large))
    assert td.plan_tree(probs, large).prefix(small) == td.plan_tree(probs, small)


@given(PROBS, st.integers(0, 32))
def test_plan_is_in_descending_reach(probs: list[float], budget: int) -> None:
    shape = td.plan_tree(probs, budget)
    reach = [math.prod(probs[rank] for rank in path) for path in shape.paths]
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(reach))


def test_plan_beats_the_reference_tree() -> None:
    reference = td.TreeShape.from_paths(
        [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0)]
    )
    planned = td.plan_tree((0.7, 0.15), 9)
    assert planned.num_drafted == 9
    assert td.expected_tokens(planned, (0.7, 0.15)) > td.expected_tokens(reference, (0.7, 0.15))


def test_plan_by_depth_and_extremes() -> None:
    assert td.plan_tree([(0.6, 0.3), (0.9,)], 9).paths == ((), (0,), (0, 0), (1,), (1, 0))
    assert td.plan_tree((1.0,), 5) == td.TreeShape.chain(5)
    assert td.plan_tree((0.0,), 5).num_drafted == 0
    assert td.plan_tree((0.1, 0.6), 1).paths == ((), (1,))
    assert td.plan_tree((1e-200,), 5).num_drafted == 1


@pytest.mark.parametrize(("budget", "error"), [(-1, ValueError), (2.5, TypeError), (True, TypeError)])
def test_bad_budget(budget: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="budget must be"):
        td.plan_tree((0.5,), budget)


def best_ratio(reach: list[float], cost: td.CostCurve, limit: int) -> int:
    ratios = [(1 + math.fsum(reach[:n])) / cost.ms(1 + n) for n in range(limit + 1)]
    return max(range(limit + 1), key=lambda n: (ratios[n], -n))


def test_budget_crosses_a_staircase() -> None:
    """Nodes 1 to 3 are free, 4 costs a lot, 5 to 7 are free again: stopping at the first bad node is wrong."""
    cost = td.CostCurve([1, 4, 5, 8, 9], [10.0, 10.0, 14.0, 14.0, 40.0])
    reach = [0.95, 0.9, 0.86, 0.82, 0.8, 0.78, 0.76, 0.7]
    assert choose_budget(reach[:4], cost, 64) == 3
    assert choose_budget(reach, cost, 64) == 7
    assert choose_budget(reach, cost, 5) == best_ratio(reach, cost, 5)


def test_no_tree_where_none_pays() -> None:
    cost = td.CostCurve([1, 32], [10.0, 320.0])
    assert choose_budget([0.2, 0.1, 0.05], cost, 32) == 0
    assert choose_budget([], cost, 32) == 0
    assert choose_budget([0.9], cost, 0) == 0
    assert choose_budget([0.2, 0.1], td.CostCurve([1, 2], [10.0, 10.0]), 32) == 2


@given(st.integers(0, 10_000))
def test_budget_is_the_argmax(seed: int) -> None:
    rng = random.Random(seed)
    reach = sorted((rng.random() for _ in range(rng.randrange(1, 40))), reverse=True)
    times = sorted(rng.uniform(1, 10) for _ in range(6))
    cost = td.CostCurve([1, 3, 4, 8, 9, 30], times)
    limit = rng.randrange(0, 41)
    chosen = choose_budget(reach, cost, limit)
    best = best_ratio(reach, cost, min(limit, len(reach)))
    assert (1 + math.fsum(reach[:chosen])) / cost.ms(1 + chosen) == pytest.approx(
        (1 + math.fsum(reach[:best])) / cost.ms(1 + best), rel=1e-12
    )
