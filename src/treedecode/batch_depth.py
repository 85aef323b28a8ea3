"""How deep a drafter drafts whose time counts: by what its passes took, and by what drafts of each depth have given."""

from __future__ import annotations

import statistics
from collections import deque

import numpy as np

from treedecode import topology
from treedecode.accept import Acceptance
from treedecode.acceptance import EdgeEstimates
from treedecode.cost import CostCurve
from treedecode.shape import TreeShape
from treedecode.tree import DraftTree

# Steps in a row for which nothing need be drafted, before drafts are looked at again.
REST = 16
_NUM_TIMES = 9


class DraftDepth:
    """Chooses the depth with the most expected tokens per millisecond, drafting included, for a batch.

    All requests are taken for alike: every drafted edge is as likely to be right as those of its depth and rank were so
    far. The drafter takes a time per level that is learnt from its drafts, by kind of batch; as long as none was
    timed, drafting counts for nothing, so that the first drafts are whole.

    Same calls, same depths.
    """

    def __init__(self) -> None:
        self._estimates = EdgeEstimates()
        self._level_ms: dict[int, deque[float]] = {}
        self._resting: dict[int, int] = {}

    def choose(
        self, kind: int, num_requests: int, shape: TreeShape, cost: CostCurve, max_rows: int | None = None
    ) -> int:
        """Levels to draft for the next step; 0 for none.

        Where none pays, one level is drafted all the same every ``REST`` steps: texts change.

        Args:
            kind: what the batch shares its times with, such as ``batch_class``.
            num_requests: that draft, at least 1.
            shape: the drafter's tree of every request when it drafts as deep as it can.
            cost: milliseconds of a step by its rows.
            max_rows: most rows of a step, roots included; None for no limit.

        Raises:
            TypeError, ValueError: a count is no integer or below 1.
        """
        num_requests = topology.count(num_requests, "num_requests", minimum=1)
        reach = self._reach(shape)
        depths = np.array(shape.depth_tuple[1:])
        room = shape.num_drafted if max_rows is None else max(0, max_rows // num_requests - 1)
        table = cost.table(num_requests * (1 + min(room, shape.num_drafted)))
        best, best_rate = 0, num_requests / table[num_requests]
        for depth in range(1, shape.max_depth + 1):
            likely = np.sort(reach[1:][depths <= depth])[::-1][:room]
            expected = num_requests * (1.0 + np.cumsum(likely))
            step_ms = [table[num_requests * num_nodes] for num_nodes in range(2, 2 + len(likely))]
            ms = np.array(step_ms) + depth * self.level_ms(kind)
            rate = float(np.max(expected / ms, initial=0.0))
            if rate > best_rate:
                best, best_rate = depth, rate
        if best:
            self._resting[kind] = 0
            return best
        resting = self._resting.get(kind, 0)
        self._resting[kind] = (resting + 1) % (REST + 1)
        return 0 if resting < REST else 1

    def level_ms(self, kind: int) -> float:
        """Milliseconds of one level for this kind of batch, or for the nearest that was timed; 0.0 before any was."""
        if not self._level_ms:
            return 0.0
        nearest = min(self._level_ms, key=lambda other: (abs(other - kind), other))
        return statistics.median(self._level_ms[nearest])

    def timed(self, kind: int, depth: int, draft_ms: float) -> None:
        """Learns what ``depth`` levels took, at least 1."""
        times = self._level_ms.setdefault(kind, deque(maxlen=_NUM_TIMES))
        times.append(draft_ms / topology.count(depth, "depth", minimum=1))

    def observe(self, tree: DraftTree, walk: Acceptance) -> None:
        """Learns from a verified tree, whatever its drafter said of it."""
        if tree.num_drafted:
            plain = DraftTree.trusted(tree.shape.parent_tuple, tree.token_tuple)
            self._estimates.observe(plain, walk.path)

    def _reach(self, shape: TreeShape) -> np.ndarray:
        reach = [1.0] * shape.num_nodes
        width = 1 + max(shape.rank_tuple)
        rates = self._estimates.rank_probs("", max(1, shape.max_depth), width)
        edges = zip(shape.parent_tuple[1:], shape.depth_tuple[1:], shape.rank_tuple[1:], strict=True)
        for node, (parent, depth, rank) in enumerate(edges, 1):
            reach[node] = reach[parent] * rates[depth - 1][rank]
        return np.array(reach)
