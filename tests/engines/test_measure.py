"""Timing of steps: which cells are measured, for how long, on what cache, and what becomes of the times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.engines.fake_target import FakeTarget, linear
from tests.engines.tiny import target_of
from treedecode.engines import measure
from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.measure import check_plain_step, measure_cost, measure_surface
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target, plain_reference
from treedecode.guard import Guard

WIDEST = 49


def test_the_surface_is_what_the_passes_took() -> None:
    target = FakeTarget(linear)
    measured = measure_surface(target, 1000, clock=target.clock)
    surface = measured.surface
    assert surface.prefix_lens == (64, 512, 2048, 8192)
    assert (surface.rows[0], surface.rows[-1]) == (1, WIDEST)
    for context in surface.prefix_lens:
        assert [surface.at(context).ms(n) for n in (1, 7, WIDEST)] == pytest.approx(
            [1e3 * linear(context, n) for n in (1, 7, WIDEST)]
        )
    assert measured.num_repeats == 25  # enough, though there was time for more
    assert measured.spread == pytest.approx(0)


def test_medians_and_never_falling() -> None:
    """A pass in nine is held up, and one cell is measured too low: neither shows."""
    calls = Counter[str]()

    def noisy(context: int, rows: int) -> float:
        calls["all"] += 1
        held_up = 0.5 if calls["all"] % 9 == 0 else 0.0
        low = 0.5 if (context, rows) == (2048, 8) else 1.0
        return linear(context, rows) * low + held_up

    target = FakeTarget(noisy)
    surface = measure_surface(target, 1e6, clock=target.clock).surface  # a falling surface would be refused
    assert surface.at(512).ms(32) == pytest.approx(1e3 * linear(512, 32), rel=0.02)
    assert surface.at(2048).ms(8) > 1e3 * linear(64, 8)


def test_the_time_is_kept() -> None:
    full_round = sum(linear(c, n) for c in measure._CONTEXTS for n in measure._ROWS)
    target = FakeTarget(linear)
    measured = measure_surface(target, 7.5 * full_round, clock=target.clock)
    assert measured.surface.prefix_lens == measure._CONTEXTS
    assert measured.num_repeats == 6  # after one round that warms up
    assert target.now <= 7.5 * full_round + linear(8192, WIDEST)  # a pass that began in time ends
    assert max(target.passes.values()) - min(target.passes.values()) <= 1


def test_long_contexts_are_left_out_where_time_is_short() -> None:
    per_context = {c: sum(linear(c, n) for n in measure._ROWS) for c in measure._CONTEXTS}
    target = FakeTarget(linear)
    seconds = 5 * (per_context[64] + per_context[512] + per_context[2048])
    measured = measure_surface(target, seconds, clock=target.clock)
    assert measured.surface.prefix_lens == (64, 512, 2048)
    assert measured.num_repeats >= 3
    assert target.now <= seconds + 0.1
    assert not any(context == 8192 for context, _ in target.passes)  # not even tried


def test_a_context_found_too_slow_is_left_out() -> None:
    target = FakeTarget(lambda context, rows: 10.0 if context == 2048 else linear(context, rows))
    measured = measure_surface(target, 20, clock=target.clock)
    assert measured.surface.prefix_lens == (64, 512)


def test_a_machine_that_becomes_slower_does_not_lengthen_it() -> None:
    """The time that the warm-up foretold is not kept: contexts that were not timed three times are dropped."""
    per_round = sum(linear(c, n) for c in measure._CONTEXTS for n in measure._ROWS)
    factor = 1.0
    target = FakeTarget(lambda context, rows: factor * linear(context, rows))

    def slower(share: float) -> None:
        nonlocal factor
        factor = 10.0 if share > 0.25 else 1.0

    seconds = 5 * per_round
    measured = measure_surface(target, seconds, slower, target.clock)
    assert measured.surface.prefix_lens == (64,)
    assert measured.num_repeats == 3
    assert target.now < seconds + 10 * 3 * sum(linear(64, n) for n in measure._ROWS)


def test_the_shortest_context_is_always_measured() -> None:
    target = FakeTarget(linear)
    measured = measure_surface(target, 1e-6, clock=target.clock)
    assert measured.surface.prefix_lens == (64,)
    assert measured.num_repeats == 3


@pytest.mark.parametrize(
    ("max_positions", "contexts", "widest"),
    [
        (None, (64, 512, 2048, 8192), WIDEST),
        (8192 + WIDEST, (64, 512, 2048, 8192), WIDEST),
        (8192, (64, 512, 2048, 8192 - WIDEST), WIDEST),
        (2048 + WIDEST + 100, (64, 512, 2048), WIDEST),  # nothing is learned from one that near
        (120, (64,), WIDEST),
        (40, (20,), 20),
        (1, (0,), 1),
    ],
)
def test_positions_that_the_model_has(
    max_positions: int | None, contexts: tuple[int, ...], widest: int
) -> None:
    target = FakeTarget(linear, max_positions)
    surface = measure_surface(target, 1000, clock=target.clock).surface
    assert (surface.prefix_lens, surface.rows[-1]) == (contexts, widest)
    assert max_positions is None or max(map(sum, target.passes)) <= max_positions
    quick = FakeTarget(linear, max_positions)
    measure_cost(quick)
    assert max_positions is None or max(map(sum, quick.passes)) <= max_positions


def test_caches_larger_than_the_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    row_bytes = 4 * (3 * (8 + 8) + 2 * (8 + 4))
    specs = [LayerSpec(3, 8, None), LayerSpec(2, 8, 16, 4)]
    monkeypatch.setattr(measure, "_free_bytes", lambda _device: 4 * row_bytes * (2048 + WIDEST))
    target = FakeTarget(linear, specs=specs)
    assert measure_surface(target, 1000, clock=target.clock).surface.prefix_lens == (64, 512, 2048)
    assert target.caches[0].capacity == 2048 + WIDEST
    monkeypatch.setattr(measure, "_free_bytes", lambda _device: 1)
    assert measure_surface(FakeTarget(linear), 1e-6).surface.prefix_lens == (64,)


class Undecided(FakeTarget):
    """Always goes on with token 5, and takes long to judge a row after any other token than the first."""

    def forward(self, step: StepInput, cache: KVCache, keep_rows: int | None = None) -> torch.Tensor:
        super().forward(step, cache, keep_rows)
        return step.token_ids[:, None].float()

    def top(self, features: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.num_typical:
            self.now += float(((features != 5) & (features != 1)).sum())
        ids = torch.full((len(features), count), 5)
        return torch.zeros(len(features), count), ids


def test_the_vocabulary_head_is_timed_on_text() -> None:
    """A screened head scores many more candidates after noise, which made trees look twice as dear as they are."""
    target = Undecided(linear)
    assert measure_cost(target, target.clock).ms(16) == pytest.approx(1e3 * linear(64, 16))
    surface = measure_surface(target, 1000, clock=target.clock).surface
    assert surface.at(64).ms(16) == pytest.approx(1e3 * linear(64, 16))


@pytest.mark.parametrize("run", [measure_cost, lambda target: measure_surface(target, 1e-6)])
def test_the_cache_is_written_before_it_is_read(run: Callable[[Target], object]) -> None:
    """Fresh zero pages are one page to the processor: the cost of reading a long context would not show."""
    target = FakeTarget(linear)
    run(target)
    keys, values = target.caches[0].layer(0)
    assert (keys != 0).all() and (values != 0).all()


def test_progress_rises_to_one() -> None:
    target = FakeTarget(linear)
    shares: list[float] = []
    measure_surface(target, 3.0, shares.append, target.clock)
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.01 and shares[-1] == 1.0
    assert max(b - a for a, b in pairwise(shares)) < 0.05


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        measure_surface(FakeTarget(linear), seconds)


@pytest.mark.parametrize(("scale", "most_s", "passes"), [(1e-4, 0.1, 36), (1e-2, 3.4, 30), (0.1, 6.3, 6)])
def test_the_quick_measurement_ends_in_time(scale: float, most_s: float, passes: int) -> None:
    """63 rows a round: six rounds, a little under five, and the one round that cannot be left out."""
    target = FakeTarget(lambda _context, rows: scale * rows)
    curve = measure_cost(target, target.clock)
    assert [curve.ms(n) for n in (1, 8, WIDEST)] == pytest.approx([1e3 * scale * n for n in (1, 8, WIDEST)])
    assert target.now <= most_s + 1e-9
    assert target.passes.total() >= passes


def test_the_quick_measurement_is_not_misled_by_other_load() -> None:
    """Half of the passes take twice as long, at random: what is left is the machine's own curve."""
    held_up = np.random.default_rng(0).random(10_000) < 0.5
    calls = iter(held_up)
    target = FakeTarget(lambda context, rows: linear(context, rows) * (2 if next(calls) else 1))
    curve = measure_cost(target, target.clock)
    assert [curve.ms(n) for n in (1, 8, 32)] == pytest.approx([1e3 * linear(64, n) for n in (1, 8, 32)])
    assert 1.0 <= plain_reference(target).scale <= 2.0


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_real_passes(family: str, implementation: str) -> None:
    target = target_of(family, implementation)
    curve = measure_cost(target)
    assert curve.rows[0] == 1 and curve.ms_at[0] > 0
    surface = measure_surface(target, 0.01).surface
    assert surface.rows[0] == 1 and surface.ms_at[0][0] > 0


def test_guards_start_from_the_plain_step_that_was_measured() -> None:
    """No request has to run plain steps first; a saved cost is corrected by what this machine takes now."""
    fresh = FakeTarget(linear)
    cost = measure_cost(fresh, fresh.clock)
    assert plain_reference(fresh).scale == 1.0 and Guard(plain_reference(fresh)).drafts
    slower = FakeTarget(lambda context, rows: 1.5 * linear(context, rows))
    assert not Guard(plain_reference(slower)).drafts
    check_plain_step(slower, cost, slower.clock)
    assert plain_reference(slower).scale == pytest.approx(1.5)
    assert Guard(plain_reference(slower)).drafts
