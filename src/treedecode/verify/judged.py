"""Token for token: two outputs of one prompt, and each of them against the model alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treedecode.verify.plain import PlainModel
from treedecode.verify.results import Finding, Status, first_difference
from treedecode.verify.rounding import most_rounding


@dataclass(frozen=True)
class Output:
    """What one way of decoding emitted.

    Attributes:
        name: For the report: "trees", "plain", ...
        token_ids: The tokens.
        num_drafted: Nodes that were verified for them.
        num_accepted: Those that became tokens.
    """

    name: str
    token_ids: tuple[int, ...]
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def trees_did(self) -> str:
        """How much of the output trees had a part in."""
        if not self.num_drafted:
            return "but no tree was verified"
        return f"{self.num_accepted} of them accepted from {self.num_drafted} drafted nodes"


@dataclass(frozen=True)
class Fault:
    """A token that rounding does not explain.

    Attributes:
        position: Output position.
        words: What is wrong with it.
    """

    position: int
    words: str


@dataclass(frozen=True)
class Judged:
    """An output against the model alone.

    Attributes:
        fault: The first token that is wrong, or None.
        ties: Positions of tokens that the model alone would not say, but for rounding.
        worst_gap: Largest distance from the token that the model alone says, in the unit of the rule.
    """

    fault: Fault | None
    ties: tuple[int, ...]
    worst_gap: float


class Rule(ABC):
    """Which token the model alone says: ``rules.Greedy`` or ``rules.Drawn``."""

    @abstractmethod
    def gap(self, row: Tensor, token_id: int, position: int) -> float:
        """How far ``token_id`` is from being said after ``row`` (0: it is what is said)."""

    @abstractmethod
    def within(self, row: Tensor, token_id: int, position: int, tolerance: float) -> bool:
        """Whether it is said if logits are off by as much as makes a gap of ``tolerance``."""

    @abstractmethod
    def words(self, row: Tensor, token_id: int, position: int) -> str:
        """How far off it is, for people."""


class Judge:
    """Looks at outputs of one prompt.

    Args:
        plain: The model alone.
        prompt_ids: The prompt.
        rule: What it says.
        dtype: Of the model.
        gap_tolerance: Largest gap of a near tie; None to measure it.
        show: Token id to text.
    """

    def __init__(
        self,
        plain: PlainModel,
        prompt_ids: Sequence[int],
        rule: Rule,
        dtype: torch.dtype,
        gap_tolerance: float | None,
        show: Callable[[int], str],
    ) -> None:
        self._plain, self._prompt, self._rule = plain, list(prompt_ids), rule
        self._most = most_rounding(dtype) if gap_tolerance is None else gap_tolerance
        self._given, self._show = gap_tolerance, show
        self._known: dict[tuple[int, ...], Judged] = {}

    def output(self, token_ids: tuple[int, ...]) -> Judged:
        """Every token against what the model alone says after those before it."""
        if token_ids not in self._known:
            self._known[token_ids] = self._judge(token_ids)
        return self._known[token_ids]

    def _judge(self, token_ids: tuple[int, ...]) -> Judged:
        ties, worst = [], 0.0
        for position, row in enumerate(self._plain.rows(self._prompt, token_ids)):
            token = token_ids[position]
            gap = self._rule.gap(row, token, position)
            worst = max(worst, gap)
            if gap <= 0:
                continue
            limit = self._limit(row, token, position, token_ids)
            if not self._rule.within(row, token, position, limit):
                words = f"{self._rule.words(row, token, position)}; a near tie is within {limit:.2g}"
                return Judged(Fault(position, words), tuple(ties), worst)
            ties.append(position)
        return Judged(None, tuple(ties), worst)

    def _limit(self, row: Tensor, token: int, position: int, token_ids: tuple[int, ...]) -> float:
        """Largest gap of a near tie; measured only where a measurement can change the answer."""
        if self._given is not None or not self._rule.within(row, token, position, self._most):
            return self._most
        return self._plain.rounding([*self._prompt, *token_ids[:position]]).tolerance

    def compare(self, prompt: str, check: str, mine: Output, other: Output) -> Finding:
        """Are they the same, and is each what the model alone says?"""
        shorter = min(len(mine.token_ids), len(other.token_ids))
        first = first_difference(mine.token_ids, other.token_ids)
        same = mine.token_ids == other.token_ids
        count = len(mine.token_ids)
        judged = {output.name: self.output(output.token_ids) for output in (mine, other)}
        ties = {*judged[mine.name].ties, *judged[other.name].ties}
        numbers = {"worst_gap": max(each.worst_gap for each in judged.values())}
        if not same:
            numbers["first_difference"] = float(first)
        faults = [(name, each.fault) for name, each in judged.items() if each.fault is not None]
        if faults:
            name, fault = faults[0]
            token = (mine if name == mine.name else other).token_ids[fault.position]
            detail = f"{name}: token {fault.position} is {self._show(token)}, {fault.words}"
        elif not same and first == shorter:
            detail = f"{mine.name} ended after {count} tokens, {other.name} after {len(other.token_ids)}"
        elif ties:
            places = ", ".join(str(place) for place in sorted(ties)[:5])
            detail = f"{count} tokens, {mine.trees_did}, but for a near tie at token {places}"
            if not same:
                detail += f"; {mine.name} and {other.name} go apart at {first}"
            return Finding(prompt, check, Status.NEAR_TIE, detail, count, len(ties), numbers)
        else:
            detail = f"{count} tokens identical, {mine.trees_did}"
            return Finding(prompt, check, Status.EXACT, detail, count, 0, numbers)
        if not same:
            detail += f"; {mine.name} and {other.name} differ from token {first} on"
        return Finding(prompt, check, Status.DIFFERENT, detail, count, len(ties), numbers)
