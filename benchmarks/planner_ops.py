"""Time the planner's operations at 64 nodes: ``python benchmarks/planner_ops.py``.

One core, no model: static planning (any tree, leaf siblings, branches), dynamic planning from 6 levels of 10 x 10
candidates and from 64 x 10, and the online estimates of a tree of 64 nodes. Writes medians with 95% intervals to
``benchmarks/results/planner_ops.json``; exits with 1 if one takes a millisecond or more.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable

import numpy as np
import torch

from common import median_interval, time_us, write_result
from treedecode.acceptance import EdgeEstimates
from treedecode.dynamic import DynamicPlan, plan_dynamic
from treedecode.families import plan_branches, plan_leaf_siblings
from treedecode.planner import plan_tree
from treedecode.tree import DraftTree

NUM_DRAFTED = 64
NUM_ROWS = 64
TOP_K = 10
EXPANDED = 10
DEPTH = 6
LIMIT_US = 1000.0
RANK_PROBS = [0.6, 0.15, 0.07, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01]


def top_candidates(rng: np.random.Generator, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and confidences ``[num_rows, TOP_K]`` as a drafter's softmax gives them, best first."""
    token_ids = np.stack([rng.permutation(1000)[:TOP_K] for _ in range(num_rows)])
    shares = np.sort(rng.dirichlet(np.full(TOP_K + 1, 0.3), num_rows), axis=1)[:, ::-1]
    return token_ids, np.ascontiguousarray(shares[:, :TOP_K])


def flat_candidates(rng: np.random.Generator) -> tuple[list[int], list[int], list[float]]:
    """Parents, tokens and confidences of 64 x 10 candidates, each row below a random earlier one."""
    token_ids, confidences = top_candidates(rng, NUM_ROWS)
    parents, tokens, values = [-1], [0], [1.0]
    for row in range(NUM_ROWS):
        parent = int(rng.integers(len(parents))) if row else 0
        parents += [parent] * TOP_K
        tokens += token_ids[row].tolist()
        values += confidences[row].tolist()
    return parents, tokens, values


def draft_levels(levels: list[tuple[np.ndarray, np.ndarray]]) -> DraftTree:
    """All of EAGLE-2's planning for one tree, the drafter's passes aside."""
    plan, nodes = DynamicPlan(0), [0]
    for token_ids, confidences in levels:
        plan.add(nodes, token_ids[: len(nodes)], confidences[: len(nodes)])
        nodes = plan.frontier(EXPANDED)
    return plan.tree(NUM_DRAFTED)


def operations(seed: int) -> dict[str, Callable[[], object]]:
    """Every timed call, on candidates drawn from ``seed``."""
    rng = np.random.default_rng(seed)
    candidates = flat_candidates(rng)
    levels = [top_candidates(rng, EXPANDED) for _ in range(DEPTH)]
    rows = EdgeEstimates().rank_probs("draft", DEPTH, TOP_K)
    scored = plan_dynamic(*candidates, NUM_DRAFTED)
    unscored = DraftTree(scored.shape, scored.token_ids, None, scored.sources)
    estimates = EdgeEstimates()
    path = [0]
    while children := scored.shape.children(path[-1]):
        path.append(random.Random(seed).choice(children))

    def reach_after_learning(tree: DraftTree) -> list[float]:
        estimates.observe(tree, path)
        return estimates.reach(tree)

    return {
        "plan_tree": lambda: plan_tree(RANK_PROBS, NUM_DRAFTED),
        "plan_tree_by_depth": lambda: plan_tree(rows, NUM_DRAFTED),
        "plan_tree_limited": lambda: plan_tree(RANK_PROBS, NUM_DRAFTED, DEPTH, 4),
        "plan_leaf_siblings": lambda: plan_leaf_siblings(RANK_PROBS, NUM_DRAFTED),
        "plan_branches": lambda: plan_branches(RANK_PROBS, NUM_DRAFTED, 4),
        "plan_dynamic": lambda: plan_dynamic(*candidates, NUM_DRAFTED),
        "dynamic_levels": lambda: draft_levels(levels),
        "observe_and_reach_scored": lambda: reach_after_learning(scored),
        "observe_and_reach_unscored": lambda: reach_after_learning(unscored),
    }


def measure(num_rounds: int) -> dict[str, dict[str, float]]:
    """Run every operation once a round, so that noise meets all of them alike."""
    cases = [operations(seed) for seed in range(8)]
    samples: dict[str, list[float]] = {}
    for round_ in range(num_rounds):
        for name, call in cases[round_ % len(cases)].items():
            samples.setdefault(name, []).append(time_us(call, 5))
    return {name: median_interval(values) for name, values in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure(8)
    results = measure(arguments.rounds)
    setup = {
        "num_drafted": NUM_DRAFTED,
        "candidates": f"{NUM_ROWS} x {TOP_K}",
        "levels": f"{DEPTH} of {EXPANDED} x {TOP_K}",
    }
    write_result("planner_ops", {"unit": "us", "setup": setup, "limit_us": LIMIT_US, "results": results})
    for name, result in results.items():
        interval = f"[{result['low']:.1f}, {result['high']:.1f}]"
        print(f"{name:27s} {result['median']:8.1f} us  {interval}")
    return int(any(result["median"] >= LIMIT_US for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
