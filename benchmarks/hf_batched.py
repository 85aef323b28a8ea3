"""Throughput of batches on the default model, side by side in one run: ``python benchmarks/hf_batched.py``.

For every batch size some groups of prompts, and for every group in turn: our trees, our own plain batched decoding
(``budget=0``), and transformers' ``generate`` on the same prompts with left padding, all greedy and float32. Ratios are
taken group by group, whole calls with their prompts; the order rotates from group to group. Every output is compared
with our plain decoding of the prompt alone. Writes ``benchmarks/results/hf_batched.json``.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import AutoModelForCausalLM

import treedecode as td
from common import PROMPTS, load_prompts, median_interval, write_result
from hf_decode import near_tie_or_equal

BARS = {"1": 2.0, "4": 1.3, "16": 0.98}


@dataclass(frozen=True)
class Run:
    """One batch: outputs and milliseconds, of the whole call and of its prompts."""

    token_ids: list[list[int]]
    total_ms: float
    prefill_ms: float = 0.0
    num_drafted: int = 0
    num_steps: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens over the time of the whole call."""
        return 1e3 * sum(map(len, self.token_ids)) / self.total_ms


def run_ours(model: td.LoadedModel, prompts: list[list[int]], count: int, **options: Any) -> Run:
    began = time.perf_counter()
    outputs = td.generate(model, prompts, batch_size=len(prompts), max_new_tokens=count, **options)
    total_ms = 1e3 * (time.perf_counter() - began)
    stats = [output.stats for output in outputs]
    return Run(
        [output.token_ids for output in outputs],
        total_ms,
        sum(one.prefill_ms for one in stats),
        sum(one.num_drafted for one in stats),
        max(one.num_steps for one in stats),
    )


def run_transformers(model: Any, stops: frozenset[int], prompts: list[list[int]], count: int) -> Run:
    width, pad = max(map(len, prompts)), model.generation_config.pad_token_id
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    began = time.perf_counter()
    output = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)
    total_ms = 1e3 * (time.perf_counter() - began)
    return Run([until_stop(row, stops) for row in output[:, width:].tolist()], total_ms)


def until_stop(token_ids: list[int], stops: frozenset[int]) -> list[int]:
    """The tokens up to the first stop token, which belongs to them."""
    ends = next((i + 1 for i, token in enumerate(token_ids) if token in stops), len(token_ids))
    return token_ids[:ends]


def groups_of(prompts: list[list[int]], size: int, count: int) -> list[list[list[int]]]:
    """``count`` groups of ``size`` prompts, each prompt used about as often as the others."""
    rng, queue, groups = random.Random(0), [], []
    while len(groups) < count:
        while len(queue) < size:
            queue += rng.sample(prompts, len(prompts))
        groups.append(queue[:size])
        queue = queue[size:]
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--groups", type=int, default=12, help="groups of prompts per batch size")
    parser.add_argument("--model", default="default")
    args = parser.parse_args()

    ours = td.load(args.model)
    theirs = AutoModelForCausalLM.from_pretrained(ours.path, dtype=torch.float32).eval()
    theirs.generation_config.pad_token_id = 0
    count, stops = args.max_new_tokens, ours.eos_token_ids
    systems: dict[str, Callable[[list[list[int]]], Run]] = {
        "trees": lambda group: run_ours(ours, group, count),
        "plain": lambda group: run_ours(ours, group, count, budget=0),
        "transformers": lambda group: run_transformers(theirs, stops, group, count),
    }
    prompts = [ours.tokenizer(prompt["turns"][0]).input_ids for prompt in load_prompts(args.prompts)]
    alone = {tuple(ids): run_ours(ours, [ids], count, budget=0).token_ids[0] for ids in prompts}
    results = {}
    for size in args.batches:
        groups = groups_of(prompts, size, args.groups)
        for run in systems.values():
            run(groups[-1])  # kernels are made, and guards learn what plain steps of this size take
        rows = []
        for index, group in enumerate(track(groups, description=f"Batches of {size}")):
            names = list(systems)
            order = names[index % len(names) :] + names[: index % len(names)]
            runs = {name: systems[name](group) for name in order}
            rows.append(
                {
                    "prompt_tokens": [len(ids) for ids in group],
                    "tokens": {name: sum(map(len, run.token_ids)) for name, run in runs.items()},
                    "verdicts": {
                        name: [
                            near_tie_or_equal(theirs, ids, got, alone[tuple(ids)])
                            for ids, got in zip(group, run.token_ids, strict=True)
                        ]
                        for name, run in runs.items()
                    },
                    "tokens_per_s": {name: run.tokens_per_s for name, run in runs.items()},
                    "total_ms": {name: run.total_ms for name, run in runs.items()},
                    "prefill_ms": {name: runs[name].prefill_ms for name in ("trees", "plain")},
                    "num_steps": {name: runs[name].num_steps for name in ("trees", "plain")},
                    "num_drafted": runs["trees"].num_drafted,
                }
            )
        results[str(size)] = summarise(size, rows)
        # after every size: the large ones take long
        write_result("hf_batched", {"bars": BARS, "batches": results})


def summarise(size: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Throughputs and their ratios for one batch size; printed as it goes."""
    speeds = [row["tokens_per_s"] for row in rows]
    decode_ms = [
        {name: row["total_ms"][name] - row["prefill_ms"][name] for name in ("trees", "plain")} for row in rows
    ]
    result = {
        "trees / plain": median_interval([s["trees"] / s["plain"] for s in speeds]),
        "trees / plain, prompts apart": median_interval([ms["plain"] / ms["trees"] for ms in decode_ms]),
        "trees / transformers": median_interval([s["trees"] / s["transformers"] for s in speeds]),
        "plain / transformers": median_interval([s["plain"] / s["transformers"] for s in speeds]),
        "tokens_per_s": {name: median_interval([s[name] for s in speeds]) for name in speeds[0]},
        "worst trees / plain": min(s["trees"] / s["plain"] for s in speeds),
    }
    verdicts = [verdict for row in rows for of_run in row["verdicts"].values() for verdict in of_run]
    result["verdicts"] = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
    for name, value in result.items():
        print(size, name, value)
    return result | {"rows": rows}


if __name__ == "__main__":
    main()
