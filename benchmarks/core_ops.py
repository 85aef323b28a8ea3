"""Time the core operations of one step: ``python benchmarks/core_ops.py``.

For trees of 32 nodes, on one core: build from parents, mask, positions, walk and commit plan; and the batched
walk of 64 such trees. Writes medians with 95% intervals to ``benchmarks/results/core_ops.json``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from common import median_interval, write_result
from treedecode.accept import accept_greedy, walk_batch
from treedecode.batch import pad_trees
from treedecode.kv import commit_moves
from treedecode.tree import DraftTree, TreeShape

NUM_NODES = 32
BATCH_SIZE = 64
PREFIX_LEN = 500
LIMIT_US = {"step_total": 100.0, "walk_batch": 300.0}


@dataclass(frozen=True)
class Case:
    """One tree's inputs, as a drafter and a target hand them over."""

    parents: list[int]
    token_ids: list[int]
    target_ids: list[int]


def random_case(rng: random.Random) -> Case:
    """A tree of any form between star and chain, with a walk that often goes deep."""
    reach = rng.choice([1, 2, 4, 8, NUM_NODES])
    parents = [-1] + [rng.randrange(max(0, node - reach), node) for node in range(1, NUM_NODES)]
    token_ids = rng.sample(range(NUM_NODES), NUM_NODES)
    target_ids = [rng.randrange(NUM_NODES) for _ in range(NUM_NODES)]
    for node in range(1, NUM_NODES):
        if rng.random() < 0.8:
            target_ids[parents[node]] = token_ids[node]
    return Case(parents, token_ids, target_ids)


def step(case: Case) -> None:
    """Everything that the core does in one step."""
    tree = DraftTree(TreeShape.from_parents(case.parents), case.token_ids)
    tree.shape.mask()
    tree.shape.position_ids(PREFIX_LEN)
    commit_moves(accept_greedy(tree, case.target_ids).path)


def parts(case: Case) -> dict[str, Callable[[], object]]:
    """The same, part by part; each part does its own lazy work."""
    tree = DraftTree(TreeShape.from_parents(case.parents), case.token_ids)
    path = accept_greedy(tree, case.target_ids).path
    fresh = tuple(case.parents)
    return {
        "build": lambda: DraftTree(TreeShape.from_parents(case.parents), case.token_ids),
        "mask": lambda: TreeShape.trusted(fresh).mask(),
        "positions": lambda: TreeShape.trusted(fresh).position_ids(PREFIX_LEN),
        "walk": lambda: accept_greedy(tree, case.target_ids),
        "commit_plan": lambda: commit_moves(path),
    }


def time_us(call: Callable[[], object], num_calls: int) -> float:
    """Mean time of a call over ``num_calls`` in a row, microseconds."""
    start = time.perf_counter_ns()
    for _ in range(num_calls):
        call()
    return (time.perf_counter_ns() - start) / num_calls / 1000


def measure(num_rounds: int) -> dict[str, dict[str, float]]:
    """Run every operation once a round, so that noise meets all of them alike."""
    rng = random.Random(0)
    cases = [random_case(rng) for _ in range(BATCH_SIZE)]
    trees = [DraftTree(TreeShape.from_parents(case.parents), case.token_ids) for case in cases]
    padded = pad_trees(trees)
    parents, token_ids = torch.from_numpy(padded.parents), torch.from_numpy(padded.token_ids)
    target_ids = torch.tensor([case.target_ids for case in cases])
    num_nodes = torch.from_numpy(padded.num_nodes)

    samples: dict[str, list[float]] = {}
    for _ in range(num_rounds):
        case = rng.choice(cases)
        calls: dict[str, tuple[Callable[[], object], int]] = {
            "step_total": (lambda case=case: step(case), 20),
            "walk_batch": (lambda: walk_batch(parents, token_ids, target_ids, num_nodes), 10),
        }
        calls |= {name: (call, 20) for name, call in parts(case).items()}
        for name, (call, num_calls) in calls.items():
            samples.setdefault(name, []).append(time_us(call, num_calls))
    return {name: median_interval(values) for name, values in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure(20)
    results = measure(arguments.rounds)
    setup = {"num_nodes": NUM_NODES, "batch_size": BATCH_SIZE, "prefix_len": PREFIX_LEN}
    write_result("core_ops", {"unit": "us", "setup": setup, "limits_us": LIMIT_US, "results": results})
    for name, result in results.items():
        limit = f"  limit {LIMIT_US[name]:.0f}" if name in LIMIT_US else ""
        interval = f"[{result['low']:.2f}, {result['high']:.2f}]"
        print(f"{name:12s} {result['median']:8.2f} us  {interval}{limit}")
    return int(any(results[name]["median"] > limit for name, limit in LIMIT_US.items()))


if __name__ == "__main__":
    sys.exit(main())
