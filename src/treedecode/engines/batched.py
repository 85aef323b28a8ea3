"""The decode loop of several requests: every step is one forward pass over the rows of all that are running.

A step has the root and the drafted nodes of every running request, packed without padding; only attention tells the
requests apart. So a request's tokens are those that it gives alone, up to the rounding of float32 products of another
number of rows. A request that ends makes room for the next one at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch

from treedecode.accept import Acceptance
from treedecode.batch_budget import BatchPlanner
from treedecode.budget import AUTO_MAX_DRAFTED
from treedecode.engines.cache import KVCache
from treedecode.engines.judge_batch import judge_batch
from treedecode.engines.judging_cost import judged_cost
from treedecode.engines.state import Emission, RequestState, of_prompt
from treedecode.engines.stats import StepClock
from treedecode.engines.target import Target, plain_reference
from treedecode.surface import Cost
from treedecode.tree import DraftTree

# Prompts that run at once unless the caller says otherwise. A step of 16 rows takes less than twice the time of one row
# (benchmarks/results/hf_step.json), and caches grow with every prompt; on a CPU more rows than that cost in proportion.
DEFAULT_BATCH_SIZE = 16
# With "auto", drafted nodes that the requests of a step are asked for together, and the least that one is asked for:
# drafting takes time for every node, and many requests never get many each.
_ASKED, _LEAST_ASKED = 2 * AUTO_MAX_DRAFTED, 6


class BatchDecoder:
    """Decodes several requests together.

    Args:
        target: The model.
        states: The requests, not started; they wait in this order for their turn.
        batch_size: At most so many requests run at once.
        planner: Cuts the proposed trees of a step to the sizes that pay together; None keeps them whole.

    Raises:
        ValueError: There is no request, ``batch_size`` is below 1, or two requests that may run at once have the same
            drafter.
    """

    def __init__(
        self,
        target: Target,
        states: Sequence[RequestState],
        batch_size: int,
        planner: BatchPlanner | None = None,
    ) -> None:
        if not states:
            raise ValueError("a batch needs at least one request, got none")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if batch_size > 1:
            _check_own_drafters(states)
        self._target, self._states, self._planner = target, list(states), planner
        self._running: list[int] = []
        self._ended: set[int] = set()  # by the caller
        self._finished: set[int] = set()  # by themselves
        self._batch_size = min(batch_size, len(states))
        self._clock = StepClock()
        self._caches: list[KVCache] = []

    @classmethod
    def of(cls, target: Target, states: Sequence[RequestState], cost: Cost, batch_size: int) -> BatchDecoder:
        """A decoder with the planner that the requests' budget asks for; none where it is a number.

        Raises:
            ValueError: As the class; or only some of the requests have an automatic budget.
        """
        automatic = [state.request.budget is None for state in states]
        if len(set(automatic)) > 1:
            raise ValueError(
                f"the requests of a batch share one budget: expected all automatic or none, got {automatic}"
            )
        planner = None
        if all(automatic):
            costs = [judged_cost(target, cost, state.judging) for state in states]
            # where some rows cost more to judge than others, all are taken for the dearest
            dearest = max(costs, key=lambda one: one.at(0).ms(_ASKED), default=cost)
            planner = BatchPlanner(dearest, reference=lambda size: plain_reference(target, size))
        return cls(target, states, batch_size, planner)

    @property
    def caches(self) -> Sequence[KVCache]:
        """One per request that can run at once, allocated together before the first runs."""
        return self._caches

    def end(self, index: int) -> None:
        """The caller has enough of a request; it takes no part in further steps."""
        self._ended.add(index)

    def run(self) -> Iterator[tuple[int, Emission]]:
        """Yields the place of a request and its tokens, for every step of every request.

        An exception of a request's own, such as one of its drafter, carries a note with its place.
        """
        states = self._states
        capacity = max(max(state.num_cache_rows for state in states), 1)
        self._caches = self._target.new_caches(self._batch_size, capacity)
        free, waiting = deque(self._caches), deque(range(len(states)))
        while waiting or self._running:
            while waiting and free:
                index = waiting.popleft()
                if index not in self._ended:
                    yield index, self._start(index, free)
                    self._settle(free)
            for index, emission in self._step() if self._running else ():
                if index not in self._ended:  # by the caller, since the step
                    yield index, emission
            self._settle(free)

    def _start(self, index: int, free: deque[KVCache]) -> Emission:
        state = self._states[index]
        if state.is_empty:
            return Emission([], "length")
        cache = free.popleft()
        cache.clear()
        self._running.append(index)
        with of_prompt(index):
            emission = state.start(cache)
            if emission.finish_reason is None:
                state.begin_drafting()
        self._finished.update([index] if emission.finish_reason else [])
        return emission

    def _settle(self, free: deque[KVCache]) -> None:
        """Requests that have ended, by themselves or by the caller, give their caches back."""
        for index in [index for index in self._running if index in self._ended | self._finished]:
            self._running.remove(index)
            free.append(self._states[index].cache)
            self._states[index].release()

    @torch.inference_mode()
    def _step(self) -> list[tuple[int, Emission]]:
        clock, planner = self._clock, self._planner
        places = list(self._running)
        states = [self._states[index] for index in places]
        prefix_lens = [state.prefix_len for state in states]
        clock.begin_step()
        wanted = planner is None or planner.drafts(len(states))
        drafts = [wanted and state.can_draft for state in states]
        trees = self._drafted(places, drafts)
        if planner is not None:
            cut = planner.cut(dict(zip(places, trees, strict=True)), prefix_lens)
            trees = list(cut.values())
        clock.end_phase("draft")
        steps = [state.step_input(tree) for state, tree in zip(states, trees, strict=True)]
        clock.end_phase("prepare")
        features = self._target.forward_batch(steps, [state.cache for state in states])
        clock.end_phase("forward")
        verified = judge_batch(self._target, features, dict(zip(places, states, strict=True)), trees)
        clock.end_phase("head")
        walked = []
        for index, tree, said, drafted in zip(places, trees, verified, drafts, strict=True):
            with of_prompt(index):
                walked.append(self._states[index].advance(tree, said, drafted))
        clock.end_phase("commit")
        accepted: list[Acceptance] = [acceptance for _, acceptance in walked]
        for state, tree, acceptance in zip(states, trees, accepted, strict=True):
            state.stats.step_ms = clock.step_ms
            state.stats.end_step(tree.num_drafted, acceptance.num_accepted, len(acceptance.token_ids))
        if planner is not None:
            draft_ms = clock.step_ms["draft"]
            rest_ms = sum(clock.step_ms.values()) - draft_ms
            planner.record(
                dict(zip(places, zip(trees, accepted, strict=True), strict=True)), rest_ms, draft_ms
            )
        for place, state in enumerate(states):
            state.observe(trees[place], verified[place], accepted[place], prefix_lens[place])
        emissions = [(index, emission) for index, (emission, _) in zip(places, walked, strict=True)]
        self._finished.update(index for index, emission in emissions if emission.finish_reason)
        return emissions

    def _drafted(self, places: Sequence[int], drafts: Sequence[bool]) -> list[DraftTree]:
        width = None if self._planner is None else max(_LEAST_ASKED, _ASKED // len(places))
        trees = []
        for index, drafted in zip(places, drafts, strict=True):
            state = self._states[index]
            with of_prompt(index):
                trees.append(state.propose(width) if drafted else state.root())
        return trees


def _check_own_drafters(states: Sequence[RequestState]) -> None:
    first: dict[int, int] = {}
    for place, state in enumerate(states):
        if state.drafter is not None and first.setdefault(id(state.drafter), place) != place:
            raise ValueError(
                "a drafter serves one request at a time: expected one each, a name or batch_size=1, got the same "
                f"object for prompts {first[id(state.drafter)]} and {place}"
            )
