"""What the target says after every node of a step: its own choice, its best candidates, and what traces want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treedecode.drafters.base import NUM_CANDIDATES
from treedecode.engines.candidates import top_candidates
from treedecode.engines.sampling import SamplingParams, apply_repetition_penalty, choose
from treedecode.engines.target import Target
from treedecode.streams import keyed_uniforms
from treedecode.tree import DraftTree


@dataclass(frozen=True)
class Verified:
    """What the target said about one step, on the host.

    Attributes:
        choices: int64 ``[N]``, the target's own choice after each node.
        top_ids: int64 ``[N, k]``, its best next tokens.
        top_logits: float32 ``[N, k]``, their logits, descending.
        log_norm: float32 ``[N]``, log of the softmax denominator; None unless asked for.
    """

    choices: list[int]
    top_ids: np.ndarray
    top_logits: np.ndarray
    log_norm: np.ndarray | None = None


@dataclass(frozen=True)
class Judging:
    """How the rows of a request are judged. Equal ones cost the same, whatever their seeds.

    Attributes:
        params: How the target chooses; the seed apart, it decides what a row costs.
        num_candidates: Best next tokens per row.
        log_norm: Whether softmax denominators are wanted, as traces do.
    """

    params: SamplingParams
    num_candidates: int
    log_norm: bool = False

    @classmethod
    def of(cls, target: Target, params: SamplingParams, wants_rows: bool, traced: bool) -> Judging:
        """For a request with these parameters, whose rows a drafter or an observer sees or nobody does."""
        count = NUM_CANDIDATES if wants_rows or traced else 1
        return cls(params, min(count, target.vocab_size), traced)

    @property
    def needs_logits(self) -> bool:
        """Whether all logits are needed; if not, a screened head finds the candidates for less."""
        return self.log_norm or self.params.penalised or not self.params.greedy

    def __call__(
        self, target: Target, features: Tensor, tree: DraftTree, history: Sequence[int], position: int
    ) -> Verified:
        """The target's choice and best candidates after every node; the one host synchronisation of a step.

        Args:
            target: Whose rows they are.
            features: From its ``forward``, one row per node.
            tree: Of the step.
            history: Token ids of prompt and output up to the root, for penalties.
            position: Output position of the token after the root, the key of its noise.
        """
        params, count = self.params, self.num_candidates
        log_norm = None
        if not self.needs_logits:
            values, ids = target.top(features, count)
            choices = ids[:, 0]
        else:
            logits = target.logits(features)
            if params.penalised:
                seen = torch.tensor(sorted(set(history)), device=logits.device)
                logits = apply_repetition_penalty(logits, tree, seen, params.repetition_penalty or 1.0)
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


def _bits(values: Tensor) -> Tensor:
    """Float32 bit patterns as int64, to travel with ids."""
    return values.float().contiguous().view(torch.int32).long()
