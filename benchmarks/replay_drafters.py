"""Tokens per step of the drafters that need no model, by replay.

Every prompt is decoded with ``merged`` and ``recycling`` at every budget, traced: on its own trace a drafter is
replayed exactly, and the other two drafters look at nothing but the text, so they are exact on any recording. E[L] and
calibration do not depend on the machine or on its load; no time is reported. ``replay_estimates.py`` measures what
replay only estimates.

    python benchmarks/replay_drafters.py   # writes results/replay_drafters.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import treedecode as td
from common import PROMPTS, load_prompts, write_result
from treedecode.reliability import Reliability
from treedecode.replay.gate import interval
from treedecode.replay.recording import Recording
from treedecode.replay.source import read_recordings
from treedecode.replay.strategies import (
    RERUN,
    TEXT_ONLY,
    Recorded,
    Rerun,
)
from treedecode.replay.walk import WHOLE, Walk, mean_emitted, walk

BUDGETS = (8, 16, 32)
MAX_REACH_ERROR = 0.05

# Decodes one prompt, traced, under a name; live runs by drafter and budget, one per prompt.
Run = Callable[..., Recording]
Live = dict[tuple[str, int], list[Recording]]


def record(model: td.LoadedModel, prompt: str, path: Path, count: int, **options: Any) -> Recording:
    """Decodes one prompt into a trace, unless a whole one is there, and reads it."""
    if not path.exists():
        part = path.with_suffix(".part")
        with td.TraceWriter(part) as trace:
            for _ in td.stream(model, prompt, max_new_tokens=count, trace=trace, **options):
                pass
        part.rename(path)
        print(path.name, flush=True)
    (recording,) = read_recordings([path])
    return recording


def recorder(model: td.LoadedModel, folder: Path, count: int) -> Run:
    """What records prompts into ``folder``, or reads what is there."""
    folder.mkdir(exist_ok=True)

    def run(name: str, prompt: dict[str, Any], **options: Any) -> Recording:
        path = folder / f"{prompt['id']}.{name}.{count}.jsonl"
        return record(model, prompt["turns"][0], path, count, **options)

    return run


def record_live(run: Run, prompts: Sequence[dict[str, Any]]) -> Live:
    """Runs of the drafters that look at rows, at every budget.

    Raises:
        ValueError: A trace that was there already is of another version of the drafter: replay does not agree with it.
    """
    live: Live = {}
    for budget in BUDGETS:
        for drafter in ("merged", "recycling"):
            name = f"{drafter}-{budget}"
            runs = [run(name, prompt, drafter=drafter, budget=budget) for prompt in prompts]
            for one in runs:
                if walk(one, Rerun(drafter), budget) != walk(one, Recorded(), WHOLE):
                    raise ValueError(
                        f"{one.name} does not replay as it was recorded: delete it to record it anew"
                    )
            live[drafter, budget] = runs
    return live


def exact(recordings: Live, drafter: str, budget: int) -> list[Walk]:
    """A drafter run again where that gives exactly the live counts."""
    own = ("merged" if drafter in TEXT_ONLY else drafter, budget)
    return [walk(recording, Rerun(drafter), budget) for recording in recordings[own]]


def summary(walks: Sequence[Walk]) -> dict[str, Any]:
    """E[L] with its interval over prompts and its number of steps."""
    return {
        "mean_emitted": mean_emitted(walks),
        "interval": interval(walks),
        "num_steps": sum(one.num_steps for one in walks),
        "mean_drafted": sum(sum(one.num_drafted) for one in walks) / sum(one.num_steps for one in walks),
    }


def compare(recordings: Live, categories: list[str]) -> dict[str, Any]:
    """E[L] of all drafters by prompt kind and budget, and whether merged is ahead of each other everywhere."""
    found: dict[str, Any] = {"all": {}}
    ahead = True
    for budget in BUDGETS:
        walks = {drafter: exact(recordings, drafter, budget) for drafter in RERUN}
        found["all"][str(budget)] = {drafter: summary(taken) for drafter, taken in walks.items()}
        for category in dict.fromkeys(categories):
            places = [i for i, name in enumerate(categories) if name == category]
            row = {drafter: summary([taken[i] for i in places]) for drafter, taken in walks.items()}
            best_other = max(row[drafter]["mean_emitted"] for drafter in RERUN if drafter != "merged")
            row["merged_ahead_by"] = row["merged"]["mean_emitted"] - best_other
            found.setdefault(category, {})[str(budget)] = row
            ahead = ahead and row["merged_ahead_by"] > 0
            numbers = "  ".join(f"{drafter} {row[drafter]['mean_emitted']:.2f}" for drafter in RERUN)
            print(f"{category:12} {budget:3}  {numbers}  merged ahead by {row['merged_ahead_by']:+.2f}")
    return {"by_kind": found, "merged_ahead_everywhere": ahead}


def reliability(recordings: Live) -> dict[str, Any]:
    """Said against seen reach of the merged drafter, by budget."""
    found = {}
    for budget in BUDGETS:
        total = Reliability()
        for one in exact(recordings, "merged", budget):
            total.merge(one.reliability)
        found[str(budget)] = {"error": total.error, "curve": [asdict(cell) for cell in total.curve()]}
        print(f"reach of merged at {budget}: reliability error {total.error:.4f} over {total.count} nodes")
    worst = max(cell["error"] for cell in found.values())
    return {"by_budget": found, "worst_error": worst, "under_limit": worst < MAX_REACH_ERROR}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, help="only so many prompts; writes no result")
    parser.add_argument(
        "--traces", type=Path, default=Path("replay-traces"), help="kept here, and used again"
    )
    options = parser.parse_args()
    prompts = load_prompts(options.prompts)[: options.limit]
    model = td.load(options.model)

    run = recorder(model, options.traces, options.max_new_tokens)
    live = record_live(run, prompts)
    categories = [prompt["category"] for prompt in prompts]
    result = {
        "num_prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "drafters": compare(live, categories),
        "reach": reliability(live),
    }
    print(
        f"merged ahead of every other drafter on every kind: {result['drafters']['merged_ahead_everywhere']}"
    )
    print(f"reliability error under {MAX_REACH_ERROR}: {result['reach']['under_limit']}")
    if options.limit is None:
        write_result("replay_drafters", result)


if __name__ == "__main__":
    main()
