"""Batches: every request gives what it gives alone, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from tests.engines.tiny import (
    FUSED,
    LONG,
    PROMPTS,
    SHORT,
    VOCAB,
    WINDOW,
    decode,
    make_tiny,
    reference,
    target_of,
)
from treedecode.batch_budget import BatchPlanner
from treedecode.cost import CostCurve
from treedecode.drafters import make_drafter
from treedecode.drafters.base import DraftContext
from treedecode.engines import batched, hf_forward
from treedecode.engines.batched import BatchDecoder
from treedecode.engines.build import build_target
from treedecode.engines.cache import KVCache
from treedecode.engines.fused_layer import FusedLayer
from treedecode.engines.params import SamplingParams
from treedecode.engines.request import Request
from treedecode.engines.state import RequestState
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target
from treedecode.testing.drafters import AdversarialDrafter
from treedecode.tree import DraftTree, TreeShape

RAGGED = [PROMPTS[SHORT], PROMPTS[LONG], [3, 4], [7] * 20, [9, 8, 7, 6, 5, 4, 3, 2, 1], [60]]
COUNT = 30
FLAT, STEEP = CostCurve([1, 4096], [10.0, 10.001]), CostCurve([1, 4096], [10.0, 40960.0])


class Outputs:
    """A finished batch: tokens and reasons by prompt, and how many caches held a request after every step."""

    def __init__(
        self, decoder: BatchDecoder, num_prompts: int, stop_after: dict[int, int] | None = None
    ) -> None:
        self.token_ids: list[list[int]] = [[] for _ in range(num_prompts)]
        self.reasons: list[str | None] = [None] * num_prompts
        self.pointers: set[tuple[int, ...]] = set()
        for index, emission in decoder.run():
            assert self.reasons[index] is None
            self.token_ids[index] += emission.token_ids
            self.reasons[index] = emission.finish_reason
            self.pointers.add(tuple(pointer for cache in decoder.caches for pointer in cache.data_ptrs()))
            if stop_after and len(self.token_ids[index]) >= stop_after.get(index, 10**9):
                decoder.end(index)


def run(
    target: Target,
    prompts: Sequence[Sequence[int]] = RAGGED,
    drafters: Sequence[Any] | None = None,
    budget: int | None = 12,
    batch_size: int = 8,
    count: int | Sequence[int] = COUNT,
    sampling: Sequence[SamplingParams] | None = None,
    cost: CostCurve = FLAT,
) -> list[list[int]]:
    """Tokens of every prompt; from the adversary's drafts if none are given."""
    states = make_states(target, prompts, drafters, budget, count, sampling)
    return Outputs(BatchDecoder.of(target, states, cost, batch_size), len(prompts)).token_ids


def make_states(
    target: Target,
    prompts: Sequence[Sequence[int]] = RAGGED,
    drafters: Sequence[Any] | None = None,
    budget: int | None = 12,
    count: int | Sequence[int] = COUNT,
    sampling: Sequence[SamplingParams] | None = None,
    **options: Any,
) -> list[RequestState]:
    counts = [count] * len(prompts) if isinstance(count, int) else count
    params = sampling or [SamplingParams()] * len(prompts)
    if drafters is None:
        drafters = [
            None
            if budget == 0
            else AdversarialDrafter([*prompt, *alone(target, prompt, counts[i], params[i])], VOCAB, seed=i)
            for i, prompt in enumerate(prompts)
        ]
    return [
        RequestState(target, Request(tuple(prompt), counts[i], budget, params[i], **options), drafters[i])
        for i, prompt in enumerate(prompts)
    ]


def alone(target: Target, prompt: Sequence[int], count: int, params: SamplingParams) -> list[int]:
    options = {name: getattr(params, name) for name in params.__dataclass_fields__}
    return decode(target, list(prompt), None, 0, count, **options)


def solo(target: Target, prompts: Sequence[Sequence[int]] = RAGGED, count: int = COUNT) -> list[list[int]]:
    return [alone(target, prompt, count, SamplingParams()) for prompt in prompts]


