"""Fixed sizes: the best one by brute force, and sizes that do not flap."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_allocate import BATCH, curves
from treedecode.buckets import BucketPlanner, Buckets, bucket_choices, choose_bucket
from treedecode.cost import CostCurve

BUCKETS = Buckets({1: (2, 4, 8), 2: (1, 3), 4: (2,)})


@settings(max_examples=200, deadline=None)
@given(BATCH, curves(), st.data())
def test_the_best_size_with_its_padding_paid_for(
    reach: list[list[float]], cost: CostCurve, data: st.DataObject
) -> None:
    room = data.draw(st.none() | st.lists(st.integers(0, 4), min_size=len(reach), max_size=len(reach)))
    found = choose_bucket(reach, cost, BUCKETS, room)
    batch = {1: 1, 2: 2, 3: 4}[len(reach)]
    rates = {}
    for size in {1: (0, 2, 4, 8), 2: (0, 1, 3), 4: (0, 2)}[batch]:
        taken = [min(size, len(r), 99 if room is None else room[i]) for i, r in enumerate(reach)]
        expected = len(reach) + math.fsum(math.fsum(r[:n]) for r, n in zip(reach, taken, strict=True))
        rates[size] = expected / cost.ms(batch * (1 + size))
        if size == found.bucket_drafted:
            assert found.num_drafted == tuple(taken)
            assert found.expected_tokens == pytest.approx(expected)
    assert found.batch_size == batch
    assert found.tokens_per_ms == pytest.approx(max(rates.values()))
    assert found.cost_ms == cost.ms(batch * (1 + found.bucket_drafted))


def test_padding_is_paid_for() -> None:
    """Three nodes pay at 4 rows and would at 9, if the five of padding were free."""
    cost = CostCurve([1, 16], [10.0, 17.5])
    reach = [[0.9, 0.8, 0.7]]
    assert choose_bucket(reach, cost, Buckets({1: (3, 8)})).bucket_drafted == 3
    assert choose_bucket(reach, cost, Buckets({1: (8,)})).bucket_drafted == 8
    assert choose_bucket([[0.3]], cost, Buckets({1: (8,)})).bucket_drafted == 0
    # padding requests count as well: the same trees in a batch of 4 rows
    assert choose_bucket([[0.3]], CostCurve([1, 2, 9], [10.0, 10.1, 30.0]), Buckets({4: (1,)})).cost_ms > 10.1


def test_plain_decoding_is_always_a_size() -> None:
    assert Buckets({8: (4,), 1: [8, 2, 2]}).sizes == {1: (0, 2, 8), 8: (0, 4)}
    assert [c.bucket_drafted for c in bucket_choices([[]], CostCurve([1], [1.0]), Buckets({1: ()}))] == [0]


def noisy(rng: random.Random, level: float) -> list[list[float]]:
    """Estimates around a reach at which 2 and 4 nodes are of about equal worth."""
    return [[max(0.0, value + rng.gauss(0, level)) for value in (0.6, 0.4, 0.16, 0.12, 0.05)]]


COST = CostCurve([1, 3, 5, 9], [10.0, 11.0, 12.5, 20.0])
SIZES = Buckets({1: (2, 4, 8)})


def changes(sizes: list[int]) -> int:
    return sum(a != b for a, b in pairwise(sizes))


def test_noise_does_not_make_sizes_flap() -> None:
    rng = random.Random(0)
    trees = [noisy(rng, 0.03) for _ in range(400)]
    free = [choose_bucket(reach, COST, SIZES) for reach in trees]
    planner = BucketPlanner(SIZES)
    held = [planner.choose(reach, COST) for reach in trees]
    assert changes([c.bucket_drafted for c in free]) > 100
    assert changes([c.bucket_drafted for c in held]) < 10
    # and costs almost nothing, as what is held is within the margin of the best
    assert sum(c.tokens_per_ms for c in held) > 0.97 * sum(c.tokens_per_ms for c in free)


def test_a_clear_gain_is_taken_at_once_and_a_small_one_when_it_lasts() -> None:
    planner = BucketPlanner(SIZES, margin=0.05, patience=4)
    low, high = [[0.05]], [[0.9] * 8]
    assert planner.choose(low, COST).bucket_drafted == 0
    assert planner.choose(high, COST).bucket_drafted == 8
    assert planner.choose(low, COST).bucket_drafted == 0
    small = [[0.1, 0.05]]  # 2 nodes promise 1.15 / 11 against 1 / 10: 4.5% more
    assert choose_bucket(small, COST, SIZES).bucket_drafted == 2
    assert [planner.choose(small, COST).bucket_drafted for _ in range(5)] == [0, 0, 0, 2, 2]
    # a step in between at which what is held is best starts the count again
    planner = BucketPlanner(SIZES, margin=0.05, patience=3)
    none = [[0.0]]
    sizes = [
        planner.choose(reach, COST).bucket_drafted
        for reach in (none, small, small, none, small, small, small)
    ]
    assert sizes == [0, 0, 0, 0, 0, 0, 2]


def test_every_batch_size_holds_its_own() -> None:
    planner = BucketPlanner(Buckets({1: (8,), 4: (2,)}))
    cost = CostCurve([1, 12, 13], [10.0, 10.0, 40.0])
    assert planner.choose([[0.9] * 8], cost).bucket_drafted == 8
    assert planner.choose([[0.9] * 8] * 4, cost).bucket_drafted == 2
    assert planner.choose([[0.9] * 8], cost).bucket_drafted == 8


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Buckets({}), ValueError, "buckets need at least one batch size, got none"),
        (lambda: Buckets({0: (1,)}), ValueError, "batch size must be at least 1"),
        (lambda: Buckets({1: (-1,)}), ValueError, "num_drafted"),
        (lambda: Buckets({1: (1.5,)}), TypeError, "num_drafted"),  # type: ignore[dict-item]
        (lambda: choose_bucket([], COST, SIZES), ValueError, "at least one request, got 0"),
        (
            lambda: choose_bucket([[]] * 2, COST, SIZES),
            ValueError,
            "the largest batch size is 1, got 2 requests",
        ),
        (
            lambda: choose_bucket([[]], COST, SIZES, [1, 2]),
            ValueError,
            "one room per request: 1 requests, got 2",
        ),
        (lambda: choose_bucket([[]], COST, SIZES, [-1]), ValueError, "room"),
        (lambda: BucketPlanner(SIZES, margin=-0.1), ValueError, "margin must be at least 0, got -0.1"),
        (lambda: BucketPlanner(SIZES, patience=0), ValueError, "patience must be at least 1"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
