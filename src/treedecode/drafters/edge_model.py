"""How likely each candidate is the target's next token: a softmax over features, calibrated as decoding goes."""

from __future__ import annotations

import math
from typing import NamedTuple

from treedecode.drafters import edge_weights

LEARNING_RATE = 0.05


class Candidates(NamedTuple):
    """What may follow a context, and the features that say how likely each candidate is.

    Attributes:
        tokens: candidate tokens, all different.
        row_features: of each, by the recycled row: length of its context, and the candidate's confidence
            there.
        suffix_features: of each, by the earlier matches: their length, and how often and how lately it
            followed.
        other_feature: of the context; weighs "some other token".
        match_length: of the longest match, 0 if there is none.
    """

    tokens: list[int]
    row_features: list[int]
    suffix_features: list[int]
    other_feature: int
    match_length: int


class EdgeModel:
    """P(candidate i) = row[i] * suffix[i] / (other + sum of all such products), one weight per feature.

    The weights start from those of ``edge_weights`` and follow the gradient of the log likelihood of what the
    target says (multinomial logistic regression, online), so that the probabilities stay calibrated on the
    text at hand. Siblings compete: their probabilities sum to less than 1.

    Args:
        learning_rate: step size, in log weight per unit of probability error; 0 keeps the prior.
    """

    def __init__(self, learning_rate: float = LEARNING_RATE) -> None:
        self._learning_rate = learning_rate
        self._row = [math.exp(weight) for weight in edge_weights.ROW]
        self._suffix = [math.exp(weight) for weight in edge_weights.SUFFIX]
        self._other = [math.exp(weight) for weight in edge_weights.OTHER]

    def probabilities(self, candidates: Candidates) -> list[float]:
        """Probability of every candidate."""
        row, suffix = self._row, self._suffix
        weights = [
            row[a] * suffix[b]
            for a, b in zip(candidates.row_features, candidates.suffix_features, strict=True)
        ]
        total = self._other[candidates.other_feature] + sum(weights)
        return [weight / total for weight in weights]

    def learn(self, candidates: Candidates, token: int) -> None:
        """One gradient step on a context that was reached, where ``token`` is what the target said."""
        rate, row, suffix = self._learning_rate, self._row, self._suffix
        rest = 1.0
        for i, prob in enumerate(self.probabilities(candidates)):
            rest -= prob
            error = (candidates.tokens[i] == token) - prob
            factor = math.exp(rate * error)
            row[candidates.row_features[i]] *= factor
            suffix[candidates.suffix_features[i]] *= factor
        error = (token not in candidates.tokens) - rest
        self._other[candidates.other_feature] *= math.exp(rate * error)