TARGETS = [(name, "fused") for name in FUSED] + [
    (name, "transformers") for name in ("llama", "gemma3", "gpt_neox", "olmo2")
]


@pytest.mark.parametrize(("name", "implementation"), TARGETS)
def test_every_row_equals_its_solo_run(name: str, implementation: str) -> None:
    """CASES 29: ragged prompts, ragged trees, greedy in float64."""
    target = target_of(name, implementation)
    expected = solo(target)
    assert expected[1] == reference(name, LONG)[:COUNT]
    for batch_size, budget in ((8, 0), (8, 12), (4, 12), (2, None)):
        assert run(target, budget=budget, batch_size=batch_size) == expected, (batch_size, budget)


class Fixed:
    """Chains of one size: right ones, of which the last token is wrong."""

    name = "fixed"

    def __init__(self, truth: Sequence[int], size: int) -> None:
        self.truth, self.size = list(truth), size

    def begin(self, prompt_ids: list[int]) -> None: ...

    def propose(self, context: DraftContext) -> DraftTree:
        done = len(context.token_ids)
        ahead = self.truth[done : done + min(self.size, context.max_depth)]
        if ahead:
            ahead[-1] = (ahead[-1] + 1) % VOCAB
        return DraftTree(TreeShape.chain(len(ahead)), [context.token_ids[-1], *ahead])


@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_trees_of_0_3_0_7_and_1_nodes_in_one_batch(implementation: str) -> None:
    """CASES 29: rows without drafts beside rows with them."""
    target, sizes, prompts = target_of("gemma3", implementation), [0, 3, 0, 7, 1], RAGGED[:5]
    expected = solo(target, prompts)
    drafters = [
        Fixed([*prompt, *output], size) for prompt, output, size in zip(prompts, expected, sizes, strict=True)
    ]
    states = make_states(target, prompts, drafters, budget=7)
    assert Outputs(BatchDecoder(target, states, 5), 5).token_ids == expected
    assert [state.stats.nodes_per_step[0] for state in states] == sizes
    assert [state.stats.emitted_per_step[0] for state in states] == [1, 3, 1, 7, 1]


@pytest.mark.parametrize("order", [(SHORT, LONG), (LONG, SHORT)])
@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_one_request_shorter_and_one_longer_than_the_window(
    order: tuple[str, str], implementation: str
) -> None:
    """CASES 10, in both orders; the short one stays within the window."""
    target, prompts = target_of("gemma3", implementation), [PROMPTS[name] for name in order]
    counts = [WINDOW - len(PROMPTS[SHORT]) if name == SHORT else COUNT for name in order]
    expected = [reference("gemma3", name)[:count] for name, count in zip(order, counts, strict=True)]
    assert run(target, prompts, count=counts) == expected


@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_temperatures_0_1_0_and_a_half(implementation: str) -> None:
    """CASES 22: each row draws with its own seed at its own positions, whoever is beside it."""
    target, prompts = target_of("llama", implementation), RAGGED[:4]
    params = [
        SamplingParams(),
        SamplingParams(1.0, seed=3),
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(0.5, top_k=20, top_p=0.9, seed=4),
    ]
    expected = [alone(target, prompt, COUNT, own) for prompt, own in zip(prompts, params, strict=True)]
    assert expected[1] != solo(target, prompts)[1]
    for budget in (0, 12, None):
        assert run(target, prompts, budget=budget, sampling=params) == expected
        turned = run(target, prompts[::-1], budget=budget, sampling=params[::-1], batch_size=3)
        assert turned == expected[::-1]


