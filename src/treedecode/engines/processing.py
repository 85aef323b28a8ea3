"""What the logits of a row become, given its path: the one home of biases, penalties and bans.

The order is that of transformers' ``generate`` where it has the processor: bias, repetition penalty, frequency and
presence penalty (it has neither; vLLM has them at this place), bad words, ``min_tokens``, the user's processors, the
grammar. Temperature and truncation come after all of them (``sampling``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from treedecode.engines.params import SamplingParams
from treedecode.engines.path import Committed, Paths
from treedecode.tree import DraftTree


class Stage(Protocol):
    """One step of the processing."""

    def __call__(self, logits: Tensor, paths: Paths) -> Tensor:
        """New logits ``[N, vocab]`` of the rows after every node; those given may be overwritten."""
        ...


class Processing:
    """All stages of one request, and its committed tokens.

    Args:
        params: What to apply.
        stop_ids: Tokens that end the output, for ``min_tokens``.
        vocab_size: Columns of the logits.
        more: What comes after that.

    Raises:
        ValueError: A token id is not in the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        stop_ids: Collection[int],
        vocab_size: int,
        more: Sequence[Stage] = (),
    ) -> None:
        self._committed = Committed()
        self._stages: list[Stage] = []
        if params.logit_bias:
            self._stages.append(LogitBias(dict(params.logit_bias), vocab_size))
        if params.penalised:
            self._stages.append(Penalties(params))
        if params.bad_words_ids:
            self._stages.append(BadWords(params.bad_words_ids, vocab_size))
        if params.min_tokens:
            self._stages.append(MinTokens(params.min_tokens, [id for id in stop_ids if id < vocab_size]))
        self._stages += more

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._stages)

    def __call__(self, logits: Tensor, tree: DraftTree, history: Sequence[int], num_output: int) -> Tensor:
        """The processed logits, float32 or wider.

        Args:
            logits: ``[N, vocab]``; row i follows node i. Not modified.
            tree: Of the step.
            history: Token ids of prompt and output up to the root.
            num_output: How many of them are output.
        """
        self._committed.follow(history, num_output)
        paths = Paths(tree, self._committed)
        logits = logits.float() if logits.dtype.itemsize < 4 else logits.clone()
        for stage in self._stages:
            logits = stage(logits, paths)
        return logits


class LogitBias:
    """Adds a number to the logits of some tokens."""

    def __init__(self, bias: dict[int, float], vocab_size: int) -> None:
        _check_tokens("logit_bias", bias, vocab_size)
        self._ids, self._values = torch.tensor([*bias]), torch.tensor([*bias.values()], dtype=torch.float64)

    def __call__(self, logits: Tensor, paths: Paths) -> Tensor:
        logits[:, self._ids.to(logits.device)] += self._values.to(logits)
        return logits


class Penalties:
    """Repetition, frequency and presence penalty: they touch the columns of tokens that some path has, no others."""

    def __init__(self, params: SamplingParams) -> None:
        self._repetition = params.repetition_penalty or 1.0
        self._frequency, self._presence = params.frequency_penalty or 0.0, params.presence_penalty or 0.0

    def __call__(self, logits: Tensor, paths: Paths) -> Tensor:
        token_ids, in_output, seen = (torch.from_numpy(array).to(logits.device) for array in paths.counts)
        columns, in_output = logits.index_select(1, token_ids), in_output.to(logits.dtype)
        if self._repetition != 1:
            repeated = torch.where(columns > 0, columns / self._repetition, columns * self._repetition)
            columns = torch.where(seen, repeated, columns)
        if self._frequency:
            columns -= self._frequency * in_output
        if self._presence:
            columns -= self._presence * (in_output > 0)
        return logits.index_copy_(1, token_ids, columns)


class BadWords:
    """Forbids the last token of a sequence where a path ends in the tokens before it."""

    def __init__(self, words: Iterable[Sequence[int]], vocab_size: int) -> None:
        words = list(words)
        _check_tokens("bad_words_ids", (token for word in words for token in word), vocab_size)
        length = max(map(len, words)) - 1
        self._last = np.array([word[-1] for word in words])
        self._before = np.zeros((len(words), length), np.int64)
        self._any = np.ones((len(words), length), bool)  # places before the start of a shorter word
        for row, word in enumerate(words):
            self._before[row, length + 1 - len(word) :] = word[:-1]
            self._any[row, length + 1 - len(word) :] = False

    def __call__(self, logits: Tensor, paths: Paths) -> Tensor:
        tails = paths.tails(self._before.shape[1])
        complete = ((tails[:, None] == self._before) | self._any).all(-1)
        rows, words = complete.nonzero()
        return _forbid(logits, rows, self._last[words])


class MinTokens:
    """Forbids stop tokens until enough tokens are emitted."""

    def __init__(self, min_tokens: int, stop_ids: Sequence[int]) -> None:
        self._min_tokens, self._stop_ids = min_tokens, np.array(sorted(stop_ids), np.int64)

    def __call__(self, logits: Tensor, paths: Paths) -> Tensor:
        (rows,) = (paths.num_output < self._min_tokens).nonzero()
        return _forbid(logits, rows[:, None], self._stop_ids[None])


def _forbid(logits: Tensor, rows: np.ndarray, token_ids: np.ndarray) -> Tensor:
    """Sets ``logits[rows, token_ids]`` to -inf, in place."""
    device = logits.device
    logits[torch.from_numpy(rows).to(device), torch.from_numpy(token_ids).to(device)] = -math.inf
    return logits


def _check_tokens(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token in token_ids:
        if token >= vocab_size:
            raise ValueError(
                f"{name} token ids must be at most {vocab_size - 1} "
                f"(the vocabulary has {vocab_size} tokens), got {token}"
            )
