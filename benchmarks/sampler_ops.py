"""Time the batched sampled walks: ``python benchmarks/sampler_ops.py``.

For 64 trees of 32 nodes over 32,000 tokens, float32, on one core: softmax of the target's logits and the walk, by every
method, against softmax and ``torch.multinomial`` over the same rows (one token per row, no walk). Drafts are drawn from
a noisy copy of the target; the drafter's own softmax is its own cost and not counted. Writes medians with 95% intervals
to ``benchmarks/results/sampler_ops.json``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from common import median_interval, time_us, write_result
from treedecode.accept_inputs import METHODS
from treedecode.accept_sampling import accept_sampled_batch
from treedecode.drawing import draw_siblings
from treedecode.planner import plan_tree
from treedecode.rejection import most_tests
from treedecode.tree import TreeShape

BATCH_SIZE, NUM_NODES, VOCAB_SIZE = 64, 32, 32_000
RANK_PROBS = (0.6, 0.2, 0.1, 0.05)
LIMIT_RATIO = 1.3


def drawn_tokens(shape: TreeShape, draft_probs: Tensor, replacement: bool) -> Tensor:
    """Tokens of every node, drawn in sibling order, int64 ``[B, N]``."""
    tokens = torch.zeros(draft_probs.shape[:2], dtype=torch.int64)
    for node in range(shape.num_nodes):
        children = list(shape.children(node))
        if children:
            uniforms = torch.rand(len(tokens), len(children), dtype=torch.float64)
            tokens[:, children] = draw_siblings(draft_probs[:, node], uniforms, replacement)
    return tokens


def measure(num_rounds: int) -> dict[str, dict[str, float]]:
    """Run every operation once a round, so that noise meets all of them alike."""
    torch.manual_seed(0)
    shape = plan_tree(RANK_PROBS, NUM_NODES - 1)
    logits = 3 * torch.randn(BATCH_SIZE, NUM_NODES, VOCAB_SIZE)
    draft_probs = (logits + torch.randn_like(logits)).softmax(-1)
    parents = torch.tensor([shape.parent_tuple] * BATCH_SIZE)
    uniforms = torch.rand(BATCH_SIZE, NUM_NODES, dtype=torch.float64)

    def walk(method: str, tokens: Tensor) -> Callable[[], object]:
        return lambda: accept_sampled_batch(
            parents,
            tokens,
            logits.softmax(-1),
            uniforms,
            draft_probs,
            method,
            max_depth=shape.max_depth,
            max_tests=most_tests(shape),
        )

    calls: dict[str, Callable[[], object]] = {
        "softmax_multinomial": lambda: torch.multinomial(logits.softmax(-1).flatten(0, 1), 1)
    }
    for method in METHODS:
        tokens = drawn_tokens(shape, draft_probs, method.endswith("with_replacement"))
        calls[method] = walk(method, tokens)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(num_rounds):
        for name, call in calls.items():
            samples[name].append(time_us(call, 1) / 1000)
    return {name: median_interval(values) for name, values in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure(1)
    results = measure(arguments.rounds)
    setup = {
        "batch_size": BATCH_SIZE,
        "num_nodes": NUM_NODES,
        "vocab_size": VOCAB_SIZE,
        "rank_probs": RANK_PROBS,
    }
    base = results["softmax_multinomial"]["median"]
    ratios = {name: result["median"] / base for name, result in results.items()}
    write_result(
        "sampler_ops",
        {"unit": "ms", "setup": setup, "limit_ratio": LIMIT_RATIO, "ratios": ratios, "results": results},
    )
    for name, result in results.items():
        print(
            f"{name:28s} {result['median']:8.1f} ms  [{result['low']:.1f}, {result['high']:.1f}]  {ratios[name]:.2f}x"
        )
    return int(any(ratio > LIMIT_RATIO for ratio in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
