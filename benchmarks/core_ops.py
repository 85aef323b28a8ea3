"""Time the core operations of one step: ``python benchmarks/core_ops.py``.

For trees of 32 nodes, on one core: build from parents, mask, positions, walk and commit plan; and the batched
walk of 64 such trees. For the planner: what it adds to a step with a tree of 24 drafted nodes (cut, record and guard,
trees with and without scores, trees verified and only looked at), and the share-out of one budget over 64 requests of
16 nodes, free and in fixed sizes. Writes medians with 95% intervals to ``benchmarks/results/core_ops.json``.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from common import median_interval, time_us, write_result
from treedecode.accept import accept_greedy, walk_batch
from treedecode.allocate import allocate_batch
from treedecode.batch import pad_trees
from treedecode.buckets import Buckets, choose_bucket
from treedecode.budget import BudgetPlanner
from treedecode.cost import CostCurve
from treedecode.gains import PlainReference
from treedecode.guard import Guard, Mode
from treedecode.kv import commit_moves
from treedecode.tree import DraftTree, TreeShape

NUM_NODES = 32
BATCH_SIZE = 64
PREFIX_LEN = 500
COST = CostCurve(
    [1, 2, 4, 8, 16, 32, 64, 256, 1088], [10.0, 10.5, 11.0, 12.0, 15.0, 22.0, 38.0, 130.0, 540.0]
)
NUM_PLANNED = 24
NUM_SHARED = 16
LIMIT_US = {
    "step_total": 100.0,
    "walk_batch": 300.0,
    "plan_step": 100.0,
    "plan_step_look": 100.0,
    "plan_step_unscored": 100.0,
    "allocate": 1000.0,
    "choose_bucket": 1000.0,
}


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


def planned_tree(rng: random.Random, scored: bool) -> DraftTree:
    """A tree of ``NUM_PLANNED`` drafted nodes, reach falling from 0.7."""
    parents = [-1] + [rng.randrange(max(0, node - 4), node) for node in range(1, NUM_PLANNED + 1)]
    scores = [0.0, *(math.log(0.7 * 0.85**node) for node in range(NUM_PLANNED))]
    return DraftTree.trusted(parents, list(range(NUM_PLANNED + 1)), scores if scored else None)


class HeldGuard(Guard):
    """Does all that a guard does and stays in one mode."""

    def __init__(self, mode: Mode) -> None:
        reference = PlainReference()
        reference.add(1.0)
        super().__init__(reference)
        self._mode = self._judged = mode

    def _change(self, mode: Mode, reason: str, measures: bool = False) -> None: ...


def planning(tree: DraftTree, mode: Mode) -> Callable[[], object]:
    """What the planner does in a step whose tree is this one, over and over."""
    planner = BudgetPlanner(COST, HeldGuard(mode))
    path = [0, 1]
    parents, tokens, scores = tree.shape.parent_tuple, tree.token_tuple, tree.scores
    log_reach = None if scores is None else scores.tolist()

    def step() -> None:
        # a drafter hands over a new tree each time, which has nothing cached
        cut = planner.cut(DraftTree.trusted(parents, tokens, log_reach), PREFIX_LEN)
        planner.record(cut, path[: cut.num_nodes], PREFIX_LEN, 15.0, 0.5)

    return step


def measure(num_rounds: int) -> dict[str, dict[str, float]]:
    """Run every operation once a round, so that noise meets all of them alike."""
    rng = random.Random(0)
    cases = [random_case(rng) for _ in range(BATCH_SIZE)]
    trees = [DraftTree(TreeShape.from_parents(case.parents), case.token_ids) for case in cases]
    padded = pad_trees(trees)
    parents, token_ids = torch.from_numpy(padded.parents), torch.from_numpy(padded.token_ids)
    target_ids = torch.tensor([case.target_ids for case in cases])
    num_nodes = torch.from_numpy(padded.num_nodes)

    scored, unscored = planned_tree(rng, True), planned_tree(rng, False)
    reach = [sorted((rng.random() for _ in range(NUM_SHARED)), reverse=True) for _ in range(BATCH_SIZE)]
    buckets = Buckets({BATCH_SIZE: (1, 2, 4, 8, 16)})
    planner_calls: dict[str, tuple[Callable[[], object], int]] = {
        "plan_step": (planning(scored, Mode.TREE), 20),
        "plan_step_unscored": (planning(unscored, Mode.TREE), 20),
        "plan_step_look": (planning(scored, Mode.CHAIN), 20),
        "allocate": (lambda: allocate_batch(reach, COST), 5),
        "choose_bucket": (lambda: choose_bucket(reach, COST, buckets), 5),
    }

    samples: dict[str, list[float]] = {}
    for _ in range(num_rounds):
        case = rng.choice(cases)
        calls: dict[str, tuple[Callable[[], object], int]] = {
            "step_total": (lambda case=case: step(case), 20),
            "walk_batch": (lambda: walk_batch(parents, token_ids, target_ids, num_nodes), 10),
        }
        calls |= {name: (call, 20) for name, call in parts(case).items()}
        calls |= planner_calls
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
    setup = {
        "num_nodes": NUM_NODES,
        "batch_size": BATCH_SIZE,
        "prefix_len": PREFIX_LEN,
        "num_planned": NUM_PLANNED,
        "num_shared": NUM_SHARED,
    }
    write_result("core_ops", {"unit": "us", "setup": setup, "limits_us": LIMIT_US, "results": results})
    for name, result in results.items():
        limit = f"  limit {LIMIT_US[name]:.0f}" if name in LIMIT_US else ""
        interval = f"[{result['low']:.2f}, {result['high']:.2f}]"
        print(f"{name:18s} {result['median']:8.2f} us  {interval}{limit}")
    return int(any(results[name]["median"] > limit for name, limit in LIMIT_US.items()))


if __name__ == "__main__":
    sys.exit(main())
