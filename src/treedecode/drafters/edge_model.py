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
        second_features: of each, by the second row: its kind, and the candidate's confidence there.
        suffix_features: of each, by the earlier matches: their length, and how often and how lately it
            followed.
        other_feature: of the context; weighs "some other token".
        match_length: of the longest match, 0 if there is none.
    """

    tokens: list[int]
    row_features: list[int]
    second_features: list[int]
    suffix_features: list[int]
    other_feature: int
    match_length: int


class EdgeModel:
    """P(candidate i) = row[i] * second[i] * suffix[i] / (other + sum of all such products), a weight per feature.

    The weights start from those of ``edge_weights`` and follow the gradient of the log likelihood of what the
    target says (multinomial logistic regression, online), so that the probabilities stay calibrated on the
    text at hand. Siblings compete: their probabilities sum to less than 1.

    Args:
        learning_rate: step size, in log weight per unit of probability error; 0 keeps the prior.
    """

    def __init__(self, learning_rate: float = LEARNING_RATE) -> None:
        self._learning_rate = learning_rate
        self._row = [math.exp(weight) for weight in edge_weights.ROW]
        self._second = [math.exp(weight) for weight in edge_weights.SECOND]
        self._suffix = [math.exp(weight) for weight in edge_weights.SUFFIX]
        self._other = [math.exp(weight) for weight in edge_weights.OTHER]

    def probabilities(self, candidates: Candidates) -> list[float]:
        """Probability of every candidate."""
        row, second, suffix = self._row, self._second, self._suffix
        _, row_features, second_features, suffix_features, other, _ = candidates
        weights = [
            row[a] * second[b] * suffix[c]
            for a, b, c in zip(row_features, second_features, suffix_features, strict=True)
        ]
        total = self._other[other] + sum(weights)
        return [weight / total for weight in weights]

    def learn(self, candidates: Candidates, token: int) -> None:
        """One gradient step on a context that was reached, where ``token`` is what the target said."""
        rate, row, second, suffix = self._learning_rate, self._row, self._second, self._suffix
        rest = 1.0
        for i, prob in enumerate(self.probabilities(candidates)):
            rest -= prob
            factor = math.exp(rate * ((candidates.tokens[i] == token) - prob))
            row[candidates.row_features[i]] *= factor
            second[candidates.second_features[i]] *= factor
            suffix[candidates.suffix_features[i]] *= factor
        error = (token not in candidates.tokens) - rest
        self._other[candidates.other_feature] *= math.exp(rate * error)
