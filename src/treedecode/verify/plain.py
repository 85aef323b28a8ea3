"""The model alone: one forward pass over a whole sequence, without trees and without a cache from before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from treedecode.engines.step import StepInput
from treedecode.engines.target import Target
from treedecode.verify.processed import penalised
from treedecode.verify.rounding import Rounding

# Rows per pass: a mask of this many columns squared, and more only for sequences that are longer.
_ROWS = 2048
# Rows per vocabulary product.
_HEAD_ROWS = 32
# Numbers of rows that the last tokens are computed in, to see what rounding does.
_RUNS = (1, 3, 8)
_TAIL = 16
# Leading logits whose noise counts.
_LEADING = 64


class PlainModel:
    """Teacher-forced logits of a target.

    Args:
        target: What runs the forward passes.
        repetition_penalty: As in transformers, or None.
    """

    def __init__(self, target: Target, repetition_penalty: float | None = None) -> None:
        self._target, self._penalty = target, repetition_penalty

    def rows(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Iterator[Tensor]:
        """What the model says before each token of an output: logits ``[vocab]`` on the host, penalties applied."""
        sequence = [*prompt_ids, *output_ids[:-1]]
        features = self._features(sequence, len(output_ids)) if output_ids else None
        done = len(prompt_ids)
        for part in features.split(_HEAD_ROWS) if features is not None else ():
            for row in self._logits(part):
                yield penalised(row, sequence[:done], self._penalty)
                done += 1

    def row(self, token_ids: Sequence[int]) -> Tensor:
        """Logits ``[vocab]`` of the token after ``token_ids``."""
        return next(self.rows(token_ids, token_ids[-1:]))

    def rounding(self, token_ids: Sequence[int]) -> Rounding:
        """How the logits after ``token_ids`` change with the number of rows in which they are computed."""
        whole = self.row(token_ids)
        leading = whole.topk(min(_LEADING, whole.shape[0]))
        noise = 0.0
        for run in _RUNS:
            other = penalised(self._in_runs(token_ids, run), token_ids, self._penalty)
            noise = max(noise, float((other[leading.indices] - leading.values).abs().max()))
        return Rounding(noise, float(leading.values.abs().max()), self._target.dtype)

    @torch.inference_mode()
    def _features(self, sequence: list[int], keep_rows: int) -> Tensor:
        target = self._target
        cache = target.new_cache(len(sequence))
        kept = []
        for first in range(0, len(sequence), _ROWS):
            part = sequence[first : first + _ROWS]
            step = StepInput.of_chain(part, first, target.device, target.dtype)
            wanted = first + len(part) - (len(sequence) - keep_rows)
            features = target.forward(step, cache, min(max(wanted, 1), len(part)))
            cache.length += len(part)
            if wanted > 0:
                kept.append(features)
        return torch.cat(kept)

    @torch.inference_mode()
    def _in_runs(self, token_ids: Sequence[int], run: int) -> Tensor:
        """Logits after the last token, its last few rows computed ``run`` at a time."""
        target, sequence = self._target, list(token_ids)
        cache = target.new_cache(len(sequence))
        start = max(0, len(sequence) - _TAIL)
        bounds = [*range(0, start, _ROWS), *range(start, len(sequence), run), len(sequence)]
        features = None
        for first, last in pairwise(bounds):
            step = StepInput.of_chain(sequence[first:last], first, target.device, target.dtype)
            features = target.forward(step, cache, min(run, last - first))
            cache.length += last - first
        assert features is not None
        return self._logits(features)[-1]

    @torch.inference_mode()
    def _logits(self, features: Tensor) -> Tensor:
        logits = self._target.logits(features).cpu()
        return logits.float() if logits.dtype.itemsize < 4 else logits
