"""The allocation of a batch against brute force, a heap, and the rule for one request."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treedecode.acceptance import EdgeEstimates
from treedecode.allocate import allocate_batch, cut_batch
from treedecode.cost import CostCurve
from treedecode.planner import choose_budget
from treedecode.tree import DraftTree, TreeShape

# few different values, so that ties come up
REACH = st.lists(st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.7, 0.9, 1.0]) | st.floats(0, 1), max_size=5).map(
    lambda values: sorted(values, reverse=True)
)
BATCH = st.lists(REACH, min_size=1, max_size=3)


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    """Staircases as well as slopes: steps of 0 and of several milliseconds."""
    steps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.5, 1.0, 4.0]), min_size=20, max_size=20))
    return CostCurve(
        range(1, 22), itertools.accumulate(steps, initial=draw(st.sampled_from([0.5, 3.0, 10.0])))
    )


def rate_of(split: tuple[int, ...], reach: list[list[float]], cost: CostCurve) -> float:
    expected = len(reach) + math.fsum(math.fsum(r[:n]) for r, n in zip(reach, split, strict=True))
    return expected / cost.ms(len(reach) + sum(split))


@settings(max_examples=200, deadline=None)
@given(BATCH, curves(), st.none() | st.integers(0, 8), st.data())
def test_equals_the_best_of_all_splits(
    reach: list[list[float]], cost: CostCurve, max_drafted: int | None, data: st.DataObject
) -> None:
    room = data.draw(st.none() | st.lists(st.integers(0, 6), min_size=len(reach), max_size=len(reach)))
    found = allocate_batch(reach, cost, room, max_drafted)
    limits = [len(r) if room is None else min(len(r), room[i]) for i, r in enumerate(reach)]
    splits = [
        split
        for split in itertools.product(*(range(limit + 1) for limit in limits))
        if max_drafted is None or sum(split) <= max_drafted
    ]
    assert found.num_drafted in splits
    best = max(rate_of(split, reach, cost) for split in splits)
    assert rate_of(found.num_drafted, reach, cost) == pytest.approx(best, rel=1e-12)
    assert found.expected_tokens / found.cost_ms == pytest.approx(best, rel=1e-12)
    assert [found.order.count(i) for i in range(len(reach))] == list(found.num_drafted)


def by_heap(reach: list[list[float]]) -> list[int]:
    """Requests in the order in which a heap over their next nodes gives them."""
    heap = [(-nodes[0], request, 0) for request, nodes in enumerate(reach) if nodes]
    heapq.heapify(heap)
    order = []
    while heap:
        waiting, request, place = heapq.heappop(heap)
        order.append(request)
        if place + 1 < len(reach[request]):
            heapq.heappush(heap, (max(waiting, -reach[request][place + 1]), request, place + 1))
    return order


@given(st.lists(st.lists(st.floats(0, 1) | st.sampled_from([0.1, 0.5]), max_size=6), min_size=1, max_size=6))
def test_takes_nodes_as_a_heap_does(reach: list[list[float]]) -> None:
    """Also where reach rises, as estimates of trees without scores may."""
    free = CostCurve([1, 2], [1.0, 1.0])
    ones = [[min(1.0, value + 1e-6) for value in nodes] for nodes in reach]
    assert list(allocate_batch(ones, free).order) == by_heap(ones)


@given(BATCH, curves(), st.integers(0, 16), st.integers(0, 16))
def test_a_smaller_budget_is_a_prefix(
    reach: list[list[float]], cost: CostCurve, small: int, large: int
) -> None:
    """The order in which nodes are taken does not depend on the budget, and the first m are the best m."""
    small, large = sorted((small, large))
    less, more = allocate_batch(reach, cost, None, small), allocate_batch(reach, cost, None, large)
    shorter, longer = sorted((less.order, more.order), key=len)
    assert longer[: len(shorter)] == shorter
    assert len(less.order) <= small
    falling = [reach[request][more.order[:i].count(request)] for i, request in enumerate(more.order)]
    assert falling == sorted(falling, reverse=True)


@given(st.lists(st.floats(0, 1), max_size=12), curves(), st.integers(0, 14))
def test_one_request_is_choose_budget(reach: list[float], cost: CostCurve, room: int) -> None:
    size = choose_budget(reach, cost, room)
    found = allocate_batch([reach], cost, [room])
    assert rate_of(found.num_drafted, [reach], cost) == pytest.approx(
        rate_of((size,), [reach], cost), rel=1e-12
    )
    if found.num_drafted != (size,):  # rounding apart, the same size
        assert rate_of(found.num_drafted, [reach], cost) != rate_of((size,), [reach], cost)


def test_a_staircase_is_climbed_past_a_row_that_does_not_pay() -> None:
    """Two requests: the third row costs a step of the stair, the rows after it are free up to the fifth."""
    cost = CostCurve([1, 2, 3, 5, 6], [9.0, 10.0, 14.0, 14.0, 30.0])
    reach = [[0.3, 0.3], [0.35, 0.2]]
    found = allocate_batch(reach, cost)
    assert rate_of((0, 1), reach, cost) < rate_of((0, 0), reach, cost)
    assert found.num_drafted == (2, 1)
    assert found.order == (1, 0, 0)


def test_trees_shrink_as_the_batch_grows_and_vanish_past_break_even() -> None:
    """Rows are free up to 16; a row past them costs as much as a request's own."""
    cost = CostCurve([1, 16, 64], [16.0, 16.0, 64.0])
    tree = [0.7, 0.5, 0.35, 0.25, 0.15, 0.15, 0.1, 0.1]
    sizes = [allocate_batch([tree] * batch, cost).num_drafted for batch in (1, 2, 4, 8, 16, 32)]
    assert [max(size) for size in sizes] == sorted((max(size) for size in sizes), reverse=True)
    assert sizes[0] == (8,)
    assert set(sizes[3]) == {1}
    assert not any(sizes[4]) and not any(sizes[5])