def test_rows_that_finish_early_make_room() -> None:
    """Lengths of 0 and 1 among longer ones, a stop token, and two caches for all: allocated once, used again."""
    target, counts = target_of("gemma3", "fused"), [1, COUNT, 3, 0, 17, 12]
    whole = solo(target)
    stop = whole[1][9]
    expected, reasons = [], []
    for output, count in zip(whole, counts, strict=True):
        ends = output.index(stop) + 1 if stop in output[:count] else count
        expected.append(output[:ends])
        reasons.append("stop" if stop in output[:count] else "length")
    states = make_states(target, count=counts, stop_ids=frozenset([stop]))
    decoder = BatchDecoder(target, states, 2)
    outputs = Outputs(decoder, len(RAGGED))
    assert (outputs.token_ids, outputs.reasons) == (expected, reasons)
    assert len(decoder.caches) == 2
    assert len(outputs.pointers) == 1
    assert not any(
        state.drafter for state in states if not state.is_empty
    )  # nothing is kept of what has ended
    assert {id(state.cache) for state in states if not state.is_empty} == {
        id(cache) for cache in decoder.caches
    }


def test_at_most_batch_size_rows_run_and_newcomers_join_those_that_run() -> None:
    target, sizes = target_of("llama", "fused"), []
    original = type(target).forward_batch

    def forward_batch(self: Any, steps: Any, caches: Any) -> Any:
        sizes.append(len({id(cache) for cache in caches}))
        assert sizes[-1] == len(steps)
        return original(self, steps, caches)

    counts = [4, 12, 4, 12, 4, 12]
    with mock.patch.object(type(target), "forward_batch", forward_batch):
        assert run(target, budget=0, batch_size=3, count=counts) == [
            output[:count] for output, count in zip(solo(target), counts, strict=True)
        ]
    assert max(sizes) == 3
    assert sizes.count(3) > sizes.count(2)  # two only at the end, when nobody waits


def test_what_the_caller_ends_takes_no_further_part() -> None:
    """As a stop string does; one that has not begun is passed over."""
    target = target_of("llama", "fused")
    states = make_states(target, budget=0)
    decoder = BatchDecoder(target, states, 2)
    decoder.end(4)
    got = Outputs(decoder, len(RAGGED), stop_after={0: 5, 2: 1}).token_ids
    expected = solo(target)
    assert got == [expected[0][:5], expected[1], expected[2][:1], expected[3], [], expected[5]]
    assert len(states[0].stats.nodes_per_step) == 4


def test_a_request_may_be_ended_while_another_is_looked_at() -> None:
    target = target_of("llama", "fused")
    decoder = BatchDecoder(target, make_states(target, RAGGED[:3], budget=0, count=9), 3)
    outputs: list[list[int]] = [[], [], []]
    for index, emission in decoder.run():
        outputs[index] += emission.token_ids
        if len(outputs[0]) == 4:
            decoder.end(1)
    assert outputs == [output[:end] for output, end in zip(solo(target, RAGGED[:3]), (9, 3, 9), strict=True)]


def test_one_forward_pass_per_step() -> None:
    target, calls = target_of("llama", "fused"), []
    original = type(target).forward_batch

    def forward_batch(self: Any, steps: Sequence[StepInput], caches: Any) -> Any:
        calls.append(sum(step.num_rows for step in steps))
        return original(self, steps, caches)

    with mock.patch.object(type(target), "forward_batch", forward_batch):
        run(target, budget=0)
    assert calls[len(RAGGED) :] == [len(RAGGED)] * (COUNT - 1)


