"""What the target says after every node of a step: its own choice, its best candidates, and what traces want."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from treedecode.drafters.base import NUM_CANDIDATES
from treedecode.engines.candidates import top_candidates
from treedecode.engines.params import SamplingParams
from treedecode.engines.processing import Processing, Stage
from treedecode.engines.processors import LogitsProcessors
from treedecode.engines.request import Request
from treedecode.engines.sampling import choose
from treedecode.engines.target import Target
from treedecode.streams import keyed_uniforms
from treedecode.tree import DraftTree


@dataclass(frozen=True)
class Verified:
    """What the target said about one step, on the host.

    Attributes:
        choices: int64 ``[N]``, the target's own choice after each node.
        top_ids: int64 ``[N, k]``, its best next tokens.
        top_logits: float32 ``[N, k]``, their processed logits, descending.
        log_norm: float32 ``[N]``, log of the softmax denominator of the processed logits; None unless asked for.
    """

    choices: list[int]
    top_ids: np.ndarray
    top_logits: np.ndarray
    log_norm: np.ndarray | None = None


@dataclass(frozen=True)
class Judging:
    """How the rows of one request are judged.

    Attributes:
        params: How the target chooses.
        num_candidates: Best next tokens per row.
        log_norm: Whether softmax denominators are wanted, as traces do.
        processing: What the logits of a row become, given its path; None where nothing is asked for.
    """

    params: SamplingParams
    num_candidates: int
    log_norm: bool = False
    processing: Processing | None = field(default=None, compare=False)

    @classmethod
    def of(cls, target: Target, request: Request, wants_rows: bool, traced: bool) -> Judging:
        """For a request whose rows a drafter or an observer sees, or nobody does.

        Raises:
            ValueError: A token id of its parameters is not in the vocabulary.
        """
        count = NUM_CANDIDATES if wants_rows or traced else 1
        more: list[Stage] = []
        if request.processors:
            more.append(LogitsProcessors(request.processors, request.padding, shared=request.max_drafted > 0))
        processing = Processing(request.sampling, request.stop_ids, target.vocab_size, more)
        return cls(request.sampling, min(count, target.vocab_size), traced, processing or None)

    @property
    def needs_logits(self) -> bool:
        """Whether all logits are needed; if not, a screened head finds the candidates for less."""
        return self.log_norm or self.processing is not None or not self.params.greedy

    def kind(self, vocab_size: int) -> Judging:
        """What requests have in common whose rows cost the same: equal for them, and fit to be timed.

        Seeds do not matter, and whatever is done to a few tokens of a row costs what a penalty costs.
        """
        params = SamplingParams(
            self.params.temperature, self.params.top_k, self.params.top_p, self.params.min_p
        )
        if self.processing is None:
            return replace(self, params=params)
        params = replace(params, presence_penalty=1.0)
        return replace(self, params=params, processing=Processing(params, (), vocab_size))

    def __call__(
        self, target: Target, features: Tensor, tree: DraftTree, history: Sequence[int], position: int
    ) -> Verified:
        """The target's choice and best candidates after every node; the one host synchronisation of a step.

        Args:
            target: Whose rows they are.
            features: From its ``forward``, one row per node.
            tree: Of the step.
            history: Token ids of prompt and output up to the root. The same list, grown, at every step of a request:
                then only what is new is read.
            position: Output position of the token after the root: how many of ``history`` are output, and the key of
                its noise.
        """
        params, count = self.params, self.num_candidates
        log_norm = None
        if not self.needs_logits:
            values, ids = target.top(features, count)
            choices = ids[:, 0]
        else:
            logits = target.logits(features)
            if self.processing is not None:
                logits = self.processing(logits, tree, history, position)
            values, ids = top_candidates(logits, count)
            uniforms = None
            if not params.greedy:
                drawn = keyed_uniforms(params.seed, [position + depth for depth in tree.shape.depth_tuple])
                uniforms = torch.from_numpy(drawn).to(target.device)
            choices = choose(logits, params, uniforms, ids)
            log_norm = logits.float().logsumexp(-1, keepdim=True) if self.log_norm else None
        # one table of integers, so that one transfer brings everything to the host
        columns = [choices[:, None], ids, _bits(values)] + ([] if log_norm is None else [_bits(log_norm)])
        table = torch.cat(columns, dim=1).cpu().numpy()
        floats = np.ascontiguousarray(table[:, 1 + count :].astype(np.int32)).view(np.float32)
        return Verified(
            table[:, 0].tolist(),
            table[:, 1 : 1 + count],
            floats[:, :count],
            None if log_norm is None else floats[:, count],
        )


def check_not_stuck(verified: Verified, nodes: Sequence[int]) -> None:
    """Raises ``ValueError`` if no token at all was allowed after one of ``nodes``, so that its choice means nothing."""
    if any(verified.top_logits[node, 0] == -math.inf for node in nodes):
        raise ValueError(
            "expected at least one token that may come next, got none: bad words, min_tokens, biases of -inf and "
            "logits processors together forbid the whole vocabulary"
        )


def _bits(values: Tensor) -> Tensor:
    """Float32 bit patterns as int64, to travel with ids."""
    return values.float().contiguous().view(torch.int32).long()
