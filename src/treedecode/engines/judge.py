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
from treedecode.engines.grammar import GrammarMask
from treedecode.engines.logprobs import RowLogprobs, TokenLogprobs, row_logprobs
from treedecode.engines.params import SamplingParams
from treedecode.engines.processing import Processing, Stage
from treedecode.engines.processors import LogitsProcessors
from treedecode.engines.request import Request
from treedecode.engines.sampling import choose
from treedecode.engines.target import Scorer, Target
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
        logprobs: Of choices and likeliest tokens; None unless asked for.
    """

    choices: list[int]
    top_ids: np.ndarray
    top_logits: np.ndarray
    log_norm: np.ndarray | None = None
    logprobs: RowLogprobs | None = None

    def logprobs_of(self, nodes: Sequence[int], token_ids: Sequence[int]) -> list[TokenLogprobs] | None:
        """Of tokens that were the choices after ``nodes``; None unless they were asked for."""
        return None if self.logprobs is None else self.logprobs.of(nodes, token_ids)


@dataclass(frozen=True)
class Judging:
    """How the rows of one request are judged.

    Attributes:
        params: How the target chooses.
        num_candidates: Best next tokens per row.
        log_norm: Whether softmax denominators are wanted, as traces do.
        num_logprobs: Log probabilities of so many of the likeliest tokens are wanted, and of the choice; None for none.
        processing: What the logits of a row become, given its path; None where nothing is asked for.
        grammar: Its last stage, which also knows which drafts are in vain; None without one.
    """

    params: SamplingParams
    num_candidates: int
    log_norm: bool = False
    num_logprobs: int | None = None
    processing: Processing | None = field(default=None, compare=False)
    grammar: GrammarMask | None = field(default=None, compare=False)

    @classmethod
    def of(cls, target: Target, request: Request, wants_rows: bool, traced: bool) -> Judging:
        """For a request whose rows a drafter or an observer sees, or nobody does.

        Raises:
            ValueError: A token id of its parameters is not in the vocabulary; a grammar without a stop token.
        """
        params, grammar = request.sampling, None
        count = NUM_CANDIDATES if wants_rows or traced else 1
        more: list[Stage] = []
        if request.processors:
            more.append(LogitsProcessors(request.processors, request.padding, shared=request.max_drafted > 0))
        if request.grammar is not None:
            matcher = request.grammar.matcher()
            grammar = GrammarMask(matcher, request.stop_ids, target.vocab_size, params.min_tokens)
            params = replace(params, min_tokens=0)
            more.append(grammar)
        processing = Processing(params, request.stop_ids, target.vocab_size, more)
        count = min(count, target.vocab_size)
        return cls(request.sampling, count, traced, request.num_logprobs, processing or None, grammar)

    @property
    def needs_logits(self) -> bool:
        """Whether all logits are needed; if not, a screened head finds the candidates for less."""
        wanted = self.log_norm or self.num_logprobs is not None
        return wanted or self.processing is not None or not self.params.greedy

    def kind(self, vocab_size: int) -> Judging:
        """What requests have in common whose rows cost the same: equal for them, and fit to be timed.

        Seeds do not matter, and whatever is done to a few tokens of a row costs what a penalty costs. What the user's
        processors and a grammar cost is not known before they run: they are left out, and the guard sees the rest.
        """
        params = SamplingParams(
            self.params.temperature, self.params.top_k, self.params.top_p, self.params.min_p
        )
        if self.processing is None:
            return replace(self, params=params, grammar=None)
        params = replace(params, presence_penalty=1.0)
        return replace(self, params=params, processing=Processing(params, (), vocab_size), grammar=None)

    def prune(self, tree: DraftTree, history: Sequence[int], num_output: int) -> DraftTree:
        """``tree`` without drafts that are known to be in vain; see ``GrammarMask.prune``."""
        return tree if self.grammar is None else self.grammar.prune(tree, history, num_output)

    def __call__(
        self, target: Scorer, features: Tensor, tree: DraftTree, history: Sequence[int], position: int
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
        if not self.needs_logits:
            values, ids = target.top(features, self.num_candidates)
            choices, ids, values = to_host([ids[:, :1], ids, values])
            return Verified(choices[:, 0].tolist(), ids, values)
        raw = logits = target.logits(features)
        if self.processing is not None:
            logits = self.processing(logits, tree, history, position)
        values, ids = top_candidates(logits, self.num_candidates)
        values = values.clamp(
            max=torch.finfo(torch.float32).max
        )  # infinity chooses, but has no distance to the rest
        uniforms = None
        if not self.params.greedy:
            drawn = keyed_uniforms(self.params.seed, [position + depth for depth in tree.shape.depth_tuple])
            uniforms = torch.from_numpy(drawn).to(target.device)
        chosen = choose(logits, self.params, uniforms, ids)
        wanted = [chosen[:, None], ids, values]
        if self.log_norm:
            wanted.append(logits.float().logsumexp(-1, keepdim=True))
        if self.num_logprobs is not None:
            in_range = chosen.clamp(max=raw.shape[-1] - 1)  # see check_choices
            wanted += row_logprobs(raw, in_range, self.num_logprobs)
        choices, ids, values, *more = to_host(wanted)
        log_norm = more.pop(0)[:, 0] if self.log_norm else None
        return Verified(choices[:, 0].tolist(), ids, values, log_norm, RowLogprobs(*more) if more else None)


def check_choices(verified: Verified, nodes: Sequence[int], vocab_size: int) -> None:
    """Raises ``ValueError`` if a choice after one of ``nodes`` means nothing: no token was allowed, or NaN came up."""
    for node in nodes:
        best = verified.top_logits[node, 0]
        if best == -math.inf:
            raise ValueError(
                "expected at least one token that may come next, got none: bad words, min_tokens, biases of -inf, "
                "logits processors and grammar together forbid the whole vocabulary"
            )
        # of probabilities that are NaN no token is drawn: the draw ends behind the last one
        if math.isnan(best) or verified.choices[node] >= vocab_size:
            raise ValueError(
                f"expected logits to choose from, got {best:g} as the best: the model or a logits processor gave NaN "
                "or, for sampling, infinity or what is infinite once divided by the temperature"
            )


def to_host(tables: Sequence[Tensor]) -> list[np.ndarray]:
    """Tables ``[N, ...]`` of int64 and floats (as float32) in one transfer: floats travel as bits among integers."""
    as_bits = [
        table.float().contiguous().view(torch.int32).long() if table.is_floating_point() else table
        for table in tables
    ]
    whole = torch.cat(as_bits, dim=1).cpu().numpy()
    parts = np.split(whole, np.cumsum([table.shape[1] for table in tables])[:-1], axis=1)
    return [
        np.ascontiguousarray(part.astype(np.int32)).view(np.float32) if table.is_floating_point() else part
        for part, table in zip(parts, tables, strict=True)
    ]