@pytest.mark.parametrize(("name", "implementation"), [("gemma3", "fused"), ("gemma3", "transformers")])
def test_rows_of_a_batch_are_those_of_single_steps(name: str, implementation: str) -> None:
    """Features and cache rows, for trees after prefixes of several lengths."""
    target = target_of(name, implementation)
    trees = [
        DraftTree(TreeShape.from_parents([-1, 0, 0, 1, 2]), [5, 6, 7, 8, 9]),
        DraftTree.root_only(11),
        DraftTree(TreeShape.chain(3), [4, 3, 2, 1]),
    ]
    alone_caches = [target.new_cache(40) for _ in trees]
    together = target.new_caches(3, 40)
    with torch.inference_mode():
        for caches in (alone_caches, together):
            for cache, prompt in zip(caches, RAGGED, strict=False):
                target.forward(StepInput.of_chain(prompt, 0, target.device, target.dtype), cache)
                cache.length = len(prompt)
        steps = [
            StepInput.of_tree(tree, cache.length, target.device, target.dtype)
            for tree, cache in zip(trees, together, strict=True)
        ]
        expected = torch.cat([target.forward(s, c) for s, c in zip(steps, alone_caches, strict=True)])
        got = target.forward_batch(steps, together)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(Target.forward_batch(target, steps, together), expected)
    for ours, theirs, step in zip(together, alone_caches, steps, strict=True):
        end = step.prefix_len + step.num_rows
        for index in range(len(ours)):
            for one, other in zip(ours.layer(index), theirs.layer(index), strict=True):
                torch.testing.assert_close(one[:, :end], other[:, :end], rtol=1e-9, atol=1e-9)
                assert not one[:, end:].any()  # CASES 30: nothing beyond its rows, in nobody's cache


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_float32_differs_at_most_at_near_ties(name: str) -> None:
    """Packed products of another number of rows round differently: a first difference must be a tie, by logits."""
    model = make_tiny(name).float()
    target = build_target(make_tiny(name).float(), consume=True)
    assert target.linear_kind != "torch"
    expected = solo(target)
    for budget in (0, 12, None):
        for prompt, got, want in zip(RAGGED, run(target, budget=budget), expected, strict=True):
            if got == want:
                continue
            first = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *got[:first]]])).logits[0, -1]
            assert logits.max() - logits[got[first]] < 1e-4