def test_rows_that_are_not_trees_use_up_what_is_free() -> None:
    cost = CostCurve([1, 8, 16], [8.0, 8.0, 32.0])
    assert allocate_batch([[0.5] * 7], cost).num_drafted == (7,)
    found = allocate_batch([[0.5] * 7], cost, num_other_rows=4)
    assert found.num_drafted == (3,)
    assert found.cost_ms == 8.0


def test_ties_go_to_the_earlier_request_and_the_smaller_total() -> None:
    free = CostCurve([1, 2], [1.0, 1.0])
    assert allocate_batch([[0.5, 0.5], [0.5, 0.5]], free, None, 3).num_drafted == (2, 1)
    assert allocate_batch([[0.5, 0.0], [0.0]], free).num_drafted == (1, 0)
    assert allocate_batch([[], []], free).num_drafted == (0, 0)


def test_a_batch_of_trees_is_cut_by_depth_and_budget() -> None:
    free = CostCurve([1, 2], [1.0, 1.0])
    scores = [0.0, *(math.log(value) for value in (0.9, 0.8, 0.1))]
    chain = DraftTree(TreeShape.chain(3), [1, 2, 3, 4], scores)
    bushy = DraftTree(TreeShape.from_parents([-1, 0, 1, 0]), [1, 2, 3, 4], scores)
    trees, allocation = cut_batch([chain, bushy, chain], free, [3, 1, 0])
    assert trees == [chain, bushy.within_depth(1), DraftTree(TreeShape.chain(0), [1], [0.0])]
    assert allocation.num_drafted == (3, 2, 0)
    trees, allocation = cut_batch([chain, bushy, chain], free, [3, 1, 0], max_drafted=3)
    assert allocation.order == (0, 1, 0)
    assert [tree.num_drafted for tree in trees] == [2, 1, 0]


def test_trees_without_scores_need_an_estimate() -> None:
    free = CostCurve([1, 2], [1.0, 1.0])
    tree = DraftTree(TreeShape.chain(2), [1, 2, 3])
    with pytest.raises(ValueError, match=r"expected a tree with scores \(log reach\); EdgeEstimates.reach"):
        cut_batch([tree], free)
    trees, _ = cut_batch([tree, tree], free, reach=EdgeEstimates().reach)
    assert trees == [tree, tree]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"reach": []}, ValueError, "a step needs at least one request, got none"),
        ({"room": [1]}, ValueError, "expected one room per request: 2 requests, got 1 rooms"),
        ({"room": [1, -1]}, ValueError, "room must be at least 0: request 1 has -1"),
        ({"room": [1, 1.5]}, TypeError, "room"),
        ({"max_drafted": -1}, ValueError, "max_drafted"),
        ({"num_other_rows": -1}, ValueError, "num_other_rows"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given_ = {"reach": [[0.5], [0.5]], "cost": CostCurve([1], [1.0])} | arguments
    with pytest.raises(error, match=message):
        allocate_batch(**given_)
    with pytest.raises(ValueError, match="expected one depth per tree: 1 trees, got 2 depths"):
        cut_batch([DraftTree.root_only(1)], CostCurve([1], [1.0]), [1, 2])


def test_a_large_batch_is_shared_out_correctly() -> None:
    """64 requests of 16 nodes, as a server has them: against the heap and every total."""
    rng = random.Random(0)
    reach = [sorted((rng.random() for _ in range(16)), reverse=True) for _ in range(64)]
    cost = CostCurve([1, 64, 128, 256, 1024], [10.0, 11.0, 13.0, 18.0, 80.0])
    found = allocate_batch(reach, cost, max_drafted=512)
    order = by_heap(reach)
    assert list(found.order) == order[: len(found.order)]
    rates = [rate_of(tuple(order[:n].count(i) for i in range(64)), reach, cost) for n in range(0, 513, 8)]
    assert found.expected_tokens / found.cost_ms >= max(rates) - 1e-12
