"""Tokens per step of the drafters that need no model, by replay; and how far replay's estimates are from live runs.

Every prompt is decoded (1) with ``merged`` and ``recycling`` at every budget, traced: on its own trace a drafter is
replayed exactly, and the other two drafters look at nothing but the text, so they are exact on any recording;
(2) densely, the recording that estimates are made from; (3) with the fixed trees that replay estimates. E[L] and
calibration do not depend on the machine or on its load; no time is reported.

    python benchmarks/replay_drafters.py                      # all prompts, writes results/replay_drafters.json
    python benchmarks/replay_drafters.py --update             # and the errors that `treedecode replay` shows
    python benchmarks/replay_drafters.py --without-estimates  # part (1) alone: a third of the time
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import treedecode as td
from common import PROMPTS, load_prompts, write_result
from treedecode.drafters import make_drafter
from treedecode.drafters.base import DraftContext
from treedecode.reliability import Reliability
from treedecode.replay.gate import interval
from treedecode.replay.recording import Recording, by_ranks
from treedecode.replay.source import read_recordings
from treedecode.replay.strategies import (
    RERUN,
    TEXT_ONLY,
    Chain,
    Dynamic,
    LeafSiblings,
    Recorded,
    Rerun,
    StaticOptimal,
    Strategy,
    leaf_siblings,
)
from treedecode.replay.walk import AUTO_MAX_DRAFTED, WHOLE, Walk, mean_emitted, walk
from treedecode.tree import TreeShape

ERRORS = Path(__file__).parents[1] / "src" / "treedecode" / "replay" / "measured_errors.json"
WIDTH = 3
# Fixed trees are run live at this budget only.
FIXED_BUDGET = 16
MAX_REACH_ERROR = 0.05

# Decodes one prompt, traced, under a name; live runs by drafter and budget, one per prompt.
Run = Callable[..., Recording]
Live = dict[tuple[str, int], list[Recording]]


class Shaped:
    """The merged drafter's candidates at fixed rank paths: what replay takes from recorded trees, live."""

    def __init__(self, name: str, shape: TreeShape) -> None:
        self.name, self._shape, self._inner = name, shape, make_drafter("merged")

    def begin(self, prompt_ids: list[int]) -> None:
        self._inner.begin(prompt_ids)

    def propose(self, context: DraftContext) -> td.DraftTree:
        whole = DraftContext(
            context.token_ids, context.prompt_len, AUTO_MAX_DRAFTED, context.max_depth, context.rows
        )
        return by_ranks(self._inner.propose(whole), self._shape)


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


def compare(recordings: Live, categories: list[str], budgets: list[int]) -> dict[str, Any]:
    """E[L] of all drafters by prompt kind and budget, and whether merged is ahead of each other everywhere."""
    found: dict[str, Any] = {"all": {}}
    ahead = True
    for budget in budgets:
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


def reliability(recordings: Live, budgets: list[int]) -> dict[str, Any]:
    """Said against seen reach of the merged drafter, by budget."""
    found = {}
    for budget in budgets:
        total = Reliability()
        for one in exact(recordings, "merged", budget):
            total.merge(one.reliability)
        found[str(budget)] = {"error": total.error, "curve": [asdict(cell) for cell in total.curve()]}
        print(f"reach of merged at {budget}: reliability error {total.error:.4f} over {total.count} nodes")
    worst = max(cell["error"] for cell in found.values())
    return {"by_budget": found, "worst_error": worst, "under_limit": worst < MAX_REACH_ERROR}


def errors(dense: list[Recording], live: Live, budgets: list[int]) -> dict[str, dict[str, Any]]:
    """Estimates from the dense recordings less live runs, pooled over prompts."""
    found: dict[str, dict[str, Any]] = {}

    def add(strategy: Strategy, budget: int, runs: list[Recording]) -> None:
        estimated = [walk(recording, strategy, budget) for recording in dense]
        real = [walk(run, Recorded(), WHOLE) for run in runs]
        difference = mean_emitted(estimated) - mean_emitted(real)
        low, high = interval(estimated, real) or (None, None)
        cell = {"difference": difference, "low": low, "high": high, "num_runs": len(runs)}
        found.setdefault(strategy.name, {})[str(budget)] = cell
        print(f"{strategy.name:16} {budget:3}  estimate less live {difference:+.3f} [{low}, {high}]")

    for budget in budgets:
        for drafter in ("merged", "recycling"):
            add(Rerun(drafter), budget, live[drafter, budget])
        add(Dynamic(), budget, live["merged", budget])
    for strategy in (Chain(), LeafSiblings(WIDTH), StaticOptimal(dense)):
        add(strategy, FIXED_BUDGET, live[strategy.name, FIXED_BUDGET])
    return found


def run_fixed(run: Run, prompts: list[dict[str, Any]], live: Live) -> list[Recording]:
    """Dense recordings, and live runs of the trees that replay estimates, which are added to ``live``."""
    dense = [run("dense", prompt, dense=True) for prompt in prompts]
    static = StaticOptimal(dense)
    for i, prompt in enumerate(prompts):
        static.begin(dense[i])
        for name, shape in (
            (Chain.name, TreeShape.chain(FIXED_BUDGET)),
            (LeafSiblings(WIDTH).name, leaf_siblings(FIXED_BUDGET, WIDTH)),
            (static.name, static.shape(0, FIXED_BUDGET)),
        ):
            file = f"{name.replace(' ', '-')}-{FIXED_BUDGET}"
            taken = run(file, prompt, drafter=Shaped(name, shape), budget=FIXED_BUDGET)
            live.setdefault((name, FIXED_BUDGET), []).append(taken)
    return dense


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
    parser.add_argument("--without-estimates", action="store_true", help="leave (2) and (3) out")
    parser.add_argument("--update", action="store_true", help=f"write {ERRORS.name} of the package too")
    options = parser.parse_args()
    if options.update and options.without_estimates:
        parser.error("--update writes the errors of estimates, which --without-estimates leaves out")
    prompts = load_prompts(options.prompts)[: options.limit]
    options.traces.mkdir(exist_ok=True)
    budgets = [8, 16, 32]
    model = td.load(options.model)

    def run(name: str, prompt: dict[str, Any], **settings: Any) -> Recording:
        path = options.traces / f"{prompt['id']}.{name}.{options.max_new_tokens}.jsonl"
        return record(model, prompt["turns"][0], path, options.max_new_tokens, **settings)

    live = {
        (drafter, budget): [run(f"{drafter}-{budget}", p, drafter=drafter, budget=budget) for p in prompts]
        for budget in budgets
        for drafter in ("merged", "recycling")
    }
    categories = [prompt["category"] for prompt in prompts]
    result = {
        "num_prompts": len(prompts),
        "max_new_tokens": options.max_new_tokens,
        "drafters": compare(live, categories, budgets),
        "reach": reliability(live, budgets),
        "estimates": None
        if options.without_estimates
        else errors(run_fixed(run, prompts, live), live, budgets),
    }
    print(
        f"merged ahead of every other drafter on every kind: {result['drafters']['merged_ahead_everywhere']}"
    )
    print(f"reliability error under {MAX_REACH_ERROR}: {result['reach']['under_limit']}")
    if options.limit is None:
        write_result("replay_drafters", result)
        if options.update:
            setup = f"{Path(model.path).name}, {len(prompts)} prompts of {options.max_new_tokens} tokens"
            published = {"setup": setup, "errors": result["estimates"]}
            ERRORS.write_text(json.dumps(published, indent=1) + "\n")
            print(f"wrote {ERRORS}")


if __name__ == "__main__":
    main()