@pytest.mark.parametrize(("cost", "drafts"), [(FLAT, True), (STEEP, False)])
def test_one_budget_for_the_batch(cost: CostCurve, drafts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what rows cost, without a guard that times this machine: all that is likely, or nothing."""

    class Unguarded:
        drafts, looks, mode, changes = True, False, None, ()

        def record(self, *_: Any) -> None: ...

    monkeypatch.setattr("treedecode.batch_budget.Guard", lambda _reference: Unguarded())
    target = target_of("gemma3", "fused")
    states = make_states(target, drafters=[make_drafter() for _ in RAGGED], budget=None)
    assert Outputs(BatchDecoder.of(target, states, cost, 6), 6).token_ids == solo(target)
    drafted = [sum(state.stats.nodes_per_step) for state in states]
    assert (sum(drafted) > 0) is drafts
    first = [state.stats.nodes_per_step[3] for state in states]
    assert sum(first) <= batched._ASKED


def test_a_drafter_that_fails_is_named() -> None:
    """The exception is the drafter's own, with the prompt in a note; what was emitted before it stays."""

    class Broken(Fixed):
        def propose(self, context: DraftContext) -> DraftTree:
            if len(context.token_ids) > len(PROMPTS[LONG]) + 1:
                raise RuntimeError("out of ideas")
            return super().propose(context)

    target = target_of("llama", "fused")
    drafters: list[Any] = [Fixed([], 0), Broken([], 0), Fixed([], 0)]
    decoder = BatchDecoder(target, make_states(target, RAGGED[:3], drafters), 3)
    outputs: list[list[int]] = [[], [], []]

    def collect() -> None:
        for index, emission in decoder.run():
            outputs[index] += emission.token_ids

    with pytest.raises(RuntimeError, match="out of ideas") as caught:
        collect()
    assert caught.value.__notes__ == ["This was prompt 1 of the batch."]
    assert outputs == [output[:2] for output in solo(target, RAGGED[:3])]


def test_bad_batches_are_named() -> None:
    target = target_of("llama", "fused")
    shared = make_drafter()
    states = make_states(target, RAGGED[:3], [make_drafter(), shared, shared])
    with pytest.raises(ValueError, match=r"one request at a time: expected one each.*prompts 1 and 2"):
        BatchDecoder(target, states, 2)
    assert BatchDecoder(target, states, 1)
    with pytest.raises(ValueError, match="at least one request, got none"):
        BatchDecoder(target, [], 2)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        BatchDecoder(target, states, 0)
    mixed = make_states(target, RAGGED[:1], [make_drafter()], None) + states[:1]
    with pytest.raises(
        ValueError, match=r"share one budget: expected all automatic or none, got \[True, False\]"
    ):
        BatchDecoder.of(target, mixed, FLAT, 2)
    with pytest.raises(ValueError, match="at least one cache, got 0"):
        target.new_caches(0, 4)


@contextmanager
def neighbours_visible() -> Iterator[None]:
    """A request reads the cache of the one before it."""
    original = FusedLayer.__call__

    def call(self: Any, hidden: Any, normed: Any, rotations: Any, steps: Any, stores: Any, norm: Any) -> Any:
        if len(steps) > 1:  # its own keys are written there, and so is what it reads
            stores = [*stores[1:], stores[0]]
        return original(self, hidden, normed, rotations, steps, stores, norm)

    with mock.patch.object(FusedLayer, "__call__", call):
        yield


@contextmanager
def no_mask_between_requests() -> Iterator[None]:
    """Every row sees the keys of all requests."""
    original = hf_forward._mask

    def mask(steps: Any, window: int | None) -> torch.Tensor:
        return original(steps, window).clamp_min(-1.0) if len(steps) > 1 else original(steps, window)

    with mock.patch.object(hf_forward, "_mask", mask):
        yield


@contextmanager
def commit_to_the_wrong_slot() -> Iterator[None]:
    """Accepted rows are moved in another request's cache."""
    blocks: dict[int, Any] = {}
    original, take = KVCache.commit, KVCache._take

    def taken(self: KVCache, storage: Any, slot: int) -> None:
        take(self, storage, slot)
        others = storage.blocks[0][0].shape[1]
        blocks[id(self)] = [
            (keys[:, (slot + 1) % others], values[:, (slot + 1) % others]) for keys, values in storage.blocks
        ]

    def commit(self: KVCache, path: Sequence[int]) -> None:
        own, self._blocks = self._blocks, blocks[id(self)]
        original(self, path)
        self._blocks = own

    with mock.patch.object(KVCache, "_take", taken), mock.patch.object(KVCache, "commit", commit):
        yield


@contextmanager
def logits_one_row_off() -> Iterator[None]:
    """Rows of a batch are judged from one row too far on."""
    original = batched.judge_batch

    def judge(target: Any, features: torch.Tensor, states: Any, trees: Any) -> Any:
        return original(target, features.roll(-1, 0), states, trees)

    with mock.patch.object(batched, "judge_batch", judge):
        yield


PLANTED: dict[str, tuple[str, Callable[[], AbstractContextManager[None]]]] = {
    "neighbour's cache": ("fused", neighbours_visible),
    "no mask between requests": ("transformers", no_mask_between_requests),
    "commit to the wrong slot": ("fused", commit_to_the_wrong_slot),
    "logits one row off": ("fused", logits_one_row_off),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_breaks_rows(fault: str) -> None:
    implementation, plant = PLANTED[fault]
    target = target_of("gemma3", implementation)
    expected = solo(target)
    states = make_states(target)
    with plant():
        assert Outputs(BatchDecoder(target, states, 6), 6).token_ids != expected


def test_a_planner_is_told_of_every_step() -> None:
    """Requests by place, trees as cut, times of the step without drafting."""
    told: list[tuple[list[int], float | None, float]] = []

    class Planner(BatchPlanner):
        def record(self, steps: Any, forward_ms: float | None, draft_ms: float) -> None:
            told.append((list(steps), forward_ms, draft_ms))
            super().record(steps, forward_ms, draft_ms)

    target = target_of("llama", "fused")
    states = make_states(target, count=5, drafters=[make_drafter() for _ in RAGGED], budget=None)
    Outputs(BatchDecoder(target, states, 6, Planner(FLAT)), 6)
    assert told[0][0] == list(range(6))
    assert all(forward_ms and forward_ms > 0 <= draft_ms for _, forward_ms, draft_ms in told)
    assert len(told) == max(len(state.stats.nodes_per_step) for state in states)
