"""What a target forward pass costs by its number of rows and the context before them: ``CostSurface``."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from treedecode import topology
from treedecode.cost import MOST_MS, CostCurve, as_ms, never_falling
from treedecode.json_text import parse_json

# Curves are made for contexts of this many leading bits: at most 1/32 shorter than the context asked for.
_CONTEXT_BITS = 6
# Alternations of the fit; tables of measurements settle within some ten.
_MAX_ALTERNATIONS = 500


@dataclass(frozen=True)
class CostSurface:
    """Milliseconds of one forward pass of the target by number of rows and by ``prefix_len``, from measurements.

    Keys and values of the context are read, and attended to by every row, in each pass: both the cost of a pass and
    the price of one more row grow with the context. ``at`` gives the curve that holds for one context; a
    ``CostCurve`` has the same method, so a planner takes either.

    Args:
        rows: row counts (root included), at least 1, strictly increasing.
        prefix_lens: contexts, in tokens whose keys and values are in the cache, at least 0, strictly increasing.
        ms: milliseconds ``[prefix_lens][rows]``, 1e-9 to 1e12, falling in neither direction. ``CostSurface.fit``
            smooths raw measurements.

    Raises:
        TypeError: a row count or context is not an integer, or a time not a number.
        ValueError: the surface is empty, its sizes disagree, or the values break the rules above.
    """

    rows: tuple[int, ...]
    prefix_lens: tuple[int, ...]
    ms_at: tuple[tuple[float, ...], ...]
    _curves: dict[int, CostCurve] = field(init=False, repr=False, compare=False, hash=False)

    def __init__(
        self, rows: Sequence[int], prefix_lens: Sequence[int], ms: Sequence[Sequence[float]]
    ) -> None:
        contexts = topology.int_tuple(prefix_lens, "prefix_len", "context")
        table = tuple(tuple(as_ms(value) for value in line) for line in ms)
        if not contexts:
            raise ValueError("a cost surface needs at least one context, got none")
        if len(table) != len(contexts):
            raise ValueError(
                f"expected one list of times per context: {len(contexts)} contexts, got {len(table)} lists"
            )
        if contexts[0] < 0:
            raise ValueError(f"contexts must be at least 0 tokens, got {contexts[0]}")
        # one context is a curve, which checks rows and times
        curves = [CostCurve(rows, line) for line in table]
        for (shorter, low), (longer, high) in pairwise(zip(contexts, table, strict=True)):
            if longer <= shorter:
                raise ValueError(f"contexts must increase: {longer} follows {shorter}")
            for count, before, after in zip(curves[0].rows, low, high, strict=True):
                if after < before:
                    raise ValueError(
                        f"cost must not fall as the context grows: {after:g} ms for {count} rows at {longer} tokens "
                        f"follows {before:g} ms at {shorter}; CostSurface.fit smooths measurements"
                    )
        object.__setattr__(self, "rows", curves[0].rows)
        object.__setattr__(self, "prefix_lens", contexts)
        object.__setattr__(self, "ms_at", table)
        object.__setattr__(self, "_curves", {})

    @classmethod
    def fit(cls, rows: Sequence[int], prefix_lens: Sequence[int], ms: Sequence[float]) -> CostSurface:
        """Build from raw measurements ``(rows[i], prefix_lens[i], ms[i])``, in any order, repeated and noisy.

        Repeats are reduced to their median; then the nearest surface that falls in neither direction is taken (least
        squares, by Dykstra's alternating projections: R. L. Dykstra, T. Robertson, Ann. Statist. 10, 1982).

        Raises:
            TypeError, ValueError: as the class; ``ValueError`` also for a pair of row count and context that was not
                measured while others of that row count and of that context were.
        """
        counts = topology.int_tuple(rows, "row count", "point")
        contexts = topology.int_tuple(prefix_lens, "prefix_len", "point")
        times = [as_ms(value) for value in ms]
        if not len(counts) == len(contexts) == len(times):
            raise ValueError(
                f"expected a row count, a context and a time per point, got {len(counts)} row counts, "
                f"{len(contexts)} contexts and {len(times)} times"
            )
        if not times:
            raise ValueError("a cost surface needs at least one measured point, got none")
        by_cell: dict[tuple[int, int], list[float]] = {}
        for count, context, time in zip(counts, contexts, times, strict=True):
            by_cell.setdefault((context, count), []).append(time)
        all_rows, all_contexts = sorted(set(counts)), sorted(set(contexts))
        for context in all_contexts:
            for count in all_rows:
                if (context, count) not in by_cell:
                    raise ValueError(
                        f"every row count must be measured at every context: none for {count} rows at {context} tokens"
                    )
        medians = [[float(np.median(by_cell[c, n])) for n in all_rows] for c in all_contexts]
        return cls(all_rows, all_contexts, _never_falling_table(np.array(medians)).tolist())

    def at(self, prefix_len: int) -> CostCurve:
        """The curve for steps after a context of ``prefix_len`` tokens.

        Interpolated between the measured contexts, and that of the first below it. Beyond the last every row count
        grows by the slope of its last piece (attention is linear in the context, and windowed layers are full long
        before), or by that of a smaller row count where that is steeper, so that cost never falls as rows are added;
        a single context says nothing of growth, and holds everywhere. Beyond the last row count each context goes on
        by its own last slope, so there, and only there, a longer context can come out a little cheaper. For a lookup
        per step, curves are kept and contexts rounded down to six leading bits: at most 1/32 of the context.

        Raises:
            ValueError: below 0.
        """
        step = prefix_len.bit_length() - _CONTEXT_BITS
        context = prefix_len >> step << step if step > 0 else prefix_len
        curve = self._curves.get(context)
        if curve is None:
            curve = self._curves[context] = self._curve(context)
        return curve

    def _curve(self, context: int) -> CostCurve:
        contexts = self.prefix_lens
        if context < 0:
            raise ValueError(f"a context has at least 0 tokens, got {context}")
        right = bisect_right(contexts, context)
        if right == 0 or len(contexts) == 1:
            return CostCurve(self.rows, self.ms_at[0])
        left = min(right, len(contexts) - 1) - 1
        low, high = np.array(self.ms_at[left]), np.array(self.ms_at[left + 1])
        slopes = (high - low) / (contexts[left + 1] - contexts[left])
        if right == len(contexts):
            ms = high + np.maximum.accumulate(slopes) * (context - contexts[-1])
        else:
            ms = low + slopes * (context - contexts[left])
        # interpolation can round two equal times apart
        return CostCurve(self.rows, np.minimum(np.maximum.accumulate(ms), MOST_MS).tolist())

    def plus(self, extra: CostCurve) -> CostSurface:
        """This cost and what ``extra`` says on top, at every context and the row counts of this one."""
        more = [extra.ms(count) for count in self.rows]
        table = [[ms + add for ms, add in zip(line, more, strict=True)] for line in self.ms_at]
        return CostSurface(self.rows, self.prefix_lens, table)

    def to_json(self) -> str:
        """One JSON object with ``rows``, ``prefix_lens`` and ``ms``; ``from_json`` reads it."""
        return json.dumps({"rows": self.rows, "prefix_lens": self.prefix_lens, "ms": self.ms_at})

    @classmethod
    def from_json(cls, text: str) -> CostSurface:
        """Read what ``to_json`` wrote; other keys are ignored.

        Raises:
            TypeError, ValueError: as the class; ``ValueError`` also for text that is no such object.
        """
        cost = cost_from_json(text)
        if isinstance(cost, CostSurface):
            return cost
        raise ValueError('a cost surface must have the list "prefix_lens", got a cost curve')


Cost = CostCurve | CostSurface
"""What a planner takes: both have ``at(prefix_len)`` and ``plus(extra)``."""


def cost_from_json(text: str) -> Cost:
    """Read what ``to_json`` of either class wrote; a surface is known by its ``prefix_lens``.

    Raises:
        TypeError, ValueError: as the classes; ``ValueError`` also for text that is no such object.
    """
    try:
        data = parse_json(text)
    except ValueError as error:
        raise ValueError(f"a cost must be JSON: {error}") from None
    match data:
        case {"rows": [*rows], "prefix_lens": [*prefix_lens], "ms": [*ms]}:
            for line in ms:
                if not isinstance(line, list):
                    raise ValueError(f'"ms" of a cost surface must be a list of lists, got {line!r} in it')
            return CostSurface(rows, prefix_lens, ms)
        case {"rows": [*rows], "ms": [*ms]} if "prefix_lens" not in data:
            return CostCurve(rows, ms)
    raise ValueError(
        'a cost must be a JSON object with the lists "rows" and "ms", and "prefix_lens" for a surface'
    )


def _never_falling_table(table: np.ndarray) -> np.ndarray:
    """The nearest table, in least squares, that falls along neither axis."""
    fitted, along, across = table, np.zeros_like(table), np.zeros_like(table)
    for _ in range(_MAX_ALTERNATIONS):
        before = fitted
        level = np.array([never_falling(line) for line in (fitted + along).tolist()])
        along = fitted + along - level
        fitted = np.array([never_falling(line) for line in (level + across).T.tolist()]).T
        across = level + across - fitted
        if np.abs(fitted - before).max() <= 1e-12 * table.max():
            break
    # what the last alternation left
    return np.maximum.accumulate(np.maximum.accumulate(fitted, axis=0), axis=1)
