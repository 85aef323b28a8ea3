from __future__ import annotations

import pytest

from treedecode.engines.stats import PHASES, StatsBuilder


def two_steps() -> StatsBuilder:
    """A prompt in two passes, one token from it, then steps of 3 and 4 tokens."""
    stats = StatsBuilder(num_prompt_tokens=9, num_emitted=1, num_prefill_passes=2, prefill_ms=5.0)
    for num_drafted, num_accepted in ((6, 2), (7, 3)):
        stats.begin_step()
        for phase in PHASES:
            stats.end_phase(phase)
        stats.end_step(num_drafted, num_accepted, num_accepted + 1)
    return stats


def test_counts_add_up() -> None:
    stats = two_steps().build(8)
    assert (stats.num_prompt_tokens, stats.num_emitted) == (9, 8)
    assert (stats.num_forward_passes, stats.num_steps) == (4, 2)
    assert (stats.num_drafted, stats.num_accepted) == (13, 5)
    assert (stats.nodes_per_step, stats.emitted_per_step) == ((6, 7), (3, 4))
    assert stats.mean_emitted_per_step == 3.5


def test_times_add_up() -> None:
    builder = two_steps()
    stats = builder.build(8)
    phases = [getattr(stats, f"{phase}_ms") for phase in PHASES]
    assert min(phases) >= 0
    assert sum(phases) == pytest.approx(stats.decode_ms)
    assert stats.total_ms == stats.prefill_ms + stats.decode_ms
    assert stats.tokens_per_s == pytest.approx(7e3 / stats.decode_ms)


@pytest.mark.parametrize("kept", [8, 7, 6, 5])
def test_tokens_after_a_stop_string_do_not_count(kept: int) -> None:
    """CASES 36: the sum over steps is the length of the output, and asking twice changes nothing."""
    builder = two_steps()
    for stats in (builder.build(kept), builder.build(kept)):
        assert stats.num_emitted == 1 + sum(stats.emitted_per_step) == kept
        assert stats.num_accepted == sum(stats.emitted_per_step) - stats.num_steps == kept - 3


def test_without_steps_rates_are_zero() -> None:
    stats = StatsBuilder(num_prompt_tokens=3, num_emitted=1, num_prefill_passes=1).build(1)
    assert stats.mean_emitted_per_step == stats.tokens_per_s == 0.0
    assert stats.num_forward_passes == 1


def test_sizes_are_summed_up() -> None:
    stats = StatsBuilder(num_prompt_tokens=3, num_emitted=1)
    for size in (0, 6, 2, 6, 0, 24):
        stats.begin_step()
        stats.end_step(size, 0, 1)
    built = stats.build(7)
    assert built.steps_by_size == {0: 2, 2: 1, 6: 2, 24: 1}
    assert list(built.steps_by_size) == [0, 2, 6, 24]
    assert built.num_steps_without_tree == 2
    assert built.median_drafted == 4.0
    assert StatsBuilder(3).build(0).median_drafted == 0.0
    assert StatsBuilder(3).build(0).steps_by_size == {}
