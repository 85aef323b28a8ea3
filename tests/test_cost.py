from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treedecode as td
from treedecode.cost import convex_minorant


def test_interpolates_between_measurements() -> None:
    curve = td.CostCurve(rows=[1, 4, 8], ms=[10.0, 13.0, 13.0])
    assert [curve.ms(n) for n in (1, 2, 3, 4, 6, 8)] == pytest.approx([10, 11, 12, 13, 13, 13])


def test_below_the_first_and_beyond_the_last() -> None:
    assert td.CostCurve([4, 8], [10.0, 12.0]).ms(1) == 10.0
    assert td.CostCurve([1, 2, 4], [10.0, 10.0, 14.0]).ms(6) == pytest.approx(18.0)
    # a flat last piece grows by the slope of the whole curve
    assert td.CostCurve([1, 5, 9], [10.0, 18.0, 18.0]).ms(13) == pytest.approx(22.0)
    assert td.CostCurve([2], [10.0]).ms(6) == pytest.approx(30.0)


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(0.01, 1e3)), min_size=1, max_size=12, unique_by=lambda p: p[0]
    )
)
def test_fit_never_falls(points: list[tuple[int, float]]) -> None:
    curve = td.CostCurve.fit([rows for rows, _ in points], [ms for _, ms in points])
    costs = [curve.ms(n) for n in range(1, 100)]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(costs))
    assert min(ms for _, ms in points) - 1e-9 <= curve.ms_at[0] <= max(ms for _, ms in points) + 1e-9


def test_fit_takes_medians_of_repeats_and_pools_falls() -> None:
    curve = td.CostCurve.fit([2, 1, 1, 1, 4], [12.0, 10.0, 99.0, 9.0, 8.0])
    assert curve.rows == (1, 2, 4)
    assert curve.ms_at == pytest.approx((10.0, 10.0, 10.0))


def test_fit_leaves_a_rising_curve_alone() -> None:
    assert td.CostCurve.fit([1, 2, 4], [1.0, 2.0, 3.0]) == td.CostCurve([1, 2, 4], [1.0, 2.0, 3.0])


def test_round_trip() -> None:
    curve = td.CostCurve([1, 4], [10.5, 13.25])
    assert td.CostCurve.from_json(curve.to_json()) == curve
    assert json.loads(curve.to_json()) == {"rows": [1, 4], "ms": [10.5, 13.25]}
    assert td.CostCurve.from_json('{"rows": [1, 4], "ms": [10.5, 13.25], "machine": "x"}') == curve


@pytest.mark.parametrize(
    ("rows", "ms", "error", "message"),
    [
        ([], [], ValueError, "at least one measured point"),
        ([1, 2], [1.0], ValueError, "2 row counts, got 1 times"),
        ([0, 2], [1.0, 2.0], ValueError, "at least 1"),
        ([2, 1], [1.0, 2.0], ValueError, "must increase: 1 follows 2"),
        ([1, 1], [1.0, 2.0], ValueError, "must increase"),
        ([1, 2], [2.0, 1.0], ValueError, "must not fall"),
        ([1], [0.0], ValueError, "positive and finite"),
        ([1], [float("nan")], ValueError, "positive and finite"),
        ([1], [float("inf")], ValueError, "positive and finite"),
        ([1], [10**400], ValueError, "positive and finite milliseconds, got inf"),
        ([1], [1e-10], ValueError, "1e-09 to 1e\\+12 milliseconds, got 1e-10"),
        ([1], [1e13], ValueError, "1e-09 to 1e\\+12 milliseconds, got 1e\\+13"),
        ([1.5], [1.0], TypeError, "must be an integer"),
        ([1], ["fast"], TypeError, "numbers of milliseconds"),
        ([1], ["10"], TypeError, "numbers of milliseconds, got '10'"),
        ([1], [True], TypeError, "numbers of milliseconds, got True"),
    ],
)
def test_bad_curves(rows: list, ms: list, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        td.CostCurve(rows, ms)


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"rows": [1]}', '{"rows": 1, "ms": 2}', "[" * 100_000])
def test_bad_json(text: str) -> None:
    with pytest.raises(ValueError, match="a cost curve must be"):
        td.CostCurve.from_json(text)


@pytest.mark.parametrize("num_rows", [0, -1])
def test_no_rows(num_rows: int) -> None:
    with pytest.raises(ValueError, match="at least 1 row"):
        td.CostCurve([1], [1.0]).ms(num_rows)


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=12))
def test_the_convex_minorant_is_below_and_touches(times: list[float]) -> None:
    rows = [1 + 3 * i + i % 2 for i in range(len(times))]
    kept, values = convex_minorant(rows, times)
    below = np.interp(rows, kept, values)
    assert kept[0] == rows[0] and kept[-1] == rows[-1]
    assert (below <= np.array(times) + 1e-9).all()
    slopes = np.diff(values) / np.diff(kept)
    assert (np.diff(slopes) >= -1e-9).all()
    assert all(times[rows.index(count)] == value for count, value in zip(kept, values, strict=True))


def test_one_slow_row_count_does_not_bend_the_curve() -> None:
    kept, values = convex_minorant([1, 2, 4, 8, 16], [10.0, 11.0, 30.0, 17.0, 25.0])
    assert kept == [1, 2, 8, 16] and values == [10.0, 11.0, 17.0, 25.0]
