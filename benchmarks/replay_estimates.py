"""How far replay's estimates are from live runs: the errors that ``treedecode replay`` states.

Accepted counts of greedy decoding depend on neither machine nor load, so a few prompts tell: one of every kind, decoded

(1) live, traced, with ``merged`` and ``recycling`` at every budget, and with the fixed trees that replay estimates;
(2) densely, the recording that estimates are made from.

The difference in E[L] is pooled over prompts, with a bootstrap interval over them. Traces that ``replay_drafters.py``
or an earlier run left in the folder are used again, if the drafters of today agree with them step by step.

    python benchmarks/replay_estimates.py            # writes results/replay_estimates.json; some ten minutes
    python benchmarks/replay_estimates.py --update   # and what `treedecode replay` shows
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import treedecode as td
from common import PROMPTS, load_prompts, write_result
from replay_drafters import BUDGETS, Live, Run, record_live, recorder
from treedecode.drafters import make_drafter
from treedecode.drafters.base import DraftContext
from treedecode.replay.gate import interval
from treedecode.replay.recording import Recording, by_ranks
from treedecode.replay.strategies import (
    Chain,
    Dynamic,
    LeafSiblings,
    Recorded,
    Rerun,
    StaticOptimal,
    Strategy,
    leaf_siblings,
)
from treedecode.replay.walk import AUTO_MAX_DRAFTED, WHOLE, mean_emitted, walk
from treedecode.tree import TreeShape

ERRORS = Path(__file__).parents[1] / "src" / "treedecode" / "replay" / "measured_errors.json"
WIDTH = 3
# Fixed trees are run live at this budget only.
FIXED_BUDGET = 16


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


def errors(dense: list[Recording], live: Live) -> dict[str, dict[str, Any]]:
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

    for budget in BUDGETS:
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


def first_of_kinds(prompts: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The first ``count`` prompts of every category, in the order of the file."""
    kept: dict[str, list[dict[str, Any]]] = {}
    for prompt in prompts:
        kept.setdefault(prompt["category"], []).append(prompt)
    return [prompt for of_kind in kept.values() for prompt in of_kind[:count]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--per-kind", type=int, default=1, help="prompts of every category")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument(
        "--traces", type=Path, default=Path("replay-traces"), help="kept here, and used again"
    )
    parser.add_argument("--update", action="store_true", help=f"write {ERRORS.name} of the package too")
    options = parser.parse_args()
    prompts = first_of_kinds(load_prompts(options.prompts), options.per_kind)
    model = td.load(options.model)
    run = recorder(model, options.traces, options.max_new_tokens)
    live = record_live(run, prompts)
    dense = run_fixed(run, prompts, live)
    result = {
        "prompts": [prompt["id"] for prompt in prompts],
        "max_new_tokens": options.max_new_tokens,
        "recorded": "dense traces of the merged drafter with automatic budget",
        "num_same_output": sum(
            one.output_ids == runs[place].output_ids
            for place, one in enumerate(dense)
            for runs in live.values()
        ),
        "num_live": sum(len(runs) for runs in live.values()),
        "errors": errors(dense, live),
    }
    write_result("replay_estimates", result)
    if options.update:
        setup = f"{Path(model.path).name}, {len(prompts)} prompts of {options.max_new_tokens} tokens"
        ERRORS.write_text(json.dumps({"setup": setup, "errors": result["errors"]}, indent=1) + "\n")
        print(f"wrote {ERRORS}")


if __name__ == "__main__":
    main()
