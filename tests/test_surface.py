"""Cost over rows and context: fit, interpolation, growth, errors."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treedecode as td
from treedecode.cost import CostCurve
from treedecode.surface import CostSurface, cost_from_json

SURFACE = CostSurface([1, 4], [64, 512, 2048], [[10.0, 13.0], [12.0, 16.0], [20.0, 40.0]])


def fitted(table: np.ndarray) -> np.ndarray:
    """The fit of a table of single measurements."""
    contexts, rows = np.indices(table.shape)
    surface = CostSurface.fit((rows + 1).ravel(), contexts.ravel(), table.ravel().tolist())
    return np.array(surface.ms_at)


def test_measured_points_come_back() -> None:
    for context, line in zip(SURFACE.prefix_lens, SURFACE.ms_at, strict=True):
        assert [SURFACE.at(context).ms(n) for n in SURFACE.rows] == pytest.approx(line)


def test_contexts_are_interpolated() -> None:
    assert SURFACE.at(288).ms(1) == pytest.approx(11.0)
    assert SURFACE.at(288).ms(4) == pytest.approx(14.5)
    assert SURFACE.at(1280).ms(4) == pytest.approx(28.0)
    assert SURFACE.at(0) == SURFACE.at(63) == SURFACE.at(64)


def test_beyond_the_last_context_the_last_slope_goes_on() -> None:
    assert SURFACE.at(2048 + 1536).ms(1) == pytest.approx(28.0)
    assert SURFACE.at(2048 + 1536).ms(4) == pytest.approx(64.0)


def test_far_beyond_the_last_context_cost_still_rises_with_rows() -> None:
    """A smaller row count that was measured to grow faster takes the larger ones along."""
    surface = CostSurface([1, 4], [64, 512], [[10.0, 19.0], [18.0, 20.0]])
    curve = surface.at(1 << 20)
    assert curve.ms(4) > curve.ms(1) > 1000


def test_one_context_holds_everywhere() -> None:
    surface = CostSurface([1, 4], [64], [[10.0, 13.0]])
    assert surface.at(0) == surface.at(1 << 20) == CostCurve([1, 4], [10.0, 13.0])


def test_contexts_are_rounded_down_by_a_32nd_at_most() -> None:
    """So curves are few, and a step looks one up."""
    surface = CostSurface([1], [0, 1 << 20], [[1.0], [1.0 + (1 << 20)]])
    for prefix_len in [*range(300), 975, 4095, 8191, 100_000]:
        context = surface.at(prefix_len).ms(1) - 1.0
        assert prefix_len * 31 / 32 - 1e-6 <= context <= prefix_len + 1e-6
    curves = {id(surface.at(prefix_len)) for prefix_len in range(8192)}
    assert len(curves) <= 64 + 7 * 32
    assert surface.at(8191) is surface.at(8190)


def test_a_curve_serves_every_context() -> None:
    curve = CostCurve([1, 4], [10.0, 13.0])
    assert curve.at(0) is curve.at(10_000) is curve


def upper_sets(num_contexts: int, num_rows: int) -> list[np.ndarray]:
    """All 0/1 tables that fall along neither axis: with the constants they span the tables that do not fall."""
    every = (
        np.array(bits, float).reshape(num_contexts, num_rows)
        for bits in itertools.product([0, 1], repeat=num_contexts * num_rows)
    )
    return [t for t in every if (np.diff(t, axis=0) >= 0).all() and (np.diff(t, axis=1) >= 0).all()]


UPPER_SETS = upper_sets(3, 3)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=9, max_size=9))
def test_the_fit_is_the_nearest_surface_that_never_falls(values: list[int]) -> None:
    """The conditions of a projection on a convex cone: the rest is orthogonal to the fit and against every edge."""
    table = np.array(values, float).reshape(3, 3)
    fit = fitted(table)
    assert (np.diff(fit, axis=0) >= 0).all() and (np.diff(fit, axis=1) >= 0).all()
    rest = table - fit
    assert abs((rest * fit).sum()) < 1e-4
    assert abs(rest.sum()) < 1e-6  # against the constants, both ways
    assert max((rest * edge).sum() for edge in UPPER_SETS) < 1e-6


def test_the_fit_leaves_a_rising_surface_alone() -> None:
    table = np.array(SURFACE.ms_at)
    assert np.array_equal(fitted(table), table)


def test_the_fit_takes_medians_of_repeats() -> None:
    surface = CostSurface.fit([2, 1, 1, 1, 2], [0] * 5, [12.0, 10.0, 99.0, 9.0, 14.0])
    assert surface == CostSurface([1, 2], [0], [[10.0, 13.0]])


@given(
    st.lists(st.lists(st.floats(0.01, 1e4), min_size=5, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=8),
)
def test_every_context_gives_a_curve(table: list[list[float]], prefix_lens: list[int]) -> None:
    rows = [1, 2, 6, 9, 30]
    points = [(n, 7 * c, ms) for c, line in enumerate(table) for n, ms in zip(rows, line, strict=True)]
    surface = CostSurface.fit(*zip(*points, strict=True))
    for count in (1, 17, 30):  # beyond the measured rows every context goes on by its own curve's last slope
        costs = [surface.at(context).ms(count) for context in sorted(prefix_lens)]
        assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(costs))
    for context in prefix_lens:
        table = surface.at(context).table(60)
        assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(table))


def test_round_trip() -> None:
    text = SURFACE.to_json()
    assert CostSurface.from_json(text) == SURFACE
    assert json.loads(text)["prefix_lens"] == [64, 512, 2048]
    assert cost_from_json(text) == SURFACE
    curve = CostCurve([1, 4], [10.5, 13.25])
    assert cost_from_json(curve.to_json()) == curve


@pytest.mark.parametrize(
    ("rows", "prefix_lens", "ms", "error", "message"),
    [
        ([1], [], [], ValueError, "at least one context"),
        ([1], [0, 1], [[1.0]], ValueError, "2 contexts, got 1 lists"),
        ([1, 2], [0], [[1.0]], ValueError, "2 row counts, got 1 times"),
        ([], [0], [[]], ValueError, "at least one measured point"),
        ([1], [-1], [[1.0]], ValueError, "at least 0 tokens, got -1"),
        ([1], [5, 5], [[1.0], [2.0]], ValueError, "contexts must increase: 5 follows 5"),
        ([1, 2], [0], [[2.0, 1.0]], ValueError, "must not fall as rows are added"),
        (
            [1, 2],
            [0, 8],
            [[1.0, 3.0], [1.0, 2.0]],
            ValueError,
            "must not fall as the context grows: 2 ms for 2 rows",
        ),
        ([1], [0], [[0.0]], ValueError, "positive and finite"),
        ([1], [0], [["x"]], TypeError, "numbers of milliseconds"),
        ([1], [0.5], [[1.0]], TypeError, "must be an integer"),
    ],
)
def test_bad_surfaces(rows: list, prefix_lens: list, ms: list, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CostSurface(rows, prefix_lens, ms)


@pytest.mark.parametrize(
    ("rows", "prefix_lens", "ms", "message"),
    [
        ([], [], [], "at least one measured point"),
        ([1], [0, 1], [1.0], "1 row counts, 2 contexts and 1 times"),
        ([1, 2, 1], [0, 0, 8], [1.0, 1.0, 1.0], "none for 2 rows at 8 tokens"),
    ],
)
def test_bad_measurements(rows: list, prefix_lens: list, ms: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CostSurface.fit(rows, prefix_lens, ms)


@pytest.mark.parametrize(
    "text",
    ["nonsense", "[]", '{"rows": [1]}', '{"rows": [1], "prefix_lens": 2, "ms": [[1.0]]}'],
)
def test_bad_json(text: str) -> None:
    with pytest.raises(ValueError, match="a cost must be"):
        CostSurface.from_json(text)


def test_json_of_a_curve_is_no_surface() -> None:
    with pytest.raises(ValueError, match="prefix_lens"):
        CostSurface.from_json('{"rows": [1], "ms": [1.0]}')
    with pytest.raises(ValueError, match="list of lists"):
        CostSurface.from_json('{"rows": [1], "prefix_lens": [0], "ms": [1.0]}')


def test_negative_contexts() -> None:
    with pytest.raises(ValueError, match="at least 0 tokens"):
        SURFACE.at(-1)


def test_public_names() -> None:
    assert td.CostSurface is CostSurface


def test_beyond_the_largest_times_costs_stay_finite() -> None:
    surface = td.CostSurface([1, 2], [0, 1], [[1.0, 2.0], [1e12, 1e12]])
    assert surface.at(2**31 - 1).ms_at == (1e12, 1e12)
