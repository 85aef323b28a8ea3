"""What a whole replay says: results, verdict, errors against live runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.replay.live import COST, PROMPT, record
from tests.replay.made import MADE, dense
from treedecode.cost import CostCurve
from treedecode.replay import errors
from treedecode.replay.costs import StepCost
from treedecode.replay.data import select
from treedecode.replay.gate import decide, interval
from treedecode.replay.results import Replay
from treedecode.replay.run import replay
from treedecode.replay.strategies import Chain, Dynamic, LeafSiblings, Plain, Rerun, StaticOptimal
from treedecode.replay.walk import walk

FLAT = StepCost(CostCurve([1, 1000], [10.0, 10.0]), 0.0, "flat")
STEEP = StepCost(CostCurve([1, 2], [10.0, 20.0]), 0.0, "steep")

# The best candidate is always wrong, its runner-up right.
OUTPUT = list(range(1, 42))
RESCUED = dense(OUTPUT, [[[50, t + 1]] for t in range(1, 41)], prompt_ids=(60, 61))


def found(recordings: Any, cost: StepCost = FLAT, budgets: Any = (2, 4, "auto"), **options: Any) -> Replay:
    return replay(select(recordings), budgets, cost, **options)


def of(replayed: Replay, strategy: str, budget: Any) -> Any:
    (result,) = [r for r in replayed.results if (r.strategy, r.budget) == (strategy, budget)]
    return result


def test_go_and_its_margin() -> None:
    """Leaf siblings emit 2 tokens a step, the chain 1."""
    result = found([RESCUED], width=2)
    verdict = result.verdict
    assert verdict is not None and verdict.go
    assert verdict.tree == of(result, "leaf siblings 2", 2)
    assert (verdict.tree.mean_emitted, of(result, "chain", 2).mean_emitted) == (2.0, 1.0)
    assert (verdict.gain, verdict.margin, verdict.speed_ratio) == pytest.approx((1.0, 0.7, 2.0))
    assert verdict.chain is not None and (verdict.chain.kind, verdict.chain.budget) == ("chain", 2)


def test_no_go_below_the_gate() -> None:
    verdict = found([RESCUED], width=2, gate=5.0).verdict
    assert verdict is not None and not verdict.go
    assert verdict.margin < 0


def test_no_go_where_rows_are_dear() -> None:
    """The gain is as large as before, but no tree is faster than plain decoding."""
    verdict = found([RESCUED], cost=STEEP, width=2).verdict
    assert verdict is not None and not verdict.go
    assert verdict.fastest_other.tokens_per_s >= verdict.tree.tokens_per_s


def test_speed_counts_drafting() -> None:
    """Plain decoding does not draft."""
    slow = found([RESCUED], cost=replace(FLAT, draft_ms=10.0))
    assert of(slow, "plain", 0).tokens_per_s == pytest.approx(100.0)
    fast = found([RESCUED])
    assert of(slow, "chain", 2).tokens_per_s == pytest.approx(of(fast, "chain", 2).tokens_per_s / 2)


def test_a_result_counts_all_recordings() -> None:
    result = of(found([RESCUED, MADE]), "chain", 2)
    walks = [walk(recording, Chain(), 2) for recording in (RESCUED, MADE)]
    assert result.num_emitted == 45 == sum(sum(one.num_emitted) for one in walks)
    assert result.num_steps == sum(one.num_steps for one in walks)
    assert result.mean_emitted == 45 / result.num_steps
    assert result.interval is None
    three = of(found([RESCUED, MADE, RESCUED]), "chain", 2)
    assert three.interval[0] <= three.mean_emitted <= three.interval[1]


def test_intervals_are_of_the_recordings() -> None:
    """Equal recordings leave no doubt; the difference to itself is nothing."""
    walks = [walk(RESCUED, Chain(), 2)] * 3
    low, high = interval(walks) or (0.0, 0.0)
    assert low == pytest.approx(high)
    mixed = [*walks, walk(RESCUED, Plain(), 0)]
    assert interval(mixed, mixed) == (0.0, 0.0)
    assert interval(walks[:2]) is None


@pytest.fixture
def traces(tmp_path: Path) -> Any:
    """A dense recording and two live ones of the same output."""

    def made(name: str, *args: Any, **options: Any) -> Any:
        return record(tmp_path / name, *args, count=60, **options).recording

    return {
        "dense": made("dense", "merged", 16, dense=True),
        "merged": made("merged", "merged", 8),
        "lookup": made("lookup", "prompt-lookup", 8),
    }


def test_estimates_are_compared_with_live_runs(traces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_published", lambda: {"setup": "", "errors": {}})
    result = found(list(traces.values()), StepCost(COST, 0.5, "tiny"), budgets=[8, 16])
    again = of(result, "merged", 8)
    live = len(traces["merged"].output_ids) - 1
    assert again.basis == "estimate" and again.rows_known > 0.5
    assert again.error.difference == pytest.approx(again.mean_emitted - live / len(traces["merged"].trees))
    assert (again.error.num_runs, again.error.setup) == (1, "these recordings")
    assert of(result, "dynamic", 8).error.num_runs == 1
    assert of(result, "merged", 16).error is None
    # no rows are used, so nothing is estimated
    assert of(result, "prompt-lookup", 8).basis == "exact"
    assert of(result, "prompt-lookup", 8).num_steps == len(traces["lookup"].trees)
    # the drafter run again is the better estimate of dynamic trees
    assert result.verdict is not None and result.verdict.tree.strategy != "dynamic"


def test_published_errors_are_shown(traces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    published = {"setup": "elsewhere", "errors": {"chain": {"8": {"difference": -0.04, "num_runs": 24}}}}
    monkeypatch.setattr(errors, "_published", lambda: published)
    result = found([traces["dense"]], StepCost(COST, 0.5, "tiny"), budgets=[8])
    assert of(result, "chain", 8).error == errors.EstimateError(-0.04, 24, "elsewhere")


@pytest.mark.parametrize("budget", [8, 16, 32])
@pytest.mark.parametrize(
    "strategy",
    [Chain(), LeafSiblings(3), StaticOptimal([RESCUED]), Dynamic(), Rerun("merged"), Rerun("recycling")],
)
def test_what_is_published(strategy: Any, budget: int) -> None:
    """``benchmarks/replay_estimates.py`` runs fixed trees at 16 nodes only."""
    error = errors.published_error(strategy, budget)
    if budget != 16 and not isinstance(strategy, Dynamic | Rerun):
        assert error is None
        return
    assert error is not None and abs(error.difference) < 1.5 and error.num_runs >= 9
    assert "prompts of 128 tokens" in error.setup


def test_without_dense_recordings(traces: Any) -> None:
    result = found([traces["merged"]], StepCost(COST, 0.5, "tiny"), budgets=[8])
    assert of(result, "as recorded", 8).basis == of(result, "merged", 8).basis == "exact"
    assert (
        of(result, "as recorded", 8).num_steps
        == of(result, "merged", 8).num_steps
        == len(traces["merged"].trees)
    )
    assert of(result, "recycling", 8).basis == "estimate"
    assert result.rescue is None
    assert "--dense" in result.notes[0]


def test_budgets_beyond_the_recorded_trees(traces: Any) -> None:
    result = found([traces["dense"]], StepCost(COST, 0.5, "tiny"), budgets=[16, 17])
    assert {r.strategy for r in result.results if r.budget == 17} == {
        "prompt-lookup",
        "suffix",
        "recycling",
        "merged",
    }
    assert "at most 16 drafted nodes" in result.notes[0]


def test_a_trace_of_plain_decoding(tmp_path: Path) -> None:
    run = record(tmp_path / "t", "merged", 0, count=60, prompt=PROMPT)
    result = found([run.recording], StepCost(COST, 0.5, "tiny"), budgets=[8])
    assert "as recorded" not in {r.strategy for r in result.results}
    assert of(result, "suffix", 8).basis == "exact"


def test_no_tree_no_verdict() -> None:
    assert decide([], 0.3) is None
