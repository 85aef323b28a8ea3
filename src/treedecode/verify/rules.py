"""Which token the model alone says: the likeliest, or the one that the seed draws."""

from __future__ import annotations

import torch
from torch import Tensor

from treedecode.engines.params import SamplingParams
from treedecode.streams import keyed_uniforms
from treedecode.verify.judged import Rule
from treedecode.verify.processed import processed


class Greedy(Rule):
    """The token with the highest logit; of equal ones the lowest id. Gaps are differences of logits."""

    def gap(self, row: Tensor, token_id: int, position: int) -> float:
        """How far below the highest logit that of ``token_id`` is; the top two's difference where it is the second."""
        return float(row.max() - row[token_id])

    def within(self, row: Tensor, token_id: int, position: int, tolerance: float) -> bool:
        return self.gap(row, token_id, position) <= tolerance

    def words(self, row: Tensor, token_id: int, position: int) -> str:
        return f"{self.gap(row, token_id, position):.3g} below the best logit"


class Drawn(Rule):
    """The token that the seed's number draws from the processed distribution, tokens in the order of their ids.

    A number draws the token in whose piece of [0, 1) it falls. Gaps are distances of the number from that piece. If
    all logits may be off by a little, the piece can begin as early as it does with every token before lowered and all
    others raised, and end as late as with the opposite; a number between is a near tie. That covers top-k, top-p and
    min-p, where the token itself may come in or drop out.

    Args:
        params: How to sample; its seed keys the numbers.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params

    def _number(self, position: int) -> float:
        return float(keyed_uniforms(self._params.seed, [position])[0])

    def gap(self, row: Tensor, token_id: int, position: int) -> float:
        probs, number = processed(row, self._params), self._number(position)
        begin = float(probs[:token_id].sum())
        end = begin + float(probs[token_id])
        if begin <= number < end:
            return 0.0
        # a number at the very end of a piece is outside it, by nothing
        return max(begin - number, number - end, 1e-16)

    def within(self, row: Tensor, token_id: int, position: int, tolerance: float) -> bool:
        number, half = self._number(position), tolerance / 2
        wide = row.double()
        lowered, raised = wide - half, wide + half
        early = processed(torch.cat([lowered[:token_id], raised[token_id:]]), self._params)
        late = processed(torch.cat([raised[: token_id + 1], lowered[token_id + 1 :]]), self._params)
        return float(early[:token_id].sum()) <= number < float(late[: token_id + 1].sum())

    def words(self, row: Tensor, token_id: int, position: int) -> str:
        share = float(processed(row, self._params)[token_id])
        return (
            f"not what the seed draws: off by {self.gap(row, token_id, position):.3g} of probability, "
            f"its own is {share:.3g}"
        )
