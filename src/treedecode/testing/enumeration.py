"""Everything that can happen in one step: every draft that can be drawn, every decision that can be made.

``branches`` takes a walk that is written against ``Chance`` along every branch of its decisions. ``cases`` turns the
branches of the reference walk into numbers: just inside both ends of every interval on which it decides one way. A
sampler that decides as the reference does gives its exact output distribution over the cases; if a threshold of it is
elsewhere, it goes another way at one of the numbers, and the sum is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from treedecode.accept import Acceptance
from treedecode.testing import reference
from treedecode.testing.problems import Problem
from treedecode.testing.reference import Chance, Drafted, Row
from treedecode.tree import DraftTree

Walk = Callable[[Drafted, str, Chance], tuple[list[int], list[int]]]


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
        return bool(self._take([(True, 0.0, probability), (False, probability, 1.0)]))

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
