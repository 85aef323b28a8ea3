"""Counted tokens against the distributions that they should come from, by chi-squared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treedecode.engines.params import SamplingParams
from treedecode.testing.statistics import ChiSquared, Tables, chi_squared
from treedecode.verify.processed import possible, processed


@dataclass(frozen=True)
class Counted:
    """A test over all places.

    Attributes:
        test: Sums over the places.
        num_counted: Tokens that were counted; of two samples, those of the first.
        impossible: A token that was drawn though the model alone never says it there, or None.
        allowance: What the statistic may exceed its threshold by, because rounding moves probabilities.
    """

    test: ChiSquared
    num_counted: int
    impossible: int | None = None
    allowance: float = 0.0

    @property
    def threshold(self) -> float:
        """What the statistic stays below, rounding allowed for."""
        return self.test.threshold + self.allowance

    @property
    def passed(self) -> bool:
        """Whether the tokens are those of the model alone, as far as counts can tell."""
        return self.impossible is None and (not self.test.degrees or self.test.statistic < self.threshold)

    @property
    def numbers(self) -> dict[str, float]:
        """What was measured, by name."""
        test = self.test
        return {
            "chi_squared": test.statistic,
            "degrees": float(test.degrees),
            "threshold": self.threshold,
        }

    @property
    def words(self) -> str:
        """The same in words."""
        return (
            f"chi-squared {self.test.statistic:.1f} with {self.test.degrees} degrees of freedom, "
            f"below {self.threshold:.1f} expected"
        )


def count_tokens(
    places: Iterable[tuple[Tensor, Sequence[int]]], params: SamplingParams, tolerance: float
) -> Counted:
    """Tests the tokens of several places, each against the model's distribution there.

    Args:
        places: Penalised logits ``[vocab]`` and the tokens that were drawn from them, at least one.
        params: How they were drawn.
        tolerance: How far rounding can move a logit; an impossible token has no probability even if raised by that.
    """
    statistic, degrees, counted, impossible = 0.0, 0, 0, None
    for row, tokens in places:
        probs = processed(row, params)
        for token in dict.fromkeys(tokens):
            if not probs[token] and not possible(row, token, params, tolerance):
                impossible = token
        table = probs[None]
        test = chi_squared(Tables((table,), (table,)), torch.tensor(tokens)[:, None], 0)
        statistic, degrees = statistic + test.statistic, degrees + test.degrees
        counted += len(tokens)
    return Counted(ChiSquared(statistic, degrees), counted, impossible)
