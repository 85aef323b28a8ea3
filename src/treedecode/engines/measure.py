"""What a step costs on this machine: timed forward passes of the real model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch
from torch import Tensor

from treedecode.budget import AUTO_MAX_DRAFTED
from treedecode.calibration import Calibration, Conditions
from treedecode.cost import CostCurve
from treedecode.drafters.base import NUM_CANDIDATES
from treedecode.engines.cache import KVCache
from treedecode.engines.judging_cost import typical_rows
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target, plain_reference
from treedecode.surface import Cost, CostSurface

_QUICK_ROWS = (1, 2, 4, 8, 16, 32)
_QUICK_CONTEXT = 64
_QUICK_REPEATS = 5
_QUICK_SECONDS = 3.0
# Finer where most trees end: the size that pays is read off the slope there.
_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 1 + AUTO_MAX_DRAFTED)
_CONTEXTS = (64, 512, 2048, 8192)
_MIN_REPEATS = 3
_MAX_REPEATS = 25
# Of the memory that is free, for the cache that is measured with; of none known, this many bytes.
_MEMORY_SHARE = 0.25
_UNKNOWN_MEMORY = 2 << 30

Clock = Callable[[], float]


@dataclass(frozen=True)
class Measurement:
    """A measured surface and how sure it is.

    Attributes:
        surface: Fitted to the medians.
        num_repeats: Timed passes of every row count at every context, at least.
        spread: Half the distance between the quartiles of a cell's times as a share of its median; median over cells.
    """

    surface: CostSurface
    num_repeats: int
    spread: float


def measure_cost(target: Target, clock: Clock = time.perf_counter) -> CostCurve:
    """Milliseconds of a step by number of rows at one short context, on this machine as it is now.

    Takes three seconds at most, unless one pass of every row count takes longer. Vocabulary head and candidate search
    included. The least of a few times counts: other load on the machine only adds, to whichever row count it hits.
    For the same reason the curve is the greatest convex one below the times, as a roofline is convex; steps of a
    staircase are found by :func:`measure_surface`, which has the time for it. Guards of requests to this target
    take plain steps as they were here in the median.

    Args:
        target: The model.
        clock: Seconds, for tests.
    """
    rows, (context,) = _fitting(target, _QUICK_ROWS, (_QUICK_CONTEXT,))
    passes = _Passes(target, rows, context, clock)
    deadline = clock() + _QUICK_SECONDS
    # a first pass allocates and compiles: it decides only where there is no time for a second
    times = [[passes.ms(count, context)] for count in rows]
    for done in range(_QUICK_REPEATS * len(rows)):
        if clock() >= deadline:
            break
        times[done % len(rows)].append(passes.ms(rows[done % len(rows)], context))
    least = [min(samples) for samples in times]
    curve = CostCurve.fit_convex(rows, least)
    plain_reference(target).add(statistics.median(times[0][1:] or times[0]) / curve.ms(1))
    return curve


def check_plain_step(target: Target, cost: Cost, clock: Clock = time.perf_counter) -> None:
    """Times a few plain steps, for guards to compare with a cost that was measured at another time.

    Args:
        target: The model.
        cost: As it will be planned with.
        clock: Seconds, for tests.
    """
    _, (context,) = _fitting(target, (1,), (_QUICK_CONTEXT,))
    passes = _Passes(target, (1,), context, clock)
    times = [passes.ms(1, context) for _ in range(1 + _QUICK_REPEATS)]
    plain_reference(target).add(statistics.median(times[1:]) / cost.at(context).ms(1))


def measure_surface(
    target: Target,
    seconds: float,
    progress: Callable[[float], None] | None = None,
    clock: Clock = time.perf_counter,
) -> Measurement:
    """Milliseconds of a step by number of rows and context: the real forward pass, vocabulary head included.

    Row counts and contexts are gone through in rounds, so that a slow moment of the machine falls on all of them, until
    every one was timed 25 times or the time is up. A context is left out where the model allows no such position, its
    cache would take over a quarter of the free memory, or three rounds of it do not fit into the time. Only the
    shortest context is timed three times however long that takes.

    Args:
        target: The model.
        seconds: When to end; above 0.
        progress: Called between passes with the share that is done, 0 to 1.
        clock: Seconds, for tests.

    Raises:
        ValueError: ``seconds`` is not above 0.
    """
    if not seconds > 0:
        raise ValueError(f"the time to measure must be above 0 seconds, got {seconds}")
    began = clock()
    rows, contexts = _fitting(target, _ROWS, _CONTEXTS)
    passes = _Passes(target, rows, contexts[-1], clock)
    tell = progress or (lambda _share: None)

    def left() -> float:
        return seconds - (clock() - began)

    def show(num_rounds: float) -> None:
        tell(min(1.0, max(1 - left() / seconds, num_rounds / _MAX_REPEATS)))

    warmed: list[int] = []
    round_s = context_s = 0.0  # one pass of every row count: at all contexts so far, and at the last of them
    for context in contexts:
        # of two contexts the longer takes no less time
        if warmed and left() < _MIN_REPEATS * round_s + (1 + _MIN_REPEATS) * context_s:
            break
        start = clock()
        for count in rows:
            passes.ms(count, context)
            show(0)
            context_s = clock() - start
            if warmed and left() < _MIN_REPEATS * (round_s + context_s):
                break
        else:
            round_s += context_s
            warmed.append(context)
            continue
        break
    cells = [(context, count) for context in warmed for count in rows]
    times: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    for done in range(_MAX_REPEATS * len(cells)):
        context, count = cells[done % len(cells)]
        if left() <= 0 and (done >= _MIN_REPEATS * len(cells) or context != contexts[0]):
            continue
        times[context, count].append(passes.ms(count, context))
        show((done + 1) / len(cells))
    # the machine may have become slower since the warm-up
    cells = [cell for cell in cells if len(times[cell[0], rows[-1]]) >= _MIN_REPEATS]
    tell(1.0)
    points = [(count, context, statistics.median(times[context, count])) for context, count in cells]
    spread = statistics.median(_spread(times[cell]) for cell in cells)
    num_repeats = min(len(times[cell]) for cell in cells)
    return Measurement(CostSurface.fit(*zip(*points, strict=True)), num_repeats, spread)


def calibrate(
    folder: Path, target: Target, seconds: float, progress: Callable[[float], None] | None = None
) -> Calibration:
    """Measures the target of the model in ``folder`` as :func:`measure_surface`; nothing is saved yet."""
    measured = measure_surface(target, seconds, progress)
    return Calibration(
        conditions_of(folder, target),
        measured.surface,
        datetime.now().astimezone(),
        measured.num_repeats,
        measured.spread,
    )


def conditions_of(folder: Path, target: Target) -> Conditions:
    """Under which a measurement of this target, loaded from ``folder``, holds."""
    return Conditions.here(
        folder, target.device, target.dtype, target.implementation, target.linear_kind, target.head_kind
    )


class _Passes:
    """Times single forward passes over one cache, which they leave as it is."""

    def __init__(self, target: Target, rows: Sequence[int], longest: int, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self._cache = target.new_cache(longest + max(rows))
        # pages that nobody wrote are all the same page of zeros, which would be read from the processor's own cache
        _fill(self._cache)
        self._count = min(NUM_CANDIDATES, target.vocab_size)
        typical = typical_rows(target, self._cache)
        self._typical = typical[torch.arange(max(rows), device=typical.device) % len(typical)]

    def _forward(self, tokens: list[int], context: int) -> Tensor:
        self._cache.length = context
        step = StepInput.of_chain(tokens, context, self._target.device, self._target.dtype)
        return self._target.forward(step, self._cache)

    @torch.inference_mode()
    def ms(self, num_rows: int, context: int) -> float:
        """Milliseconds of one step, from tokens to candidates on the host."""
        tokens = [token % self._target.vocab_size for token in range(1, num_rows + 1)]
        began = self._clock()
        self._forward(tokens, context)
        # the context is noise: what is judged are as many rows of text
        self._target.top(self._typical[:num_rows], self._count)[1].cpu()
        return 1e3 * (self._clock() - began)


def _fill(cache: KVCache) -> None:
    for index in range(len(cache)):
        for tensor in cache.layer(index):
            tensor.uniform_(-1.0, 1.0)


def _fitting(
    target: Target, rows: tuple[int, ...], contexts: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The row counts and contexts that the model's positions and this machine's memory allow; one of each at least."""
    limit = target.max_positions
    if limit is not None:
        rows = tuple(count for count in rows if count <= max(1, limit // 2))
        last = limit - max(rows)  # the longest context that leaves room for the rows
        kept = tuple(context for context in contexts if context <= last)
        if not kept or (last < contexts[-1] and last > 1.25 * kept[-1]):
            kept += (last,)
        contexts = kept
    row_bytes = target.dtype.itemsize * sum(
        spec.num_kv_heads * (spec.head_dim + (spec.value_dim or spec.head_dim)) for spec in target.layer_specs
    )
    room = _MEMORY_SHARE * _free_bytes(target.device)
    return rows, contexts[:1] + tuple(c for c in contexts[1:] if (c + max(rows)) * row_bytes <= room)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    available = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(available.split()[1]) << 10 if available else round(_UNKNOWN_MEMORY / _MEMORY_SHARE)


def _spread(times: list[float]) -> float:
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / 2 / middle
