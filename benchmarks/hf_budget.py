"""Does ``budget="auto"`` find the best size, and never lose to plain decoding? ``python benchmarks/hf_budget.py``.

For every prompt, in turn and in rotating order: plain decoding, fixed budgets and auto, on the default model. That
finds the fixed budget that is best over all prompts of a kind; auto is compared with it in runs of their own, as the
best of several noisy times is too good, until a kind has nine pairs. Two more prompts are hard on drafts: random
tokens, whose continuation nothing predicts, and text sampled at temperature 1.2. Wherever auto is not clearly faster
than plain decoding, both are run again until there are nine pairs. Writes ``benchmarks/results/hf_budget.json``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import treedecode as td
from common import PROMPTS, geomean_interval, load_prompts, median_interval, write_result
from hf_decode import Run, run_ours

FIXED = (4, 8, 16, 32)
NUM_PAIRS = 9
# Below this, one pair does not tell whether auto loses.
CLEARLY_FASTER = 1.15


def hard_prompts(model: td.LoadedModel) -> list[dict[str, Any]]:
    """Prompts on which drafts seldom match."""
    drawn = np.random.default_rng(0).integers(1000, model.target.vocab_size, 64)
    story = "Write a short story about a lighthouse keeper who finds a strange letter in a bottle."
    return [
        {"id": "random", "category": "random tokens", "ids": [2, *drawn.tolist()]},
        {
            "id": "temperature",
            "category": "temperature 1.2",
            "ids": model.tokenizer(story).input_ids,
            "options": {"temperature": 1.2, "seed": 0},
        },
    ]


def decode_ms(run: Run) -> float:
    """Milliseconds per token after the first."""
    return 1e3 / run.tokens_per_s


def measure(model: td.LoadedModel, prompt: dict[str, Any], count: int, turn: int) -> dict[str, Any]:
    """One prompt with every budget, and more pairs of auto and plain where one does not tell."""
    budgets: list[Any] = [0, *FIXED, "auto"]
    options = prompt.get("options", {})

    def run(budget: Any) -> Run:
        return run_ours(model, prompt["ids"], count, budget=budget, **options)

    runs = {budget: run(budget) for budget in budgets[turn % len(budgets) :] + budgets[: turn % len(budgets)]}
    if len(runs[0].token_ids) < 9:
        return {"id": prompt["id"], "category": prompt["category"], "new_tokens": len(runs[0].token_ids)}
    pairs = [(runs[0], runs["auto"])]
    while len(pairs) < NUM_PAIRS and decode_ms(pairs[0][0]) < CLEARLY_FASTER * decode_ms(pairs[0][1]):
        both = {budget: run(budget) for budget in ((0, "auto") if len(pairs) % 2 else ("auto", 0))}
        pairs.append((both[0], both["auto"]))
    stats = runs["auto"].stats
    return {
        "id": prompt["id"],
        "category": prompt["category"],
        "new_tokens": len(runs[0].token_ids),
        "identical": all(other.token_ids == runs[0].token_ids for other in runs.values()),
        "ms_per_token": {str(budget): decode_ms(other) for budget, other in runs.items()},
        "auto_over_plain": median_interval([decode_ms(plain) / decode_ms(auto) for plain, auto in pairs]),
        "whole_call_auto_over_plain": median_interval(
            [plain.total_ms / auto.total_ms for plain, auto in pairs]
        ),
        "mean_emitted_per_step": stats.mean_emitted_per_step,
        "nodes_per_step": stats.nodes_per_step,
        "guard_changes": [(change.step, change.mode, change.reason) for change in stats.guard_changes],
    }


def compare_kinds(
    model: td.LoadedModel, prompts: list[dict[str, Any]], rows: list[dict[str, Any]], count: int
) -> dict[str, Any]:
    """Auto against the fixed budget that was best for each kind of prompt, in pairs of new runs."""
    timed = {row["id"]: row for row in rows if "ms_per_token" in row}
    kinds: dict[str, Any] = {}
    for kind in track(list(dict.fromkeys(row["category"] for row in timed.values())), description="Kinds"):
        members = [prompt for prompt in prompts if prompt["category"] == kind and prompt["id"] in timed]
        times = [timed[prompt["id"]]["ms_per_token"] for prompt in members]
        first = {
            budget: geomean_interval([of_prompt[str(budget)] / of_prompt["auto"] for of_prompt in times])
            for budget in (0, *FIXED)
        }
        best = min(FIXED, key=lambda budget: first[budget]["geomean"])
        ratios: list[float] = []
        for turn in range(-(-NUM_PAIRS // len(members))):
            for prompt in members:
                ms = {
                    budget: decode_ms(
                        run_ours(model, prompt["ids"], count, budget=budget, **prompt.get("options", {}))
                    )
                    for budget in (("auto", best) if turn % 2 else (best, "auto"))
                }
                ratios.append(ms[best] / ms["auto"])
        kinds[kind] = {
            "best_fixed": best,
            "auto_over_best_fixed": median_interval(ratios),
            "first_run_auto_over_fixed": {str(budget): ratio for budget, ratio in first.items()},
        }
    return kinds


def summarise(rows: list[dict[str, Any]], kinds: dict[str, Any]) -> dict[str, Any]:
    """Auto against the best fixed budget by kind, and against plain decoding by prompt; printed as it goes."""
    timed = [row for row in rows if "ms_per_token" in row]
    for kind, found in kinds.items():
        ratio = found["auto_over_best_fixed"]
        print(
            f"{kind:20s} best fixed {found['best_fixed']:2d}, auto / it {ratio['median']:.3f} "
            f"[{ratio['low']:.3f}, {ratio['high']:.3f}]"
        )
    worst = min(timed, key=lambda row: row["auto_over_plain"]["median"])
    print("worst against plain:", worst["id"], worst["auto_over_plain"])
    print("outputs that differ:", [row["id"] for row in timed if not row["identical"]] or "none")
    return {
        "bars": {"auto / best fixed budget, by kind": 0.97, "auto / plain, by prompt": 0.98},
        "kinds": kinds,
        "worst_auto_over_plain": {"id": worst["id"], **worst["auto_over_plain"]},
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, default=None, help="only the first so many prompts of the file")
    args = parser.parse_args()
    model = td.load("default")
    prompts = [
        {**prompt, "ids": model.tokenizer(prompt["turns"][0]).input_ids}
        for prompt in load_prompts(args.prompts)[: args.limit]
    ]
    prompts += hard_prompts(model)
    for options in ({}, {"temperature": 1.2}):  # the first sampled run packs full logits
        run_ours(model, prompts[0]["ids"], 32, **options)
    rows = [
        measure(model, prompt, args.max_new_tokens, turn)
        for turn, prompt in enumerate(track(prompts, description="Prompts"))
    ]
    kinds = compare_kinds(model, prompts, rows, args.max_new_tokens)
    write_result("hf_budget", summarise(rows, kinds))


if __name__ == "__main__":
    main()
