"""The decode loop: draft, plan, verify, commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from treedecode.accept import Acceptance, accept_greedy, truncate_at_stop
from treedecode.budget import BudgetPlanner
from treedecode.drafters import make_drafter
from treedecode.drafters.base import (
    NUM_CANDIDATES,
    DraftContext,
    Drafter,
    VerifiedRows,
    check_draft,
    check_is_tree,
)
from treedecode.engines.dense import DenseRows
from treedecode.engines.judge import Judging, Verified, check_not_stuck
from treedecode.engines.judging_cost import judged_cost
from treedecode.engines.logprobs import TokenLogprobs
from treedecode.engines.request import Request
from treedecode.engines.rows import RowQueue
from treedecode.engines.stats import StatsBuilder
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target, plain_reference
from treedecode.guard import Guard
from treedecode.surface import Cost
from treedecode.tree import DraftTree

# Prompt rows per forward pass.
PREFILL_CHUNK = 256
# Prompt rows per vocabulary product, so that prompt logits are never held together.
_HEAD_CHUNK = 32


class StepObserver(Protocol):
    """Told of every step, for traces and tests."""

    def __call__(
        self,
        tree: DraftTree,
        verified: Verified,
        acceptance: Acceptance,
        prefix_len: int,
        step_ms: dict[str, float],
    ) -> None: ...


@dataclass(frozen=True)
class Emission:
    """Tokens of one step, why generation ends with it (None: it goes on), and log probabilities if asked for."""

    token_ids: list[int]
    finish_reason: str | None
    logprobs: list[TokenLogprobs] | None = None


class Decoder:
    """Decodes one request.

    Args:
        target: The model.
        request: What to do.
        drafter: Who proposes trees; None only with ``budget=0``, where no drafter or planner code runs.
        planner: Cuts proposed trees to the size that pays; None keeps them whole.
        observer: Called after every step.
    """

    def __init__(
        self,
        target: Target,
        request: Request,
        drafter: Drafter | None = None,
        planner: BudgetPlanner | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        if drafter is None and request.max_drafted:
            raise ValueError(f"a budget of {request.max_drafted} drafted nodes needs a drafter, got None")
        self._target, self._request, self._observer = target, request, observer
        self._drafter = drafter if request.max_drafted else None
        self._planner = planner if request.max_drafted else None
        self.stats = StatsBuilder(len(request.prompt_ids))
        self._token_ids = list(request.prompt_ids)
        room = request.max_new_tokens
        if target.max_positions is not None:
            room = min(room, target.max_positions - len(request.prompt_ids))
        self._max_new_tokens = room
        self._rows = RowQueue()
        self._dense = DenseRows() if request.dense else None
        self._judging = Judging.of(target, request, self._drafter is not None, traced=observer is not None)

    @classmethod
    def of(
        cls,
        target: Target,
        request: Request,
        drafter: str | Drafter,
        cost: Cost,
        observer: StepObserver | None = None,
    ) -> Decoder:
        """A decoder with the drafter and planner that the request's budget asks for; none of either with budget 0."""
        proposer = make_drafter(drafter) if request.max_drafted else None
        decoder = cls(target, request, proposer, None, observer)
        # a dense trace wants whole trees: replay cuts them
        if request.budget is None and not request.dense:
            of_kind = judged_cost(target, cost, decoder._judging)
            decoder._planner = BudgetPlanner(of_kind, Guard(plain_reference(target)))
        return decoder

    @torch.inference_mode()
    def _start(self) -> Emission:
        """Prefill: the first token."""
        began = time.perf_counter()
        request, target = self._request, self._target
        prompt = self._token_ids
        self.cache = target.new_cache(len(prompt) + self._max_new_tokens + request.max_drafted)
        shown = min(request.prompt_rows if self._drafter is not None else 0, len(prompt))
        tail: list[Tensor] = []
        for first in range(0, len(prompt), PREFILL_CHUNK):
            chunk = prompt[first : first + PREFILL_CHUNK]
            step = StepInput.of_chain(chunk, first, target.device, target.dtype)
            keep_rows = max(1, first + len(chunk) - (len(prompt) - shown))
            tail.append(target.forward(step, self.cache, keep_rows))
            self.cache.length += len(chunk)
            self.stats.num_prefill_passes += 1
        verified = self._judge(tail[-1][-1:], DraftTree.root_only(prompt[-1]))
        check_not_stuck(verified, [0])
        self._prompt_features = torch.cat(tail)[-shown:] if shown else None
        token_ids, reason = truncate_at_stop(verified.choices, request.stop_ids, self._max_new_tokens)
        self._token_ids.extend(token_ids)
        self.stats.num_emitted = len(token_ids)
        self.stats.prefill_ms = 1e3 * (time.perf_counter() - began)
        return Emission(token_ids, reason, verified.logprobs_of([0], token_ids))

    def run(self) -> Iterator[Emission]:
        """Yields the tokens of every step as soon as they are known."""
        if self._max_new_tokens <= 0:
            yield Emission([], "length")
            return
        emission = self._start()
        yield emission
        if emission.finish_reason is None and self._drafter is not None:
            self._drafter.begin(list(self._request.prompt_ids))
            self._read_prompt_rows()
        while emission.finish_reason is None:
            emission = self._step()
            yield emission

    @torch.inference_mode()
    def _step(self) -> Emission:
        target, stats = self._target, self.stats
        remaining = self._max_new_tokens - stats.num_emitted
        prefix_len = self.cache.length
        stats.begin_step()
        drafts = self._planner is None or self._planner.drafts
        tree = self._draft(remaining - 1) if drafts else DraftTree.root_only(self._token_ids[-1])
        stats.end_phase("draft")
        step = StepInput.of_tree(tree, prefix_len, target.device, target.dtype)
        stats.end_phase("prepare")
        features = target.forward(step, self.cache)
        stats.end_phase("forward")
        verified = self._judge(features, tree)
        stats.end_phase("head")
        walk = walked = accept_greedy(tree, verified.choices)
        if self._dense is not None:
            walked = Acceptance([0], walk.token_ids[:1], 0)  # the next position gets a tree of its own
        token_ids, reason = truncate_at_stop(walked.token_ids, self._request.stop_ids, remaining)
        accepted = walked.cut(len(token_ids))
        check_not_stuck(verified, accepted.path[: len(token_ids)])
        self.cache.commit(accepted.path)
        if self._drafter is not None:
            path = tuple(accepted.path)
            root_index = len(self._token_ids) - 1
            rows = VerifiedRows(tree, root_index, path, verified.top_ids, verified.top_logits)
            add = self._rows.add if drafts else self._rows.add_plain
            add(rows if self._dense is None else self._dense.shown(rows, walk.path))
        self._token_ids.extend(token_ids)
        stats.end_phase("commit")
        stats.end_step(tree.num_drafted, accepted.num_accepted, len(token_ids))
        if self._planner is not None:
            self._planner.record(
                tree, accepted.path, prefix_len, sum(stats.step_ms.values()), stats.step_ms["draft"]
            )
            stats.guard_changes = self._planner.guard_changes
        if self._observer is not None:
            self._observer(tree, verified, accepted, prefix_len, stats.step_ms)
        return Emission(token_ids, reason, verified.logprobs_of(accepted.path, token_ids))

    def _draft(self, max_depth: int) -> DraftTree:
        """The tree of this step, no deeper than tokens can still be emitted."""
        max_drafted = self._request.max_drafted if max_depth else 0
        if self._drafter is None or not max_drafted:
            return DraftTree.root_only(self._token_ids[-1])
        context = DraftContext(
            self._token_ids, len(self._request.prompt_ids), max_drafted, max_depth, self._rows.take()
        )
        tree = self._drafter.propose(context)
        tree = check_is_tree(tree, self._drafter.name).prefix(max_drafted).within_depth(max_depth)
        check_draft(tree, self._token_ids[-1], self._target.vocab_size, self._drafter.name)
        tree = self._judging.prune(
            tree, self._token_ids, len(self._token_ids) - len(self._request.prompt_ids)
        )
        return tree if self._planner is None else self._planner.cut(tree, self.cache.length)

    def _judge(self, features: Tensor, tree: DraftTree) -> Verified:
        position = len(self._token_ids) - len(self._request.prompt_ids)
        return self._judging(self._target, features, tree, self._token_ids, position)

    @torch.inference_mode()
    def _read_prompt_rows(self) -> None:
        """Shows the drafter what the target would have said after the last prompt tokens, a chunk at a time."""
        features, self._prompt_features = self._prompt_features, None
        if features is None:
            return
        count = min(NUM_CANDIDATES, self._target.vocab_size)
        parts = [self._target.top(rows, count) for rows in features.split(_HEAD_CHUNK)]
        values = torch.cat([part[0] for part in parts]).float().cpu().numpy()
        ids = torch.cat([part[1] for part in parts]).cpu().numpy()
        prompt = self._request.prompt_ids
        first = len(prompt) - len(ids)
        nodes = range(len(ids))
        tree = DraftTree.trusted([node - 1 for node in nodes], prompt[first:])
        self._rows.add(VerifiedRows(tree, first, tuple(nodes), ids, values))
