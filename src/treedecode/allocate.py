"""One budget for a batch: how many drafted nodes every request gets, by what the whole step costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from treedecode import topology
from treedecode.cost import CostCurve
from treedecode.tree import DraftTree


@dataclass(frozen=True)
class Allocation:
    """The drafted nodes of one step, over all requests.

    Attributes:
        num_drafted: by request.
        order: the request of every node taken, most likely node first. The first ``m`` entries are the best ``m``
            nodes: a step cut to them is the plan for that smaller budget.
        expected_tokens: of the step, one per request and the reach of all nodes taken.
        cost_ms: of the step.
    """

    num_drafted: tuple[int, ...]
    order: tuple[int, ...]
    expected_tokens: float
    cost_ms: float


def allocate_batch(
    reach: Sequence[Sequence[float]],
    cost: CostCurve,
    room: Sequence[int] | None = None,
    max_drafted: int | None = None,
    num_other_rows: int = 0,
) -> Allocation:
    """Share out drafted nodes so that the batch emits the most tokens per millisecond.

    The nodes of all requests are taken most likely first, and ``E / c`` is looked at for every total, as in
    ``choose_budget``: few requests get wide trees, many get chains, and past break-even none gets any. Requests
    are ragged. A node never comes before those in front of it: one behind a less likely one counts as likely as
    that one when it waits its turn. Where reach descends, as planned trees have it, the split is the best one for
    every total. Ties go to the earlier request and to the smaller total.

    The order is that of a heap over all requests' next nodes, found by one stable sort, which is faster.

    Args:
        reach: for every request the reach probability of its drafted nodes, in the order in which a tree may be
            cut, as ``exp(tree.scores[1:])``.
        cost: milliseconds by the number of rows of the step: one per request, the drafted nodes, and
            ``num_other_rows``.
        room: by request, the most drafted nodes it can use; no limit if not given.
        max_drafted: the most drafted nodes in all; no limit if not given.
        num_other_rows: rows of the step that no tree has, such as those of a chunk of a prompt.

    Raises:
        TypeError: a count is not an integer.
        ValueError: there is no request, a count is negative, or there is not one room per request.
    """
    num_requests = len(reach)
    if not num_requests:
        raise ValueError("a step needs at least one request, got none")
    lengths = [len(nodes) for nodes in reach]
    if room is not None:
        if len(room) != num_requests:
            raise ValueError(f"expected one room per request: {num_requests} requests, got {len(room)} rooms")
        rooms = topology.int_tuple(room, "room", "request")
        if min(rooms) < 0:
            raise ValueError(f"room must be at least 0: request {rooms.index(min(rooms))} has {min(rooms)}")
        if any(length > limit for length, limit in zip(lengths, rooms, strict=True)):
            reach = [nodes[:limit] for nodes, limit in zip(reach, rooms, strict=True)]
            lengths = [len(nodes) for nodes in reach]
    total = sum(lengths)
    values = np.fromiter(chain.from_iterable(reach), np.float64, total)
    owners = np.repeat(np.arange(num_requests), lengths)
    order = np.argsort(-_waiting(values, owners, lengths), kind="stable")
    if max_drafted is not None:
        order = order[: topology.count(max_drafted, "max_drafted")]
    expected = np.empty(len(order) + 1)
    expected[0] = num_requests
    np.cumsum(values[order], out=expected[1:])
    expected[1:] += num_requests
    first = num_requests + topology.count(num_other_rows, "num_other_rows")
    ms = np.array(cost.table(first + len(order))[first : first + len(order) + 1])
    best = int(np.argmax(expected / ms))
    taken = owners[order[:best]]
    return Allocation(
        tuple(np.bincount(taken, minlength=num_requests).tolist()),
        tuple(taken.tolist()),
        float(expected[best]),
        float(ms[best]),
    )


def _waiting(values: np.ndarray, owners: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """What each node counts for in its turn: the smallest reach up to it within its request."""
    if bool(np.all((values[1:] <= values[:-1]) | (owners[1:] != owners[:-1]))):
        return values
    parts = np.split(values, np.cumsum(lengths)[:-1])
    return np.concatenate([np.minimum.accumulate(part) for part in parts])


def scored_reach(tree: DraftTree) -> list[float]:
    """Reach of every node of a scored tree, ``[N]``, 1.0 for the root.

    Raises:
        ValueError: the tree has no scores; ``EdgeEstimates.reach`` estimates the reach of such trees.
    """
    scores = tree.score_tuple
    if scores is None:
        raise ValueError("expected a tree with scores (log reach); EdgeEstimates.reach estimates it without")
    return [math.exp(score) for score in scores]


def cut_batch(
    trees: Sequence[DraftTree],
    cost: CostCurve,
    max_depths: Sequence[int] | None = None,
    max_drafted: int | None = None,
    num_other_rows: int = 0,
    reach: Callable[[DraftTree], Sequence[float]] = scored_reach,
) -> tuple[list[DraftTree], Allocation]:
    """Cut the trees of a batch to the sizes that pay together.

    Args:
        trees: one per request, nodes in descending reach.
        cost, max_drafted, num_other_rows: as for ``allocate_batch``.
        max_depths: by request, the deepest draft that can still be emitted (``depth_room``); deeper nodes are left
            out before the budget is shared out. No limit if not given.
        reach: reach of every node of a tree, root first; from its scores if not given.

    Returns:
        The trees as they are to be verified, and how the budget was shared out.

    Raises:
        TypeError, ValueError: as ``allocate_batch``; or there is not one depth per tree.
    """
    if max_depths is not None:
        if len(max_depths) != len(trees):
            raise ValueError(f"expected one depth per tree: {len(trees)} trees, got {len(max_depths)} depths")
        trees = [tree.within_depth(depth) for tree, depth in zip(trees, max_depths, strict=True)]
    return cut_by_reach(trees, [reach(tree) for tree in trees], cost, max_drafted, num_other_rows)


def cut_by_reach(
    trees: Sequence[DraftTree],
    reach: Sequence[Sequence[float]],
    cost: CostCurve,
    max_drafted: int | None = None,
    num_other_rows: int = 0,
) -> tuple[list[DraftTree], Allocation]:
    """As :func:`cut_batch`, for whoever knows the reach of every node of every tree, root first."""
    allocation = allocate_batch([values[1:] for values in reach], cost, None, max_drafted, num_other_rows)
    cut = [tree.prefix(size) for tree, size in zip(trees, allocation.num_drafted, strict=True)]
    return cut, allocation
