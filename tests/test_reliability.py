"""The reliability curve: a calibrated source lies on the diagonal, an overconfident one does not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedecode.reliability import Reliability, ReliabilityBin

RECORDS = st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=60)


def recorded(records: list[tuple[float, bool]], **options: object) -> Reliability:
    reliability = Reliability(**options)  # type: ignore[arg-type]
    for said, reached in records:
        reliability.add(said, reached)
    return reliability


def test_curve_and_error_by_hand() -> None:
    records = [(0.2, False), (0.4, True), (0.5, True), (0.9, True), (1.0, False), (0.8, True)]
    reliability = recorded(records, bounds=(0.5,))
    low, high = reliability.curve()
    assert low == ReliabilityBin(0.0, 0.5, low.mean_said, 0.5, 2)
    assert high == ReliabilityBin(0.5, 1.0, high.mean_said, 0.75, 4)
    assert (low.mean_said, high.mean_said) == pytest.approx((0.3, 0.8))
    assert reliability.error == pytest.approx((2 * 0.2 + 4 * 0.05) / 6)
    assert reliability.count == 6


def test_empty_bins_are_left_out() -> None:
    assert Reliability().curve() == ()
    assert Reliability().error is None
    assert [one.count for one in recorded([(0.95, True)]).curve()] == [1]


def test_calibrated_and_overconfident() -> None:
    rng = random.Random(0)
    said = [rng.random() ** 3 for _ in range(20_000)]
    honest = recorded([(value, rng.random() < value) for value in said])
    boastful = recorded([(value, rng.random() < value / 2) for value in said])
    assert honest.error is not None and honest.error < 0.01
    assert boastful.error == pytest.approx(sum(said) / len(said) / 2, abs=0.01)
    assert all(abs(one.mean_said - one.share_reached) < 0.05 for one in honest.curve())


@given(RECORDS, RECORDS)
def test_merging_equals_recording_all(
    first: list[tuple[float, bool]], second: list[tuple[float, bool]]
) -> None:
    merged, other = recorded(first), recorded(second)
    before = other.curve()
    merged.merge(other)
    both = recorded(first + second)
    assert other.curve() == before
    assert merged.count == both.count
    for ours, theirs in zip(merged.curve(), both.curve(), strict=True):
        assert (ours.low, ours.high, ours.count) == (theirs.low, theirs.high, theirs.count)
        assert ours.share_reached == theirs.share_reached
        assert ours.mean_said == pytest.approx(theirs.mean_said)


@given(RECORDS)
def test_bins_hold_what_is_said_in_them(records: list[tuple[float, bool]]) -> None:
    for one in recorded(records).curve():
        inside = [said for said, _ in records if one.low <= said < one.high or said == one.high == 1.0]
        assert one.count == len(inside)
        assert one.mean_said == pytest.approx(sum(inside) / len(inside))


def test_a_step_records_the_drafted_nodes() -> None:
    step, apart = Reliability(), Reliability()
    step.add_step([1.0, 0.6, 0.3, 0.25], [0, 1, 3])
    for said, reached in ((0.6, True), (0.3, False), (0.25, True)):
        apart.add(said, reached)
    assert step.curve() == apart.curve()


@pytest.mark.parametrize("said", [-0.1, 1.1, float("nan")])
def test_said_reach_is_a_probability(said: float) -> None:
    with pytest.raises(ValueError, match=r"probability in \[0, 1\]"):
        Reliability().add(said, True)


@pytest.mark.parametrize("bounds", [(0.5, 0.5), (0.0, 0.5), (0.5, 1.0), (0.7, 0.2), (float("nan"),)])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend between 0 and 1"):
        Reliability(bounds)


def test_only_equal_bins_merge() -> None:
    with pytest.raises(ValueError, match="only equal bins"):
        Reliability().merge(Reliability((0.5,)))
