"""One request while it is decoded: its tokens, its cache, its drafter and what that has yet to see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from treedecode.accept import Acceptance, accept_greedy, truncate_at_stop
from treedecode.drafters.base import (
    NUM_CANDIDATES,
    DraftContext,
    Drafter,
    VerifiedRows,
    check_draft,
    check_is_tree,
)
from treedecode.engines.cache import KVCache
from treedecode.engines.dense import DenseRows
from treedecode.engines.judge import Judging, Verified, check_choices
from treedecode.engines.logprobs import TokenLogprobs
from treedecode.engines.request import Request
from treedecode.engines.rows import RowQueue
from treedecode.engines.stats import StatsBuilder
from treedecode.engines.step import StepInput
from treedecode.engines.target import Scorer, Target, check_autocast
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


@contextmanager
def of_prompt(index: int) -> Iterator[None]:
    """Says of an exception which prompt of several it is about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"This was prompt {index} of the batch.")
        raise


class RequestState:
    """What a request is in between steps, alone or in a batch; who runs the forward pass times it and plans for it.

    Args:
        target: The model.
        request: What to do.
        drafter: Who proposes trees; None only with ``budget=0``, where no drafter code runs.
        observer: Called after every step.

    Attributes:
        request: As given.
        drafter: As given; None with ``budget=0``, and once the request has been released.
        judging: How its rows are judged.
        stats: What it has cost so far.
        cache: Its keys and values; from ``start`` on.
    """

    cache: KVCache

    def __init__(
        self,
        target: Target,
        request: Request,
        drafter: Drafter | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        if drafter is None and request.max_drafted:
            raise ValueError(f"a budget of {request.max_drafted} drafted nodes needs a drafter, got None")
        self._target, self.request, self._observer = target, request, observer
        self.drafter = drafter if request.max_drafted else None
        self.stats = StatsBuilder(len(request.prompt_ids))
        self._token_ids = list(request.prompt_ids)
        room = request.max_new_tokens
        if target.max_positions is not None:
            room = min(room, target.max_positions - len(request.prompt_ids))
        self._max_new_tokens = room
        self._rows = RowQueue()
        self._dense = DenseRows() if request.dense else None
        self.judging = Judging.of(target, request, self.drafter is not None, traced=observer is not None)

    @property
    def is_empty(self) -> bool:
        """Whether no token may be emitted at all."""
        return self._max_new_tokens <= 0

    @property
    def num_cache_rows(self) -> int:
        """Rows of the cache that it can come to need: prompt, output and the widest tree."""
        return len(self.request.prompt_ids) + self._max_new_tokens + self.request.max_drafted

    @property
    def can_draft(self) -> bool:
        """Whether the next step may verify drafts: there is a drafter, and more than one token is left to emit."""
        return self.drafter is not None and self._num_left > 1

    @property
    def prefix_len(self) -> int:
        """Tokens whose keys and values are in the cache."""
        return self.cache.length

    @property
    def _num_output(self) -> int:
        """Tokens after the prompt; also the output position of the next one."""
        return len(self._token_ids) - len(self.request.prompt_ids)

    @property
    def _num_left(self) -> int:
        return self._max_new_tokens - self.stats.num_emitted

    @torch.inference_mode()
    def start(self, cache: KVCache) -> Emission:
        """Runs the prompt: the first token. The drafter sees the prompt if the request goes on.

        Args:
            cache: Empty, with at least ``num_cache_rows`` rows.
        """
        began = time.perf_counter()
        request, target = self.request, self._target
        check_autocast(target.device)
        prompt = self._token_ids
        self.cache = cache
        shown = min(request.prompt_rows if self.drafter is not None else 0, len(prompt))
        tail: list[Tensor] = []
        for first in range(0, len(prompt), PREFILL_CHUNK):
            chunk = prompt[first : first + PREFILL_CHUNK]
            step = StepInput.of_chain(chunk, first, target.device, target.dtype)
            keep_rows = max(1, first + len(chunk) - (len(prompt) - shown))
            tail.append(target.forward(step, cache, keep_rows))
            cache.length += len(chunk)
            self.stats.num_prefill_passes += 1
        verified = self.judge(tail[-1][-1:], self.root())
        check_choices(verified, [0], target.vocab_size)
        self._prompt_features = torch.cat(tail)[-shown:] if shown else None
        token_ids, reason = truncate_at_stop(verified.choices, request.stop_ids, self._max_new_tokens)
        self._token_ids.extend(token_ids)
        self.stats.num_emitted = len(token_ids)
        self.stats.prefill_ms = 1e3 * (time.perf_counter() - began)
        return Emission(token_ids, reason, verified.logprobs_of([0], token_ids))

    @torch.inference_mode()
    def begin_drafting(self) -> None:
        """Shows the drafter the prompt, and what the target would have said after the last prompt tokens."""
        if self.drafter is None:
            return
        self.drafter.begin(list(self.request.prompt_ids))
        features, self._prompt_features = self._prompt_features, None
        if features is None:
            return
        count = min(NUM_CANDIDATES, self._target.vocab_size)
        parts = [self._target.top(rows, count) for rows in features.split(_HEAD_CHUNK)]
        values = torch.cat([part[0] for part in parts]).float().cpu().numpy()
        ids = torch.cat([part[1] for part in parts]).cpu().numpy()
        prompt = self.request.prompt_ids
        first = len(prompt) - len(ids)
        nodes = range(len(ids))
        tree = DraftTree.trusted([node - 1 for node in nodes], prompt[first:])
        self._rows.add(VerifiedRows(tree, first, tuple(nodes), ids, values))

    def root(self) -> DraftTree:
        """The tree of a plain step: the last token alone."""
        return DraftTree.root_only(self._token_ids[-1])

    def propose(self, max_drafted: int | None = None) -> DraftTree:
        """The drafter's tree for the next step, no deeper than tokens can still be emitted.

        Args:
            max_drafted: At most this many drafted nodes, where that is less than the request's own limit.

        Raises:
            TypeError, ValueError: The drafter proposed what is no tree, or one that the target cannot verify.
        """
        drafter, max_depth, width = self.drafter, self._num_left - 1, self.request.max_drafted
        if drafter is None or max_depth <= 0:
            return self.root()
        width = width if max_drafted is None else min(width, max_drafted)
        context = DraftContext(
            self._token_ids, len(self.request.prompt_ids), width, max_depth, self._rows.take()
        )
        tree = check_is_tree(drafter.propose(context), drafter.name).prefix(width).within_depth(max_depth)
        check_draft(tree, self._token_ids[-1], self._target.vocab_size, drafter.name)
        return self.judging.prune(tree, self._token_ids, self._num_output)

    def step_input(self, tree: DraftTree) -> StepInput:
        """The next step as the target sees it.

        Raises:
            ValueError: Inside ``torch.autocast``.
        """
        check_autocast(self._target.device)
        return StepInput.of_tree(tree, self.cache.length, self._target.device, self._target.dtype)

    def judge(self, features: Tensor, tree: DraftTree, scorer: Scorer | None = None) -> Verified:
        """What the target says after every node of a step.

        Args:
            features: One row per node.
            tree: Of the step.
            scorer: What scores the rows, if not the model itself.
        """
        return self.judging(scorer or self._target, features, tree, self._token_ids, self._num_output)

    def advance(self, tree: DraftTree, verified: Verified, drafted: bool) -> tuple[Emission, Acceptance]:
        """Walks the tree, commits what was accepted and takes the tokens over.

        Args:
            tree: Of the step just run.
            verified: What the target said about it.
            drafted: Whether the drafter had a part in it.
        """
        walk = walked = accept_greedy(tree, verified.choices)
        if self._dense is not None:
            walked = Acceptance([0], walk.token_ids[:1], 0)  # the next position gets a tree of its own
        token_ids, reason = truncate_at_stop(walked.token_ids, self.request.stop_ids, self._num_left)
        accepted = walked.cut(len(token_ids))
        check_choices(verified, accepted.path[: len(token_ids)], self._target.vocab_size)
        self.cache.commit(accepted.path)
        if self.drafter is not None:
            path = tuple(accepted.path)
            root_index = len(self._token_ids) - 1
            rows = VerifiedRows(tree, root_index, path, verified.top_ids, verified.top_logits)
            add = self._rows.add if drafted else self._rows.add_plain
            add(rows if self._dense is None else self._dense.shown(rows, walk.path))
        self._token_ids.extend(token_ids)
        return Emission(token_ids, reason, verified.logprobs_of(accepted.path, token_ids)), accepted

    def observe(self, tree: DraftTree, verified: Verified, accepted: Acceptance, prefix_len: int) -> None:
        """Tells the observer of the step just booked in ``stats``."""
        if self._observer is not None:
            self._observer(tree, verified, accepted, prefix_len, self.stats.step_ms)

    def release(self) -> None:
        """Lets go of what only further steps would need; its cache may serve another request."""
        self.drafter, self._rows, self._prompt_features = None, RowQueue(), None
