"""What the guard goes by: what plain steps take, and the gain of drafted steps over them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

# Steps that a mean goes over.
_WINDOW = 32
# One step never counts for more than so many of its kind: a pause of the machine is not the drafts' doing.
_OUTLIER = 3.0
# What was measured before a check is forgotten if plain steps have changed by more.
_SAME = 1.1
# Standard errors by which the mean of a few gains must be above zero.
_NUM_ERRORS = 1.5


class PlainReference:
    """What plain steps really take, as a ratio to what the cost curve says: the median of the last few.

    The requests of one model share it, so that only the first one has to measure.
    """

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=25)
        self.scale = 1.0
        self.age = 0
        self.tree_ratio: float | None = None

    @property
    def known(self) -> bool:
        """Whether a plain step has been measured."""
        return bool(self._ratios)

    def add(self, ratio: float) -> None:
        """Measured over predicted milliseconds of a plain step."""
        self._ratios.append(ratio)
        self.scale = statistics.median(self._ratios)
        self.age = 0

    def settle(self, num_new: int, scale_before: float) -> None:
        """After a check of ``num_new`` steps: forgets the ones before it if they were of another kind."""
        new = list(self._ratios)[-num_new:]
        if not 1.0 / _SAME < statistics.median(new) / scale_before < _SAME:
            self._ratios.clear()
            self._ratios.extend(new)
            self.scale = statistics.median(new)
        self.tree_ratio = None


class GainWindow:
    """Means of the last few steps of one mode; costs are in units of the curve's plain step."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.emitted = self.cost = self.promised = self.ratio = 0.0
        self._variance = 0.0

    def add(self, emitted: float, cost: float, promised: float, predicted: float, scale: float) -> float:
        """Takes a step in and returns its cost without what is an outlier."""
        cost = min(cost, _OUTLIER * (self.cost if self.num_steps >= 4 else predicted * scale))
        self.num_steps += 1
        share = 1.0 / min(self.num_steps, _WINDOW)
        off = (emitted - self.emitted) - (cost - self.cost) / scale
        self.emitted += share * (emitted - self.emitted)
        self.cost += share * (cost - self.cost)
        self.promised += share * (promised - self.promised)
        self.ratio += share * (cost / predicted - self.ratio)
        self._variance = (1.0 - share) * (self._variance + share * off * off)
        return cost

    @property
    def error(self) -> float:
        """Standard error of the mean gain: by what was seen, or by what the drafts promise if that is more.

        Drafts that are seldom right and then worth a lot look like a steady loss for a while. A chain whose accepted
        tokens are geometric with the promised mean varies by m (1 + m).
        """
        variance = max(self._variance, self.promised * (1.0 + self.promised))
        return math.sqrt(variance / min(self.num_steps, _WINDOW))


def is_gain(gains: Sequence[float]) -> bool:
    """Whether the mean is above zero beyond noise."""
    return statistics.fmean(gains) > _NUM_ERRORS * statistics.stdev(gains) / math.sqrt(len(gains))
