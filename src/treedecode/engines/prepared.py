"""What transformers' ``generate`` prepared for one row of its batch, as what a request of ours needs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers.generation import logits_process as theirs
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

# A processor as parameters of ours, or None where it asks for more than they can say.
_Reader = Callable[[Any], dict[str, Any] | None]


def split(
    processors: Sequence[Any], sampled: bool, num_prompt: int, stop_ids: frozenset[int]
) -> tuple[dict[str, Any], list[Any]]:
    """Splits a list of processors into what treedecode does itself and the rest, keeping their order.

    Ours is done before the rest or, from temperature on, after it: so only the first processors and the last ones can
    become parameters, as long as they stand in our order.

    Args:
        processors: In the order in which ``generate`` applies them.
        sampled: Whether tokens are sampled; warpers mean nothing to our greedy choice.
        num_prompt: Tokens of the padded prompt, which ``generate`` counts from.
        stop_ids: Of the request.

    Returns:
        ``(parameters, rest)``: keyword arguments of ``SamplingParams``, and processors.
    """

    def min_tokens(item: Any) -> dict[str, Any] | None:
        exact = item.prompt_length_to_skip == num_prompt and stop_ids == frozenset(item.eos_token_id.tolist())
        return {"min_tokens": item.min_new_tokens} if exact else None

    first: list[tuple[type, _Reader]] = [
        (theirs.SequenceBiasLogitsProcessor, _logit_bias),
        (theirs.RepetitionPenaltyLogitsProcessor, _repetition_penalty),
        (theirs.NoBadWordsLogitsProcessor, lambda item: {"bad_words_ids": [*item.sequence_bias]}),
        (theirs.MinNewTokensLengthLogitsProcessor, min_tokens),
    ]
    last: list[tuple[type, _Reader]] = [
        (theirs.TemperatureLogitsWarper, lambda item: {"temperature": item.temperature}),
        (theirs.TopKLogitsWarper, lambda item: _if_plain(item, {"top_k": item.top_k})),
        (theirs.TopPLogitsWarper, lambda item: _if_plain(item, {"top_p": item.top_p})),
        (theirs.MinPLogitsWarper, lambda item: _if_plain(item, {"min_p": item.min_p})),
    ]
    rest = list(processors)
    before = _take(rest, first)
    rest.reverse()
    after = _take(rest, last[::-1]) if sampled else {}
    rest.reverse()
    return before | ({"temperature": 1.0} | after if sampled else {}), rest


def split_criteria(criteria: Sequence[Any]) -> tuple[int | None, frozenset[int], list[Any]]:
    """Splits stopping criteria into the longest sequence, padding included, the stop tokens, and the rest."""
    lengths, stop_ids, rest = [], set[int](), []
    for item in criteria:
        if type(item) is MaxLengthCriteria:
            lengths.append(item.max_length)
        elif type(item) is EosTokenCriteria:
            stop_ids |= set(item.eos_token_id.tolist())
        else:
            rest.append(item)
    return min(lengths, default=None), frozenset(stop_ids), rest


def _take(items: list[Any], known: list[tuple[type, _Reader]]) -> dict[str, Any]:
    """Takes away what stands at the start of ``items`` and is known, each kind once and in the order of ``known``."""
    taken: dict[str, Any] = {}
    for kind, read in known:
        found = read(items[0]) if items and type(items[0]) is kind else None
        if found is not None:
            taken |= found
            del items[0]
    return taken


def _logit_bias(item: Any) -> dict[str, Any] | None:
    if any(len(ids) > 1 or bias == math.inf for ids, bias in item.sequence_bias.items()):
        return None
    return {"logit_bias": {ids[0]: bias for ids, bias in item.sequence_bias.items()}}


def _repetition_penalty(item: Any) -> dict[str, Any] | None:
    return {"repetition_penalty": item.penalty} if item.prompt_ignore_length is None else None


def _if_plain(item: Any, found: dict[str, Any]) -> dict[str, Any] | None:
    """``found`` unless the warper keeps more than one token at least, or has a filter value of its own."""
    return found if item.filter_value == -math.inf and item.min_tokens_to_keep <= 1 else None


def for_row(processor: Any, row: int) -> Any:
    """``processor`` for calls in which every row is a path of row ``row`` of the batch."""
    if isinstance(processor, theirs.PrefixConstrainedLogitsProcessor):
        allowed = processor._prefix_allowed_tokens_fn
        return theirs.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(row, ids), 1)
    if isinstance(processor, theirs.EncoderNoRepeatNGramLogitsProcessor):
        alone = copy.copy(processor)
        alone.batch_size, alone.generated_ngrams = 1, processor.generated_ngrams[row : row + 1]
        return alone
    if isinstance(processor, theirs.EncoderRepetitionPenaltyLogitsProcessor):
        return _EncoderRepetition(processor, row)
    return processor


class _EncoderRepetition:
    """``EncoderRepetitionPenaltyLogitsProcessor`` of one row, for any number of paths."""

    def __init__(self, processor: Any, row: int) -> None:
        self._processor = copy.copy(processor)
        self._encoder_ids = processor.encoder_input_ids[row : row + 1]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._processor.encoder_input_ids = self._encoder_ids.expand(len(scores), -1)
        return self._processor(input_ids, scores)
