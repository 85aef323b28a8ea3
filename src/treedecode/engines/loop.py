"""The decode loop of one request: draft, plan, verify, commit."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from treedecode.budget import BudgetPlanner
from treedecode.drafters import make_drafter
from treedecode.drafters.base import Drafter
from treedecode.engines.cache import KVCache
from treedecode.engines.judging_cost import judged_cost
from treedecode.engines.request import Request
from treedecode.engines.state import Emission, RequestState, StepObserver
from treedecode.engines.stats import StatsBuilder
from treedecode.engines.target import Target, plain_reference
from treedecode.guard import Guard
from treedecode.surface import Cost


class Decoder:
    """Decodes one request.

    Args:
        target: The model.
        request: What to do.
        drafter: Who proposes trees; None only with ``budget=0``, where no drafter or planner code runs.
        planner: Cuts proposed trees to the size that pays; None keeps them whole.
        observer: Called after every step.

    Attributes:
        state: Of the request; a batch may decode it instead.
    """

    def __init__(
        self,
        target: Target,
        request: Request,
        drafter: Drafter | None = None,
        planner: BudgetPlanner | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        self._target = target
        self.state = RequestState(target, request, drafter, observer)
        self._planner = planner if request.max_drafted else None

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
            of_kind = judged_cost(target, cost, decoder.state.judging)
            decoder._planner = BudgetPlanner(of_kind, Guard(plain_reference(target)))
        return decoder

    @property
    def stats(self) -> StatsBuilder:
        """What the request has cost so far."""
        return self.state.stats

    @property
    def cache(self) -> KVCache:
        """Keys and values of the request, from the first token on."""
        return self.state.cache

    def run(self) -> Iterator[Emission]:
        """Yields the tokens of every step as soon as they are known."""
        state = self.state
        if state.is_empty:
            yield Emission([], "length")
            return
        emission = state.start(self._target.new_cache(state.num_cache_rows))
        yield emission
        if emission.finish_reason is None:
            state.begin_drafting()
        while emission.finish_reason is None:
            emission = self._step()
            yield emission

    @torch.inference_mode()
    def _step(self) -> Emission:
        state, stats, planner = self.state, self.state.stats, self._planner
        prefix_len = state.cache.length
        stats.begin_step()
        drafts = state.can_draft and (planner is None or planner.drafts)
        tree = state.propose() if drafts else state.root()
        if drafts and planner is not None:
            tree = planner.cut(tree, prefix_len)
        stats.end_phase("draft")
        step = state.step_input(tree)
        stats.end_phase("prepare")
        features = self._target.forward(step, state.cache)
        stats.end_phase("forward")
        verified = state.judge(features, tree)
        stats.end_phase("head")
        emission, accepted = state.advance(tree, verified, drafts)
        stats.end_phase("commit")
        stats.end_step(tree.num_drafted, accepted.num_accepted, len(emission.token_ids))
        if planner is not None:
            step_ms = stats.step_ms
            planner.record(tree, accepted.path, prefix_len, sum(step_ms.values()), step_ms["draft"])
            stats.guard_changes = planner.guard_changes
        state.observe(tree, verified, accepted, prefix_len)
        return emission
