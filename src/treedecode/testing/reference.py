"""The sampled walks in plain Python from the definitions: slow, obvious, and sharing no code with the core.

Every random decision goes through a ``Chance``, so the same lines are driven by uniforms or enumerated exactly
(``treedecode.testing.exact``). Rows are lists of numbers; any kind works, ``fractions.Fraction`` included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Row = Sequence[float]


class Chance(Protocol):
    """Where decisions come from."""

    def accept(self, probability: float) -> bool:
        """True with ``probability`` (at least 1: always)."""
        ...

    def draw(self, weights: Row) -> int:
        """An index with probability proportional to its weight."""
        ...


class UniformChance:
    """Decisions by given numbers in [0, 1), one each: accept if u < p; draw by inverse CDF."""

    def __init__(self, uniforms: Sequence[float]) -> None:
        self._uniforms = list(uniforms)
        self.used = 0

    def _next(self) -> float:
        self.used += 1
        return self._uniforms[self.used - 1]

    def accept(self, probability: float) -> bool:
        return self._next() < probability

    def draw(self, weights: Row) -> int:
        point = self._next() * sum(weights)
        total = 0.0
        for token, weight in enumerate(weights):
            total += weight
            if point < total:
                return token
        return max(token for token, weight in enumerate(weights) if weight > 0)


@dataclass(frozen=True)
class Drafted:
    """A drafted tree with the rows of both models.

    Attributes:
        parents: ``[N]``, -1 for the root; siblings in draw order.
        token_ids: ``[N]``.
        target_probs: ``[N][V]``.
        draft_probs: ``[N][V]``.
    """

    parents: Sequence[int]
    token_ids: Sequence[int]
    target_probs: Sequence[Row]
    draft_probs: Sequence[Row]

    def children(self, node: int) -> list[int]:
        """Children in draw order."""
        return [child for child, parent in enumerate(self.parents) if parent == node]


def walk(drafted: Drafted, method: str, chance: Chance) -> tuple[list[int], list[int]]:
    """``(path, emitted)`` of a method of ``treedecode.accept_sampled``."""
    if method == "one_draw":
        return one_draw(drafted, chance)
    replacement = method.endswith("with_replacement")
    if method.startswith("traversal"):
        return bottom_up(drafted, chance, replacement)
    return top_down(drafted, chance, replacement)


def one_draw(drafted: Drafted, chance: Chance) -> tuple[list[int], list[int]]:
    """One draw per node."""
    path, emitted = [0], []
    while True:
        emitted.append(chance.draw(drafted.target_probs[path[-1]]))
        matching = [n for n in drafted.children(path[-1]) if drafted.token_ids[n] == emitted[-1]]
        if not matching:
            return path, emitted
        path.append(matching[0])


def top_down(drafted: Drafted, chance: Chance, replacement: bool) -> tuple[list[int], list[int]]:
    """Recursive rejection over siblings."""
    path, emitted = [0], []
    while True:
        target, draft = drafted.target_probs[path[-1]], drafted.draft_probs[path[-1]]
        for child in drafted.children(path[-1]):
            token = drafted.token_ids[child]
            if chance.accept(target[token] / draft[token] if draft[token] else 0):
                path.append(child)
                emitted.append(token)
                break
            if draft[token] == 0:
                continue  # never drawn
            target = residual(target, draft, 1)
            if not replacement:
                draft = without(draft, token)
        else:
            return path, [*emitted, chance.draw(target)]


def bottom_up(drafted: Drafted, chance: Chance, replacement: bool) -> tuple[list[int], list[int]]:
    """Leaves first: a node is judged when all below it is rejected."""

    def visit(node: int, weight: float) -> tuple[list[int], list[int]] | None:
        target, draft = drafted.target_probs[node], drafted.draft_probs[node]
        for child in drafted.children(node):
            token = drafted.token_ids[child]
            found = visit(child, min(1, weight * target[token] / draft[token]) if draft[token] else 0)
            if found:
                return [node, *found[0]], [token, *found[1]]
            if draft[token] == 0:
                continue  # never drawn
            rest = sum(max(weight * p - q, 0) for p, q in zip(target, draft, strict=True))
            target = residual(target, draft, weight)
            weight = rest / (rest + 1 - weight) if rest + 1 - weight else weight
            if not replacement:
                draft = without(draft, token)
        if node == 0 or chance.accept(weight):
            return [node], [chance.draw(target)]
        return None

    found = visit(0, 1)
    assert found is not None, "the root is always accepted"
    return found


def residual(target: Row, draft: Row, weight: float) -> Row:
    """``max(weight * target - draft, 0)``, normalised; ``target`` if nothing remains."""
    rest = [max(weight * p - q, 0) for p, q in zip(target, draft, strict=True)]
    return [value / sum(rest) for value in rest] if sum(rest) else target


def without(draft: Row, token: int) -> Row:
    """``draft`` given that ``token`` is gone."""
    rest = [0 if other == token else value for other, value in enumerate(draft)]
    return [value / sum(rest) for value in rest] if sum(rest) else rest
