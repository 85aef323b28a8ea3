"""Reliability: are nodes that are said to be reached with probability 0.3 reached 30% of the time?"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Most nodes of a tree have small reach, so small values get bins of their own.
BOUNDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class ReliabilityBin:
    """What was said and what was seen, for one range of said reach.

    Attributes:
        low: smallest said reach of the bin.
        high: end of the bin, itself outside it (1.0 is inside the last).
        mean_said: mean of what was said, which is what ``share_reached`` should be.
        share_reached: share of the nodes that were reached.
        count: number of nodes.
    """

    low: float
    high: float
    mean_said: float
    share_reached: float
    count: int


class Reliability:
    """Records said reach against what happened; the curve of a calibrated planner is the diagonal.

    The error is the expected calibration error (Guo et al., arXiv:1706.04599, equation 3) over these bins.

    Args:
        bounds: where one bin of said reach ends and the next begins, ascending, between 0 and 1.

    Raises:
        ValueError: the bounds do not ascend between 0 and 1.
    """

    def __init__(self, bounds: Sequence[float] = BOUNDS) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        edges = (0.0, *self.bounds, 1.0)
        if not all(low < high for low, high in pairwise(edges)):
            raise ValueError(f"bounds must ascend between 0 and 1, got {self.bounds}")
        self._said = [0.0] * (len(self.bounds) + 1)
        self._reached = [0] * (len(self.bounds) + 1)
        self._count = [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """Number of recorded nodes."""
        return sum(self._count)

    def add(self, said: float, reached: bool) -> None:
        """Record one node: the reach that was said of it, and whether the walk came there.

        Raises:
            ValueError: ``said`` is outside [0, 1] or NaN.
        """
        # a product of rounded probabilities may end a hair above 1
        if not 0.0 <= said <= 1.0 + 1e-9:
            raise ValueError(f"said reach must be a probability in [0, 1], got {said!r}")
        place = bisect_right(self.bounds, said)
        self._said[place] += min(said, 1.0)
        self._reached[place] += bool(reached)
        self._count[place] += 1

    def add_step(self, reach: Sequence[float], path: Sequence[int]) -> None:
        """Record every drafted node of one verified tree.

        Args:
            reach: ``[N]`` said reach, root first (the root itself is not recorded).
            path: accepted nodes, the root among them or not.
        """
        reached = set(path)
        for node in range(1, len(reach)):
            self.add(reach[node], node in reached)

    def merge(self, other: Reliability) -> None:
        """Add all that ``other`` has recorded; ``other`` is left as it is.

        Raises:
            ValueError: the bins differ.
        """
        if other.bounds != self.bounds:
            raise ValueError(f"only equal bins can be merged: expected {self.bounds}, got {other.bounds}")
        self._said = [a + b for a, b in zip(self._said, other._said, strict=True)]
        self._reached = [a + b for a, b in zip(self._reached, other._reached, strict=True)]
        self._count = [a + b for a, b in zip(self._count, other._count, strict=True)]

    def curve(self) -> tuple[ReliabilityBin, ...]:
        """The bins that hold any node, in ascending order of said reach."""
        ends = pairwise((0.0, *self.bounds, 1.0))
        cells = zip(ends, self._said, self._reached, self._count, strict=True)
        return tuple(
            ReliabilityBin(low, high, said / count, reached / count, count)
            for (low, high), said, reached, count in cells
            if count
        )

    @property
    def error(self) -> float | None:
        """Mean over all nodes of |mean said - share reached| of their bin; ``None`` if nothing was recorded."""
        if not self.count:
            return None
        gaps = (one.count * abs(one.mean_said - one.share_reached) for one in self.curve())
        return math.fsum(gaps) / self.count
