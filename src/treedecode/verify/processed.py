"""Processed logits and distributions by transformers' own processors: nothing here is the engine's code.

Order as in transformers' ``generate``: repetition penalty, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from treedecode.engines.params import SamplingParams


def penalised(logits: Tensor, token_ids: Sequence[int], penalty: float | None) -> Tensor:
    """Logits ``[vocab]`` after ``token_ids`` with the repetition penalty; not modified."""
    if penalty is None or penalty == 1:
        return logits
    history: Any = torch.tensor([list(token_ids)])
    scores: Any = logits[None].clone()
    return RepetitionPenaltyLogitsProcessor(float(penalty))(history, scores)[0]


def processed(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities ``[vocab]``, float64, of penalised logits after temperature, top-k, top-p and min-p."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(params.temperature))])
    if params.top_k is not None:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p is not None and params.top_p < 1:
        warpers.append(TopPLogitsWarper(float(params.top_p)))
    if params.min_p:
        warpers.append(MinPLogitsWarper(float(params.min_p)))
    scores: Any = logits[None].double()
    unread: Any = torch.zeros(1, 0, dtype=torch.int64)  # these processors look at the scores alone
    return torch.softmax(warpers(unread, scores)[0], -1)


def possible(logits: Tensor, token_id: int, params: SamplingParams, tolerance: float) -> bool:
    """Whether a token has probability, its logit raised by ``tolerance``."""
    raised = logits.to(torch.float64, copy=True)
    raised[token_id] += tolerance
    return bool(processed(raised, params)[token_id])
