"""Exact output distributions of samplers: every draft that can be drawn, every decision that can be made.

A ``Problem`` is a small pair of models and a tree shape. ``branches`` takes a walk that is written against ``Chance``
along every branch of its decisions: ``exactness_of_walk`` adds up its output distribution and compares it with the
target's.

A sampler that is a black box over uniforms is run at numbers just inside both ends of every interval on which the
reference walk decides one way (``exactness``). If it decides as the reference does, what comes out is its exact output
distribution; if a threshold of it is elsewhere, it goes another way at one of the numbers, and the sum is off.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product

from treedecode.accept import Acceptance
from treedecode.testing import reference
from treedecode.testing.problems import Path, Problem
from treedecode.testing.reference import Chance, Drafted, Row
from treedecode.tree import DraftTree

Walk = Callable[[Drafted, str, Chance], tuple[list[int], list[int]]]
Sampler = Callable[[DraftTree, list[Row], list[Row], str, list[float]], Acceptance]
BatchSampler = Callable[["list[Case]", str], list[Acceptance]]


@dataclass
class _Branches:
    """A ``Chance`` that takes a given branch at every decision, then the first, and notes what it passed by."""

    choices: list[int]
    mass: float = 1.0
    lowest: list[float] = field(default_factory=list)
    highest: list[float] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)

    def accept(self, probability: float) -> bool:
        probability = min(probability, 1.0)
        return self._take([(True, 0.0, probability), (False, probability, 1.0)])

    def draw(self, weights: Row) -> int:
        total, low = sum(weights), 0.0
        options = []
        for token, weight in enumerate(weights):
            options.append((token, low, low + weight / total))
            low += weight / total
        return self._take(options)

    def _take(self, options: list[tuple[int, float, float]]) -> int:
        # a sliver is the rounding of a sum: no decision
        options = [option for option in options if option[2] - option[1] > 1e-15]
        place = len(self.widths)
        choice = self.choices[place] if place < len(self.choices) else 0
        value, low, high = options[choice]
        self.widths.append(len(options))
        self.mass *= high - low
        # just inside the ends: a sampler whose threshold is elsewhere goes another way at one of them
        self.lowest.append(low + (high - low) * 1e-6)
        self.highest.append(high - (high - low) * 1e-6)
        return value


@dataclass(frozen=True)
class Branch:
    """One way that a walk can go.

    Attributes:
        result: where it went.
        mass: how likely.
        lowest: numbers that take it, just inside the lower ends of their intervals.
        highest: just inside the upper ends.
    """

    result: Acceptance
    mass: float
    lowest: list[float]
    highest: list[float]


def branches(drafted: Drafted, method: str, walk: Walk = reference.walk) -> Iterator[Branch]:
    """Every way that ``walk`` can go."""
    choices: list[int] | None = []
    while choices is not None:
        chance = _Branches(choices)
        path, emitted = walk(drafted, method, chance)
        result = Acceptance(path, emitted, len(path) - 1)
        yield Branch(result, chance.mass, chance.lowest, chance.highest)
        taken = choices + [0] * (len(chance.widths) - len(choices))
        while taken and taken[-1] + 1 == chance.widths[len(taken) - 1]:
            taken.pop()
        choices = [*taken[:-1], taken[-1] + 1] if taken else None


@dataclass(frozen=True)
class Case:
    """One draft and the numbers of one step.

    Attributes:
        tree: the drafted tree.
        drafted: the same with the rows of both models.
        uniforms: numbers that take a branch, then numbers to spare (a faulty sampler may use more).
        mass: its share of all probability.
    """

    tree: DraftTree
    drafted: Drafted
    uniforms: list[float]
    mass: float


def cases(problem: Problem, method: str) -> list[Case]:
    """Every draft and every branch of the reference walk, twice; the masses add up to 1."""
    found = []
    for drafted, mass in problem.drafts(replacement=method.endswith("with_replacement")):
        tree = DraftTree.sampled(problem.shape, drafted.token_ids)
        for branch in branches(drafted, method):
            spare = [0.5] * (2 * tree.num_nodes - len(branch.lowest))
            for uniforms in (branch.lowest, branch.highest):
                found.append(Case(tree, drafted, uniforms + spare, mass * branch.mass / 2))
    return found


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
