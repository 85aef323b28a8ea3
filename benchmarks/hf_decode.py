"""Decode speed on the default model, side by side in one run: ``python benchmarks/hf_decode.py``.

For every prompt, in turn: transformers ``generate``, transformers with prompt lookup, our plain decoding, our best
chains and our trees, all greedy and float32. Ratios are taken prompt by prompt; the order rotates from prompt to
prompt. Every output is compared with transformers' own. Writes ``benchmarks/results/hf_decode.json``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from transformers import AutoModelForCausalLM, GenerationMixin
from transformers.generation.streamers import BaseStreamer

import treedecode as td
from common import PROMPTS, geomean_interval, load_prompts, median_interval, repeated_share, write_result
from treedecode.drafters import DraftContext, Drafter, make_drafter
from treedecode.tree import DraftTree

# A near-tie passes if the plain model's own logits of the two tokens are closer than this (float32).
NEAR_TIE = 1e-4
BARS = {
    "trees / transformers": 3.8,
    "trees / transformers prompt lookup": 2.4,
    "plain / transformers": 1.6,
    "trees / plain": 2.1,
    "trees / best chain": 1.10,
}


@dataclass(frozen=True)
class Run:
    """One generation: tokens and times in milliseconds."""

    token_ids: list[int]
    first_ms: float
    total_ms: float
    stats: Any = None

    @property
    def tokens_per_s(self) -> float:
        """Decode speed: tokens after the first over the time after the first."""
        return 1e3 * (len(self.token_ids) - 1) / (self.total_ms - self.first_ms)


class Spine:
    """The chain of another drafter: from every node only its best child."""

    def __init__(self, inner: Drafter) -> None:
        self.name, self._inner = f"{inner.name} chain", inner

    def begin(self, prompt_ids: list[int]) -> None:
        self._inner.begin(prompt_ids)

    def propose(self, context: DraftContext) -> DraftTree:
        tree = self._inner.propose(context)
        nodes = [0]
        while children := tree.shape.children(nodes[-1]):
            nodes.append(children[0])  # siblings stand in score order
        return tree.along(nodes)


class Clock(BaseStreamer):
    """Notes when transformers hands out its first token."""

    def __init__(self) -> None:
        self.calls = 0
        self.first = 0.0

    def put(self, value: torch.Tensor) -> None:
        self.calls += 1
        if self.calls == 2:  # the first call hands out the prompt
            self.first = time.perf_counter()

    def end(self) -> None:
        """Nothing to close."""


def run_transformers(model: GenerationMixin, prompt: list[int], count: int, **options: Any) -> Run:
    clock, began = Clock(), time.perf_counter()
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, do_sample=False, streamer=clock, **options
    )
    ended = time.perf_counter()
    return Run(output[0, len(prompt) :].tolist(), 1e3 * (clock.first - began), 1e3 * (ended - began))


def run_ours(model: td.LoadedModel, prompt: list[int], count: int, **options: Any) -> Run:
    began, first, token_ids = time.perf_counter(), 0.0, []
    stream = td.stream(model, prompt, max_new_tokens=count, **options)
    for chunk in stream:
        first = first or time.perf_counter()
        token_ids += chunk.token_ids
    ended = time.perf_counter()
    return Run(token_ids, 1e3 * (first - began), 1e3 * (ended - began), stream.generation.stats)


def near_tie_or_equal(model: Any, prompt: list[int], got: list[int], expected: list[int]) -> str:
    """ "identical", "near-tie" or "different"."""
    if got == expected:
        return "identical"
    ids = torch.tensor([prompt + got])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
    gap = (logits.max(-1).values - logits.gather(1, torch.tensor(got)[:, None])[:, 0]).max().item()
    return "near-tie" if gap < NEAR_TIE else "different"


def weight_read_ms(model: torch.nn.Module) -> float:
    """Time to read every weight once: the floor of a one-row step."""
    weights = [p.detach() for p in {p.data_ptr(): p for p in model.parameters()}.values()]
    times = []
    for _ in range(9):
        began = time.perf_counter()
        for weight in weights:
            weight.sum()
        times.append(1e3 * (time.perf_counter() - began))
    return sorted(times)[4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, default=None, help="only the first so many prompts")
    parser.add_argument("--model", default="default")
    args = parser.parse_args()

    ours = td.load(args.model)
    theirs = AutoModelForCausalLM.from_pretrained(ours.path, dtype=torch.float32).eval()
    theirs.generation_config.pad_token_id = 0
    count = args.max_new_tokens
    systems: dict[str, Callable[[list[int]], Run]] = {
        "transformers": lambda p: run_transformers(theirs, p, count),
        "transformers prompt lookup": lambda p: run_transformers(
            theirs, p, count, prompt_lookup_num_tokens=10
        ),
        "plain": lambda p: run_ours(ours, p, count, budget=0),
        "chain prompt-lookup": lambda p: run_ours(ours, p, count, drafter="prompt-lookup"),
        "chain suffix": lambda p: run_ours(ours, p, count, drafter=Spine(make_drafter("suffix"))),
        "trees": lambda p: run_ours(ours, p, count),
    }
    prompts = load_prompts(args.prompts)[: args.limit]
    warm = ours.tokenizer("Once upon a time").input_ids
    for run in systems.values():
        run(warm)

    rows, reads = [], []
    names = list(systems)
    for index, prompt in enumerate(track(prompts, description="Prompts")):
        ids = ours.tokenizer(prompt["turns"][0]).input_ids
        order = names[index % len(names) :] + names[: index % len(names)]
        runs = {name: systems[name](ids) for name in order}
        reads.append(weight_read_ms(theirs))
        expected = runs["transformers"].token_ids
        rows.append(
            {
                "id": prompt["id"],
                "category": prompt["category"],
                "prompt_tokens": len(ids),
                "new_tokens": len(expected),
                "repeated_4gram_share": round(repeated_share(expected), 3),
                "verdict": {
                    name: near_tie_or_equal(theirs, ids, run.token_ids, expected)
                    for name, run in runs.items()
                },
                "tokens_per_s": {
                    name: run.tokens_per_s for name, run in runs.items() if len(run.token_ids) > 1
                },
                "first_token_ms": {name: run.first_ms for name, run in runs.items()},
                "total_ms": {name: run.total_ms for name, run in runs.items()},
                "weight_read_ms": reads[-1],
                "mean_emitted_per_step": {
                    name: run.stats.mean_emitted_per_step for name, run in runs.items() if run.stats
                },
                "nodes_per_step": runs["trees"].stats.nodes_per_step,
                "phase_ms": {
                    phase: getattr(runs["trees"].stats, f"{phase}_ms")
                    for phase in ("draft", "prepare", "forward", "head", "commit")
                },
            }
        )
    write_result("hf_decode", summarise(rows))


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All ratios over all prompts, per kind, and for looping outputs apart; printed as it goes."""
    timed = [row for row in rows if row["new_tokens"] > 8]
    chains = ("chain prompt-lookup", "chain suffix")
    # the best tuned chain is the one that is best over the whole set, not prompt by prompt
    best = max(chains, key=lambda name: geomean_interval([r["tokens_per_s"][name] for r in timed])["geomean"])
    pairs = {
        "trees / transformers": ("trees", "transformers"),
        "trees / transformers prompt lookup": ("trees", "transformers prompt lookup"),
        "plain / transformers": ("plain", "transformers"),
        "trees / plain": ("trees", "plain"),
        "trees / best chain": ("trees", best),
    }
    groups: dict[str, list[dict[str, Any]]] = {"all": timed}
    for row in timed:
        groups.setdefault(f"kind: {row['category']}", []).append(row)
    groups["repeated 4-gram share above 0.5"] = [r for r in timed if r["repeated_4gram_share"] > 0.5]
    groups["repeated 4-gram share at most 0.5"] = [r for r in timed if r["repeated_4gram_share"] <= 0.5]
    ratios = {
        group: {
            name: geomean_interval([r["tokens_per_s"][a] / r["tokens_per_s"][b] for r in members])
            for name, (a, b) in pairs.items()
        }
        for group, members in groups.items()
        if members
    }
    phases = {name: sum(row["phase_ms"][name] for row in timed) for name in timed[0]["phase_ms"]}
    overhead = 1 - (phases["forward"] + phases["head"]) / sum(phases.values())
    plain_ms = median_interval([1e3 / row["tokens_per_s"]["plain"] for row in timed])
    read_ms = median_interval([row["weight_read_ms"] for row in timed])
    result = {
        "bars": BARS,
        "best_chain": best,
        "ratios": ratios,
        "plain_ms_per_token": plain_ms,
        "weight_read_ms": read_ms,
        "plain_over_weight_read": median_interval(
            [1e3 / row["tokens_per_s"]["plain"] / row["weight_read_ms"] for row in timed]
        ),
        "first_token_trees_over_plain": median_interval(
            [row["first_token_ms"]["trees"] / row["first_token_ms"]["plain"] for row in rows]
        ),
        "whole_call_plain_over_trees": {
            **median_interval([row["total_ms"]["plain"] / row["total_ms"]["trees"] for row in timed]),
            "worst": min(row["total_ms"]["plain"] / row["total_ms"]["trees"] for row in timed),
        },
        "draft_prepare_commit_share_of_a_tree_step": overhead,
        "phase_ms": phases,
        "verdicts": [row["verdict"] for row in rows],
        "rows": rows,
    }
    for group, values in ratios.items():
        print(
            group,
            {name: f"{v['geomean']:.2f} [{v['low']:.2f}, {v['high']:.2f}]" for name, v in values.items()},
        )
    for name in ("plain_over_weight_read", "first_token_trees_over_plain", "whole_call_plain_over_trees"):
        print(name, result[name])
    print("best chain", best, "overhead", f"{overhead:.3f}")
    odd = [row["id"] for row in rows if set(row["verdict"].values()) - {"identical", "near-tie"}]
    print("outputs that differ from transformers:", odd or "none")
    return result


if __name__ == "__main__":
    main()
