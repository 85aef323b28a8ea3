"""Exact output distributions of samplers, compared with the target's, by total variation.

A ``Problem`` is a small pair of models and a tree shape. ``exactness`` runs a sampler that is a black box over uniforms
on all ``treedecode.testing.enumeration.cases`` of a problem; ``exactness_of_walk`` enumerates a walk that is written
against ``Chance``. ``support_faults`` tries the numbers at the edges of [0, 1).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from treedecode.accept import Acceptance
from treedecode.testing.enumeration import Case, Walk, branches, cases
from treedecode.testing.problems import Path, Problem
from treedecode.testing.reference import Drafted, Row
from treedecode.tree import DraftTree

Sampler = Callable[[DraftTree, list[Row], list[Row], str, list[float]], Acceptance]
BatchSampler = Callable[[list[Case], str], list[Acceptance]]


@dataclass(frozen=True)
class Exactness:
    """How a sampler did on a problem.

    Attributes:
        total_variation: between what it emits, continued by the target, and the target, over sequences of the
            length of the longest step.
        expected_accepted: mean number of accepted nodes.
        faults: what no sampler may do, in words: a path that is no path, tokens that are not the path's.
    """

    total_variation: float
    expected_accepted: float
    faults: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Total variation below 1e-12, and no fault."""
        return self.total_variation < 1e-12 and not self.faults


def exactness(sampler: Sampler, problem: Problem, method: str) -> Exactness:
    """Run ``sampler`` on every draft and every decision of ``problem``.

    Args:
        sampler: ``(tree, target_probs, draft_probs, method, uniforms) -> Acceptance``, such as
            ``treedecode.accept_sampled``. It uses its uniforms in the order of ``accept_sampled``.
        problem: what to sample.
        method: as in ``accept_sampled``; says how siblings are drawn, too.
    """
    return exactness_batched(one_by_one(sampler), problem, method)


def one_by_one(sampler: Sampler) -> BatchSampler:
    """A sampler of single trees as one of batches."""

    def run(batch: list[Case], method: str) -> list[Acceptance]:
        return [
            sampler(
                case.tree,
                [list(row) for row in case.drafted.target_probs],
                [list(row) for row in case.drafted.draft_probs],
                method,
                case.uniforms,
            )
            for case in batch
        ]

    return run


def exactness_batched(sampler: BatchSampler, problem: Problem, method: str) -> Exactness:
    """``exactness`` for a sampler that takes all cases at once."""
    batch = cases(problem, method)
    results = sampler(batch, method)
    pairs = zip(batch, results, strict=True)
    return _verdict(((case.drafted, result, case.mass) for case, result in pairs), problem)


def exactness_of_walk(walk: Walk, problem: Problem, method: str) -> Exactness:
    """How far a walk against ``Chance`` is from the target; right or wrong, the distance is exact.

    Args:
        walk: ``(drafted, method, chance) -> (path, emitted)``, such as ``treedecode.testing.reference.walk``.
        problem: what to sample.
        method: handed to the walk; says how siblings are drawn, too.
    """
    drafts = problem.drafts(replacement=method.endswith("with_replacement"))
    return _verdict(
        (
            (drafted, branch.result, mass * branch.mass)
            for drafted, mass in drafts
            for branch in branches(drafted, method, walk)
        ),
        problem,
    )


def _verdict(steps: Iterable[tuple[Drafted, Acceptance, float]], problem: Problem) -> Exactness:
    emitted: dict[Path, float] = defaultdict(float)
    accepted, faults = 0.0, set()
    for drafted, result, mass in steps:
        emitted[tuple(result.token_ids)] += mass
        accepted += mass * result.num_accepted
        faults.update(_faults_of(result, drafted))
    return Exactness(_variation(emitted, problem), accepted, tuple(sorted(faults)))


def support_faults(sampler: BatchSampler, problem: Problem, method: str) -> list[str]:
    """Tokens without target mass that ``sampler`` emits when every number is 0, or the largest below 1.

    Both have probability zero in theory and come up in practice: float32 generators return exact zeros. An exact
    enumeration cannot see them.
    """
    faults, numbers = [], 2 * problem.shape.num_nodes
    for number in (0.0, math.nextafter(1, 0)):
        batch = [
            Case(DraftTree.sampled(problem.shape, drafted.token_ids), drafted, [number] * numbers, mass)
            for drafted, mass in problem.drafts(replacement=method.endswith("with_replacement"))
        ]
        for case, result in zip(batch, sampler(batch, method), strict=True):
            for place, token in enumerate(result.token_ids):
                if problem.target(tuple(result.token_ids[:place]))[token] == 0:
                    faults.append(
                        f"uniform {number}: drafts {case.tree.token_tuple} emit {result.token_ids}, where token "
                        f"{token} at {place} has target probability 0"
                    )
                    break
    return faults


def _faults_of(result: Acceptance, drafted: Drafted) -> Iterator[str]:
    path, tokens = result.path, result.token_ids
    if path[0] != 0 or any(drafted.parents[path[k + 1]] != path[k] for k in range(len(path) - 1)):
        yield f"{path} is no path of {list(drafted.parents)}"
    elif [drafted.token_ids[node] for node in path[1:]] != tokens[:-1]:
        yield "the emitted tokens are not those of the path"
    if len(tokens) != len(path) or result.num_accepted != len(path) - 1:
        yield "emitted tokens are not accepted nodes + 1"


def _variation(emitted: dict[Path, float], problem: Problem) -> float:
    length = max([problem.shape.max_depth + 1, *map(len, emitted)])
    total = 0.0
    for sequence in product(range(problem.vocab_size), repeat=length):
        mass = 0.0
        for cut in range(1, length + 1):
            if sequence[:cut] in emitted:
                rest = 1.0
                for place in range(cut, length):
                    rest *= problem.target(sequence[:place])[sequence[place]]
                mass += emitted[sequence[:cut]] * rest
        total += abs(mass - problem.target_mass(sequence))
    return total / 2
