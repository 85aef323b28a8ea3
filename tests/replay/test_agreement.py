"""Replay and live runs say the same: same trace, same tree, same accepted counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.tiny import VOCAB
from tests.replay.live import COST, PROMPT, Live, record
from treedecode.engines.request import AUTO_MAX_DRAFTED
from treedecode.replay import walk as walks
from treedecode.replay.strategies import Chain, Dynamic, LeafSiblings, Plain, Recorded, Rerun, StaticOptimal
from treedecode.replay.walk import WHOLE, mean_emitted, walk
from treedecode.testing.drafters import AdversarialDrafter, RandomDrafter

DRAFTERS = ["merged", "recycling", "suffix", "prompt-lookup"]
SAMPLED = {"temperature": 0.8, "top_k": 5, "seed": 4, "repetition_penalty": 1.05}


@pytest.fixture(scope="module")
def live(tmp_path_factory: Any) -> Any:
    """A live run by its settings, made once."""
    made: dict[tuple, Live] = {}
    folder = tmp_path_factory.mktemp("live")

    def live(drafter: str = "merged", budget: int | None = 8, **options: Any) -> Live:
        key = (drafter, budget, *sorted(options.items()))
        if key not in made:
            made[key] = record(folder / f"{len(made)}.jsonl", drafter, budget, **options)
        return made[key]

    return live


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("budget", [1, 12, None])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_recorded_steps(live: Any, drafter: str, budget: int | None, sampling: dict[str, Any]) -> None:
    run = live(drafter, budget, **sampling)
    assert run.recording.output_ids == tuple(run.token_ids)
    assert run.agrees(walk(run.recording, Recorded(), WHOLE))


def test_the_runs_are_worth_replaying(live: Any) -> None:
    counts = {drafter: sum(live(drafter, 12).num_accepted) for drafter in DRAFTERS}
    assert min(counts.values()) > 5, counts


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("budget", [1, 4, 12])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_drafter_that_is_run_again_on_its_own_trace(
    live: Any, drafter: str, budget: int, sampling: dict[str, Any]
) -> None:
    """All rows that it saw live are recorded, so it drafts the same trees. (Sizes by cost follow the clock, live.)"""
    run = live(drafter, budget, **sampling)
    again = Rerun(drafter)
    assert run.agrees(walk(run.recording, again, budget, COST))
    assert again.num_known == again.num_verified == sum(run.num_drafted) + len(run.num_drafted)


@pytest.mark.parametrize("budget", [1, 4, 12])
@pytest.mark.parametrize("drafter", ["suffix", "prompt-lookup"])
@pytest.mark.parametrize("recorded_by", ["merged", "prompt-lookup"])
def test_drafters_that_use_no_rows_agree_on_every_recording(
    live: Any, drafter: str, budget: int, recorded_by: str
) -> None:
    recordings = [live(recorded_by, 48, dense=True).recording, live(recorded_by, 3).recording]
    for recording in recordings:
        assert live(drafter, budget).agrees(walk(recording, Rerun(drafter), budget))


@pytest.mark.parametrize("made", [RandomDrafter(VOCAB), None], ids=["random", "adversarial"])
def test_trees_of_any_form(tmp_path: Path, live: Any, made: Any) -> None:
    drafter = made or AdversarialDrafter(PROMPT + live("merged", 8).token_ids, VOCAB)
    run = record(tmp_path / "t", drafter, 24)
    assert run.agrees(walk(run.recording, Recorded(), WHOLE))


def test_a_stop_token_ends_a_walk_as_live(tmp_path: Path, live: Any) -> None:
    """Inside an accepted run: the walk goes on below it, the counts do not."""
    expected = live("merged", 8).token_ids
    cut = 0
    for stop in dict.fromkeys(expected[30:60]):
        drafter = AdversarialDrafter(PROMPT + expected, VOCAB)
        run = record(tmp_path / "t", drafter, 24, stop_ids=(stop,))
        assert run.agrees(walk(run.recording, Recorded(), WHOLE))
        cut += bool(run.num_accepted) and run.num_accepted[-1] == run.num_emitted[-1]
    assert cut


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_short_outputs(tmp_path: Path, count: int) -> None:
    run = record(tmp_path / "t", "merged", 8, count=count)
    assert run.recording.num_positions == max(0, count - 1)
    assert run.agrees(walk(run.recording, Recorded(), WHOLE))
    assert run.agrees(walk(run.recording, Rerun("merged"), 8))


def test_near_the_longest_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's last position limits the depth of trees, not only the caller's cap."""
    from tests.engines.tiny import target_of

    monkeypatch.setattr(target_of("gemma3", "fused"), "max_positions", len(PROMPT) + 40)
    run = record(tmp_path / "t", "merged", 12, count=100)
    assert len(run.token_ids) == 40 == run.recording.max_emitted
    assert run.agrees(walk(run.recording, Rerun("merged"), 12))


@pytest.mark.parametrize("budget", [4, 12])
@pytest.mark.parametrize("drafter", ["merged", "recycling"])
def test_estimates_are_near_live_runs(live: Any, drafter: str, budget: int) -> None:
    """Trees recorded with the budget of the live run, and a drafter that is run again, also on larger trees."""
    run = live(drafter, budget)
    same, larger = live(drafter, budget, dense=True), live(drafter, None, dense=True)
    assert run.token_ids == same.token_ids == larger.token_ids
    tried = [(same, Dynamic(), 0.1), (same, Rerun(drafter), 0.1), (larger, Rerun(drafter), 0.15)]
    for dense, strategy, bound in tried:
        estimate = mean_emitted([walk(dense.recording, strategy, budget)])
        assert abs(estimate - run.mean_emitted) < bound * run.mean_emitted, (strategy.name, bound, estimate)


def test_every_strategy_emits_the_output(live: Any) -> None:
    recording = live("merged", None, dense=True).recording
    strategies = [Plain(), Chain(), LeafSiblings(3), StaticOptimal([recording]), Dynamic(), Rerun("merged")]
    for strategy in strategies:
        found = walk(recording, strategy, 8)
        assert sum(found.num_emitted) == recording.num_positions
        assert max(found.num_drafted) <= 8


def test_the_widest_tree_of_auto_is_that_of_the_engine() -> None:
    assert walks.AUTO_MAX_DRAFTED == AUTO_MAX_DRAFTED
