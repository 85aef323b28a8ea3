"""Log probabilities of emitted tokens, from the rows that a step has anyway.

They are those of the model itself, before biases, penalties, masks and temperature: what vLLM returns unless told
otherwise (``raw_logprobs``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from treedecode.engines.candidates import top_candidates


@dataclass(frozen=True)
class TokenLogprobs:
    """One emitted token, and what the model thought likely in its place.

    Attributes:
        token_id: The token.
        logprob: Its log probability.
        top_ids: The likeliest tokens, best first; the emitted one need not be among them.
        top_logprobs: Their log probabilities.
    """

    token_id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True)
class RowLogprobs:
    """The same for all rows of a step, on the host.

    Attributes:
        chosen: float32 ``[N, 1]``, of the target's choice after each node.
        top_ids: int64 ``[N, k]``.
        top_logprobs: float32 ``[N, k]``.
    """

    chosen: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    def of(self, nodes: Sequence[int], token_ids: Sequence[int]) -> list[TokenLogprobs]:
        """Of tokens that were the choices after these nodes; there may be more nodes than tokens."""
        return [
            TokenLogprobs(
                token,
                float(self.chosen[node, 0]),
                tuple(self.top_ids[node].tolist()),
                tuple(self.top_logprobs[node].tolist()),
            )
            for node, token in zip(nodes, token_ids, strict=False)
        ]


def row_logprobs(logits: Tensor, choices: Tensor, count: int) -> list[Tensor]:
    """The parts of :class:`RowLogprobs`, on the device.

    Args:
        logits: ``[N, vocab]``, as the model gave them. Not modified.
        choices: int64 ``[N]``.
        count: How many of the likeliest tokens, 0 for none.
    """
    norm = (
        logits.logsumexp(-1, keepdim=True)
        if logits.dtype.itemsize >= 4
        else logits.float().logsumexp(-1, True)
    )
    values, ids = top_candidates(logits, count) if count else (logits[:, :0], choices[:, None][:, :0])
    return [logits.gather(1, choices[:, None]) - norm, ids, values - norm]
