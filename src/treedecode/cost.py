"""What a target forward pass costs by its number of rows: ``CostCurve``."""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from treedecode import topology
from treedecode.json_text import parse_json

# No forward pass takes less or more; sums, products and quotients of such times stay finite and above zero.
LEAST_MS, MOST_MS = 1e-9, 1e12


@dataclass(frozen=True)
class CostCurve:
    """Milliseconds of one forward pass of the target over ``n`` rows, from measurements at some row counts.

    Between two measured counts the cost is interpolated. Below the first it is the first. Beyond the last it
    grows by the slope of the last piece or by the mean slope of the whole curve, whichever is steeper, so
    that a flat last piece does not promise rows for nothing; a curve of one point grows in proportion.

    Args:
        rows: row counts (root included), at least 1, strictly increasing.
        ms: milliseconds of each, 1e-9 to 1e12, not decreasing. ``CostCurve.fit`` smooths raw measurements.

    Raises:
        TypeError: a row count is not an integer, or a time not a number.
        ValueError: the curve is empty, the lengths differ, or the values break the rules above.
    """

    rows: tuple[int, ...]
    ms_at: tuple[float, ...]
    _table: list[float] = field(init=False, repr=False, compare=False, hash=False)

    def __init__(self, rows: Sequence[int], ms: Sequence[float]) -> None:
        counts, times = _check_points(rows, ms)
        for i in range(1, len(times)):
            if counts[i] <= counts[i - 1]:
                raise ValueError(f"row counts must increase: {counts[i]} follows {counts[i - 1]}")
            if times[i] < times[i - 1]:
                raise ValueError(
                    f"cost must not fall as rows are added: {times[i]:g} ms for {counts[i]} rows follows "
                    f"{times[i - 1]:g} ms for {counts[i - 1]}; CostCurve.fit smooths measurements"
                )
        object.__setattr__(self, "rows", counts)
        object.__setattr__(self, "ms_at", times)
        object.__setattr__(self, "_table", [times[0]])

    @classmethod
    def fit(cls, rows: Sequence[int], ms: Sequence[float]) -> CostCurve:
        """Build from raw measurements, which may repeat a row count, stand in any order and be noisy.

        Repeats are reduced to their median; then the nearest curve that never falls is taken (least squares,
        by pooling adjacent violators).

        Raises:
            TypeError, ValueError: as the class, save for the order of the counts and of the times.
        """
        counts, times = _check_points(rows, ms)
        by_count: dict[int, list[float]] = {}
        for count, time in zip(counts, times, strict=True):
            by_count.setdefault(count, []).append(time)
        return cls(
            sorted(by_count),
            never_falling([statistics.median(by_count[count]) for count in sorted(by_count)]),
        )

    @classmethod
    def fit_convex(cls, rows: Sequence[int], ms: Sequence[float]) -> CostCurve:
        """The greatest convex curve below one measurement per row count, in increasing order of rows.

        For a few quick measurements: other load on the machine only adds to them, and a roofline is convex. Steps of a
        staircase are lost.

        Raises:
            TypeError, ValueError: as the class, save for the order of the times.
        """
        return cls.fit(*convex_minorant(rows, ms))

    def at(self, prefix_len: int) -> CostCurve:
        """Itself: a curve holds for every context. ``CostSurface.at`` gives the curve of one context."""
        return self

    def ms(self, num_rows: int) -> float:
        """Milliseconds of a forward pass of ``num_rows`` rows. ``ValueError`` below 1."""
        return self.table(num_rows)[num_rows]

    def table(self, num_rows: int) -> Sequence[float]:
        """Costs by row count, so that ``table(n)[i]`` is ``ms(i)`` for 1 <= i <= n; entry 0 repeats entry 1.

        Shared between calls and possibly longer than asked for: read only. ``ValueError`` below 1.
        """
        table = self._table
        if len(table) <= num_rows:
            table.extend(self._at(count) for count in range(len(table), num_rows + 1))
        elif num_rows < 1:
            raise ValueError(f"a forward pass has at least 1 row, got {num_rows}")
        return table

    def _at(self, count: int) -> float:
        rows, times = self.rows, self.ms_at
        if count <= rows[0]:
            return times[0]
        right = bisect_right(rows, count)
        if right < len(rows):
            share = (count - rows[right - 1]) / (rows[right] - rows[right - 1])
            return times[right - 1] + share * (times[right] - times[right - 1])
        return times[-1] + (count - rows[-1]) * self._slope_beyond()

    def _slope_beyond(self) -> float:
        rows, times = self.rows, self.ms_at
        if len(rows) == 1:
            return times[0] / rows[0]
        return max(
            (times[-1] - times[-2]) / (rows[-1] - rows[-2]), (times[-1] - times[0]) / (rows[-1] - rows[0])
        )

    def plus(self, extra: CostCurve) -> CostCurve:
        """This cost and what ``extra`` says on top, at the row counts of this one."""
        return CostCurve(self.rows, [ms + extra.ms(n) for n, ms in zip(self.rows, self.ms_at, strict=True)])

    def to_json(self) -> str:
        """One JSON object with ``rows`` and ``ms``; ``from_json`` reads it."""
        return json.dumps({"rows": self.rows, "ms": self.ms_at})

    @classmethod
    def from_json(cls, text: str) -> CostCurve:
        """Read what ``to_json`` wrote; other keys are ignored.

        Raises:
            TypeError, ValueError: as the class; ``ValueError`` also for text that is no such object.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            raise ValueError(f"a cost curve must be JSON: {error}") from None
        match data:
            case {"rows": [*rows], "ms": [*ms]}:
                return cls(rows, ms)
        raise ValueError('a cost curve must be a JSON object with the lists "rows" and "ms"')


def convex_minorant(rows: Sequence[int], ms: Sequence[float]) -> tuple[list[int], list[float]]:
    """The points that the greatest convex curve below all of them goes through (the lower convex hull).

    Args:
        rows: Row counts, strictly increasing.
        ms: Milliseconds of each.
    """
    hull: list[tuple[int, float]] = []
    for count, time in zip(rows, ms, strict=True):
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (count - x1) <= (time - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((count, time))
    return [count for count, _ in hull], [time for _, time in hull]


def _check_points(rows: Sequence[int], ms: Sequence[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    counts = topology.int_tuple(rows, "row count", "point")
    if not counts:
        raise ValueError("a cost curve needs at least one measured point, got none")
    times = tuple(as_ms(value) for value in ms)
    if len(times) != len(counts):
        raise ValueError(f"expected one time per row count: {len(counts)} row counts, got {len(times)} times")
    if min(counts) < 1:
        raise ValueError(f"row counts must be at least 1 (the root is a row), got {min(counts)}")
    return counts, times


def never_falling(values: Sequence[float]) -> list[float]:
    """The nearest list, in least squares, that never falls: adjacent violators are pooled to their mean."""
    pools: list[tuple[float, int]] = []  # (mean, number of values)
    for mean in values:
        size = 1
        while pools and pools[-1][0] > mean:
            other, other_size = pools.pop()
            mean = (mean * size + other * other_size) / (size + other_size)
            size += other_size
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


def as_ms(value: object) -> float:
    """``value`` as milliseconds; ``TypeError`` for what is no number, ``ValueError`` outside LEAST_MS to MOST_MS."""
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"times must be numbers of milliseconds, got {value!r}") from None
    except OverflowError:
        number = math.inf
    if not 0.0 < number < math.inf:
        raise ValueError(f"times must be positive and finite milliseconds, got {number}")
    if not LEAST_MS <= number <= MOST_MS:
        raise ValueError(f"times must be {LEAST_MS:g} to {MOST_MS:g} milliseconds, got {number:g}")
    return number
