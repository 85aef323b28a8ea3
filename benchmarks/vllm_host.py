"""Time what trees cost on the host in vLLM, by requests: ``python benchmarks/vllm_host.py`` where vLLM is installed.

No engine: 64 requests with texts that repeat themselves are stepped through the proposer, the planner and the walk on
one core, with trees of up to 16 nodes. Top candidates of a vocabulary of 262,144 are timed apart, per row. Writes
medians with 95% intervals to ``benchmarks/results/vllm_host.json``; exits with 1 if drafting and planning take 10
milliseconds or more.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch

from common import median_interval, time_us, write_result
from treedecode.accept import Acceptance
from treedecode.batch_budget import BatchPlanner
from treedecode.cost import CostCurve
from treedecode.drafters.base import NUM_CANDIDATES, VerifiedRows
from treedecode.engines.candidates import top_candidates
from treedecode.tree import DraftTree
from treedecode.vllm.counts import TreeCounts
from treedecode.vllm.metrics import TreeMetrics
from treedecode.vllm.proposer import RequestLimits, TreeProposer
from treedecode.vllm.walk import walk_rows

VOCAB_SIZE = 262_144
LIMIT_MS = 10.0
PROMPT_LEN = 200
TEXT_LEN = 4000
# rows are free, so that trees are whole
COST = CostCurve([1, 4096], [50.0, 50.1])


def make_text(rng: random.Random) -> list[int]:
    """Phrases in random order, with a random token now and then."""
    phrases = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(4, 20))] for _ in range(30)]
    text: list[int] = []
    while len(text) < TEXT_LEN:
        text += rng.choice(phrases)
        if rng.random() < 0.3:
            text.append(rng.randrange(VOCAB_SIZE))
    return text[:TEXT_LEN]


class Batch:
    """Requests that decode together, and the time of every part of a step."""

    def __init__(self, num_requests: int, budget: int, drafter: str) -> None:
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=budget),
            additional_config={"treedecode": {"drafter": drafter}},
            model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB_SIZE),
        )
        self.proposer = TreeProposer(config)  # type: ignore[arg-type]
        self.proposer.planner = self.planner = BatchPlanner(COST, 4096)
        self.counts = self.proposer.counts = TreeCounts()
        self.metrics = TreeMetrics("benchmark", 0)
        self.texts = [make_text(random.Random(number)) for number in range(num_requests)]
        self.lengths = np.full(num_requests, PROMPT_LEN)
        self.table = np.array(self.texts, np.int32)
        self.names = [str(number) for number in range(num_requests)]
        self.rng = np.random.default_rng(0)
        self.samples: dict[str, list[float]] = {}

    def step(self) -> bool:
        """One step of all requests; whether there is text for another."""
        trees = [
            self.proposer.proposed.pop(name, None)
            or DraftTree.root_only(int(self.table[row, self.lengths[row] - 1]))
            for row, name in enumerate(self.names)
        ]
        choices = [self._choices(row, tree) for row, tree in enumerate(trees)]
        sampled = [choice for of_request in choices for choice in of_request]
        marks = [time.perf_counter()]
        walks = walk_rows(trees, sampled)
        self.counts.add_step(list(zip(trees, walks, strict=True)))
        marks.append(time.perf_counter())
        rows = {
            name: self._rows(row, tree, walk, choice)
            for row, (name, tree, walk, choice) in enumerate(
                zip(self.names, trees, walks, choices, strict=True)
            )
        }
        self.lengths += [len(walk.token_ids) for walk in walks]
        marks.append(time.perf_counter())
        self.proposer.observe(rows)
        self.planner.record(
            dict(zip(self.names, zip(trees, walks, strict=True), strict=True)),
            50.0,
            5.0,
        )
        self.proposer.prepare([RequestLimits(name, PROMPT_LEN, 1000, False) for name in self.names])
        self.proposer.propose([walk.token_ids for walk in walks], self.lengths, self.table)
        marks.append(time.perf_counter())
        self.metrics.record(self.counts)
        marks.append(time.perf_counter())
        parts = ("walk_and_count", "texts", "draft_and_plan", "metrics")
        for name, begun, ended in zip(parts, marks[:-1], marks[1:], strict=True):
            self.samples.setdefault(name, []).append(1e3 * (ended - begun))
        return bool(self.lengths.max() < TEXT_LEN - 64)

    def _choices(self, row: int, tree: DraftTree) -> list[int]:
        """The text's token after every node that it follows, another token elsewhere."""
        text, begin = self.texts[row], int(self.lengths[row])
        on_text = {0}
        choices = []
        for node, (parent, token, depth) in enumerate(
            zip(tree.shape.parent_tuple, tree.token_tuple, tree.shape.depth_tuple, strict=True)
        ):
            if node and parent in on_text and token == text[begin + depth - 1]:
                on_text.add(node)
            choices.append(text[begin + depth] if node in on_text else int(self.rng.integers(VOCAB_SIZE)))
        return choices

    def _rows(self, row: int, tree: DraftTree, walk: Acceptance, choices: list[int]) -> VerifiedRows:
        ids = self.rng.integers(VOCAB_SIZE, size=(tree.num_nodes, NUM_CANDIDATES))
        ids[:, 0] = choices
        logits = np.tile(np.arange(NUM_CANDIDATES, 0, -1, dtype=np.float32), (tree.num_nodes, 1))
        return VerifiedRows(tree, int(self.lengths[row]) - 1, tuple(walk.path), ids, logits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--budget", type=int, default=16)
    parser.add_argument("--drafter", default="merged")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batch = Batch(arguments.requests, arguments.budget, arguments.drafter)
    num_warm = 20
    for number in range(num_warm + arguments.steps):
        if number == num_warm:  # compiled by now, and the guard has measured its plain steps
            batch.samples.clear()
            before = batch.counts.copy()
        if not batch.step():
            break
    counts = batch.counts.since(before)
    results = {name: median_interval(values) for name, values in batch.samples.items() if name != "texts"}
    logits = torch.randn(64, VOCAB_SIZE)
    per_row = [
        time_us(lambda: top_candidates(logits, NUM_CANDIDATES), 1) / 1e3 / len(logits) for _ in range(20)
    ]
    results["top_candidates_per_row"] = median_interval(per_row)
    setup = vars(arguments) | {
        "vocab_size": VOCAB_SIZE,
        "verified_per_request": counts.num_verified / counts.num_request_steps,
        "emitted_per_step": counts.emitted_per_step,
    }
    write_result("vllm_host", {"unit": "ms", "setup": setup, "limit_ms": LIMIT_MS, "results": results})
    for name, result in results.items():
        print(f"{name:24s} {result['median']:8.3f} ms  [{result['low']:.3f}, {result['high']:.3f}]")
    return int(results["draft_and_plan"]["median"] >= LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
