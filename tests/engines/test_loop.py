from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.engines.tiny import (
    LONG,
    PROMPTS,
    SHORT,
    VOCAB,
    Fixed,
    decode,
    drafters,
    greedy,
    make_tiny,
    reference,
    target_of,
    tiny,
)
from treedecode.budget import BudgetPlanner
from treedecode.cost import CostCurve
from treedecode.drafters import make_drafter
from treedecode.drafters.base import DraftContext
from treedecode.engines import state
from treedecode.engines.build import build_target
from treedecode.engines.loop import Decoder
from treedecode.engines.request import Request
from treedecode.engines.stats import PHASES
from treedecode.guard import Guard, Mode
from treedecode.testing.drafters import AdversarialDrafter
from treedecode.tree import DraftTree, TreeShape

PROMPT = PROMPTS[LONG]


def run(
    request: Request, drafter: Any = None, target: Any = None, planner: Any = None
) -> tuple[list[int], str | None, Decoder]:
    decoder = Decoder(target or target_of("llama", "fused"), request, drafter, planner)
    tokens, reason = [], None
    for emission in decoder.run():
        tokens += emission.token_ids
        reason = emission.finish_reason
    return tokens, reason, decoder


def oracle(name: str = "llama") -> AdversarialDrafter:
    return AdversarialDrafter(PROMPT + reference(name, LONG), VOCAB)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_max_new_tokens(count: int) -> None:
    expected = reference("llama", LONG)[:count]
    tokens, reason, decoder = run(Request(tuple(PROMPT), count, 8), oracle())
    assert (tokens, reason) == (expected, "length")
    stats = decoder.stats.build(len(tokens))
    assert stats.num_emitted == count
    assert stats.num_forward_passes == (0 if count == 0 else stats.num_steps + 1)


def test_a_stop_token_inside_an_accepted_run_ends_the_output() -> None:
    """CASES 26, 28 and 36: cut at the stop token, wherever the tree put it."""
    expected = reference("llama", LONG)
    stop = expected[20]
    cut = expected[: expected.index(stop) + 1]
    tokens, reason, decoder = run(Request(tuple(PROMPT), 200, 12, stop_ids=frozenset([stop])), oracle())
    assert (tokens, reason) == (cut, "stop")
    stats = decoder.stats.build(len(tokens))
    assert 1 + sum(stats.emitted_per_step) == len(tokens) == stats.num_emitted


def test_a_drafted_stop_token_that_is_rejected_ends_nothing() -> None:
    """CASES 28."""
    expected = reference("llama", LONG)
    stop = next(token for token in range(VOCAB) if token not in expected[:40])
    drafter = Fixed(lambda context: DraftTree(TreeShape.star(1), [context.token_ids[-1], stop]))
    tokens, reason, _ = run(Request(tuple(PROMPT), 40, 4, stop_ids=frozenset([stop])), drafter)
    assert (tokens, reason) == (expected[:40], "length")


def test_a_stop_token_at_the_cap_and_beyond() -> None:
    """CASES 27."""
    expected = reference("llama", LONG)
    place = next(i for i in range(5, 60) if expected[i] not in expected[:i])
    for count, reason in ((place, "length"), (place + 1, "stop"), (place + 2, "stop")):
        request = Request(tuple(PROMPT), count, 12, stop_ids=frozenset([expected[place]]))
        assert run(request, oracle())[:2] == (expected[: min(count, place + 1)], reason)


def test_the_first_token_may_be_the_stop() -> None:
    expected = reference("llama", LONG)
    tokens, reason, decoder = run(Request(tuple(PROMPT), 9, 4, stop_ids=frozenset(expected[:1])), oracle())
    assert (tokens, reason) == (expected[:1], "stop")
    assert decoder.stats.build(1).num_steps == 0


@pytest.mark.parametrize("left", [0, 1, 2, 5])
@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_no_position_beyond_the_longest_sequence(
    left: int, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 9: a limit of 64, and no step has a position past the last one, drafts included."""
    target = target_of("llama", implementation)
    monkeypatch.setattr(target, "max_positions", 64)
    positions = []
    original = type(target).forward

    def forward(self: Any, step: Any, *rest: Any) -> Any:
        positions.extend(step.position_ids.tolist())
        return original(self, step, *rest)

    monkeypatch.setattr(type(target), "forward", forward)
    prompt = tuple(1 + i % 90 for i in range(64 - left))
    drafter = Fixed(lambda context: DraftTree(TreeShape.chain(4), [context.token_ids[-1], 3, 4, 5, 6]))
    tokens, reason, _ = run(Request(prompt, 50, 4), drafter, target)
    assert (len(tokens), reason) == (left, "length")
    assert max(positions, default=0) < 64


def test_never_beyond_the_longest_sequence() -> None:
    """CASES 9: the model's last position is used, none after it."""
    target = target_of("llama", "fused")
    limit = target.max_positions
    assert limit is not None
    prompt = [1 + i % 90 for i in range(limit - 6)]
    tokens, reason, decoder = run(Request(tuple(prompt), 50, 8), make_drafter("merged"))
    assert (len(tokens), reason) == (6, "length")
    assert decoder.cache.length < limit


def test_budget_zero_runs_no_drafter_and_no_planner() -> None:
    """CASES 34: what raises when it is touched is not touched."""

    class Bomb:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"budget 0 must not touch {name}")

    tokens, _, _ = run(Request(tuple(PROMPT), 12, 0), Bomb(), planner=Bomb())
    assert tokens == reference("llama", LONG)[:12]


def test_a_wrong_root_is_refused() -> None:
    drafter = Fixed(lambda context: DraftTree(TreeShape.chain(1), [(context.token_ids[-1] + 1) % VOCAB, 3]))
    with pytest.raises(ValueError, match="'fixed' must root its tree at the last committed token"):
        run(Request(tuple(PROMPT), 8, 4), drafter)


def test_something_else_than_a_tree_is_refused() -> None:
    drafter = Fixed(lambda context: [context.token_ids[-1], 3])
    with pytest.raises(TypeError, match="'fixed' must propose a DraftTree, got list"):
        run(Request(tuple(PROMPT), 8, 4), drafter)


def test_a_budget_needs_a_drafter() -> None:
    with pytest.raises(ValueError, match="a budget of 4 drafted nodes needs a drafter, got None"):
        Decoder(target_of("llama", "fused"), Request((1,), 4, 4))


def test_another_vocabulary_is_refused_by_name() -> None:
    """CASES 35."""
    drafter = Fixed(lambda context: DraftTree(TreeShape.chain(1), [context.token_ids[-1], VOCAB]))
    with pytest.raises(
        ValueError, match=f"proposed token {VOCAB}, the target's vocabulary has {VOCAB} tokens"
    ):
        run(Request(tuple(PROMPT), 8, 4), drafter)


def test_a_draft_beyond_its_limits_is_cut() -> None:
    """A drafter that ignores max_drafted and max_depth costs nothing but its own nodes."""
    drafter = Fixed(lambda context: DraftTree(TreeShape.chain(40), [context.token_ids[-1], *range(1, 41)]))
    tokens, _, decoder = run(Request(tuple(PROMPT), 10, 4), drafter)
    assert tokens == reference("llama", LONG)[:10]
    assert max(decoder.stats.nodes_per_step) <= 4


def test_second_call_equals_a_fresh_one() -> None:
    """CASES 16: one drafter object over several requests."""
    drafter = make_drafter("merged")
    target = target_of("qwen3", "fused")
    first = decode(target, PROMPT, drafter, count=60)
    assert decode(target, PROMPTS[SHORT], drafter, count=60) == reference("qwen3", SHORT)[:60]
    assert decode(target, PROMPT, drafter, count=60) == first


def test_ties_take_the_lowest_id_with_trees_and_without() -> None:
    """CASES 13: every token twice in the vocabulary, so that the best logit is always a tie."""
    model = make_tiny("llama")
    with torch.no_grad():
        half = VOCAB // 2
        model.lm_head.weight[half : 2 * half] = model.lm_head.weight[:half]
    target = build_target(model, consume=False)
    expected = greedy(model, PROMPT, 60)
    assert all(token < half or token == VOCAB - 1 for token in expected)
    assert decode(target, PROMPT, None, 0, count=60) == expected
    for kind, drafter in drafters(PROMPT + expected).items():
        assert decode(target, PROMPT, drafter, count=60) == expected, kind


def test_penalties_count_the_path_of_each_node() -> None:
    """CASES 32 in kind: with the repetition penalty a chain of one token is accepted once, then another wins."""
    expected = decode(target_of("qwen3", "fused"), PROMPT, None, 0, count=60, repetition_penalty=3.0)
    plain = decode(target_of("qwen3", "fused"), PROMPT, None, 0, count=60)
    assert expected != plain
    model_output = tiny("qwen3").generate(
        torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False, repetition_penalty=3.0
    )
    assert expected == model_output[0, len(PROMPT) :].tolist()
    for kind, drafter in drafters(PROMPT + expected).items():
        got = decode(target_of("qwen3", "fused"), PROMPT, drafter, count=60, repetition_penalty=3.0)
        assert got == expected, kind
    # drafts that repeat one token at every depth
    chain = Fixed(lambda context: DraftTree(TreeShape.chain(4), [context.token_ids[-1], *[expected[0]] * 4]))
    assert decode(target_of("qwen3", "fused"), PROMPT, chain, count=60, repetition_penalty=3.0) == expected


def test_odd_trees() -> None:
    """CASES 2: a star of four leaves, one node, no node at all."""
    truth = PROMPT + reference("llama", LONG)
    for width in (0, 1, 4):

        def star(context: DraftContext, width: int = width) -> DraftTree:
            done = len(context.token_ids)
            leaves = [(truth[done] + 1 + i) % VOCAB for i in range(width)]
            if width:
                leaves[done % width] = truth[done]
            return DraftTree(TreeShape.star(width), [context.token_ids[-1], *leaves])

        tokens, _, decoder = run(Request(tuple(PROMPT), 40, 6), Fixed(star))
        assert tokens == truth[len(PROMPT) :][:40]
        assert set(decoder.stats.emitted_per_step[:-1]) == {2 if width else 1}


def test_prompt_rows_of_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows reach the drafter in order, whatever the chunks."""
    rows = []
    for size in (256, 7):
        monkeypatch.setattr(state, "PREFILL_CHUNK", size)
        seen = []

        def make(context: DraftContext, seen: list[Any] = seen) -> DraftTree:
            seen.append(context.rows)
            return DraftTree.root_only(context.token_ids[-1])

        run(Request(tuple(PROMPT), 3, 4, prompt_rows=20), Fixed(make))
        rows.append(seen[0][0])
    assert rows[0].top_ids.shape == (20, state.NUM_CANDIDATES)
    assert (rows[0].top_ids == rows[1].top_ids).all()


def test_the_observer_sees_every_step() -> None:
    steps = []

    def observe(tree: Any, verified: Any, acceptance: Any, prefix_len: int, step_ms: Any) -> None:
        assert len(verified.choices) == len(verified.log_norm) == tree.num_nodes
        steps.append((prefix_len, acceptance.token_ids, set(step_ms)))

    output = decode(target_of("llama", "fused"), PROMPT, oracle(), count=40, observer=observe)
    assert [token for _, tokens, _ in steps for token in tokens] == output[1:]
    lengths = [prefix_len for prefix_len, _, _ in steps]
    assert lengths[0] == len(PROMPT)
    assert [b - a for a, b in pairwise(lengths)] == [len(tokens) for _, tokens, _ in steps[:-1]]
    assert all(phases == set(PHASES) for _, _, phases in steps)


def test_prompt_rows_reach_the_drafter() -> None:
    seen = []

    def make(context: DraftContext) -> DraftTree:
        seen.append(context.rows)
        return DraftTree.root_only(context.token_ids[-1])

    run(Request(tuple(PROMPT), 6, 4, prompt_rows=10), Fixed(make))
    rows = seen[0][0]
    assert rows.root_index == len(PROMPT) - 10
    assert list(rows.tree.token_tuple) == PROMPT[-10:]
    assert rows.top_ids[-1, 0] == reference("llama", LONG)[0]


class Watched:
    """The merged drafter, and what it was given."""

    name = "watched"

    def __init__(self) -> None:
        self.inner = make_drafter("merged")
        self.contexts: list[tuple[int, tuple[Any, ...]]] = []

    def begin(self, prompt_ids: list[int]) -> None:
        self.inner.begin(prompt_ids)

    def propose(self, context: DraftContext) -> DraftTree:
        self.contexts.append((len(context.token_ids), context.rows))
        return self.inner.propose(context)


class Script(Guard):
    """A guard whose mode follows a script, by step."""

    def __init__(
        self, modes: Callable[[int], Mode], looks: Callable[[int], bool] = lambda step: False
    ) -> None:
        super().__init__()
        self._script, self._looking, self.seen = modes, looks, []
        self.step = 0

    @property
    def mode(self) -> Mode:
        return self._script(self.step)

    @property
    def looks(self) -> bool:
        return self._looking(self.step) or self.mode is Mode.CHAIN

    @property
    def drafts(self) -> bool:
        return self.mode is not Mode.NONE or self._looking(self.step)

    def record(self, *numbers: Any) -> None:
        self.seen.append(numbers)
        self.step += 1


FREE = CostCurve([1, 64], [10.0, 10.001])


@pytest.mark.parametrize(
    "script",
    [
        lambda step: Mode.NONE,
        lambda step: Mode.CHAIN,
        lambda step: (Mode.TREE, Mode.NONE, Mode.NONE, Mode.CHAIN)[step % 4],
        lambda step: Mode.TREE if step % 50 == 0 else Mode.NONE,
    ],
    ids=["none", "chain", "all", "seldom"],
)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_output_is_the_same_in_every_mode(script: Callable[[int], Mode], name: str) -> None:
    drafter = Watched()
    guard = Script(script, lambda step: step % 7 == 3)
    request = Request(tuple(PROMPT), 120, prompt_rows=10, budget=None)
    tokens, _, decoder = run(request, drafter, target_of(name, "fused"), BudgetPlanner(FREE, guard))
    assert tokens == reference(name, LONG)[:120]
    sizes = decoder.stats.nodes_per_step
    assert all(script(step) is not Mode.NONE for step, size in enumerate(sizes) if size)
    # the last step has no room to draft
    wanted = [step for step in range(len(sizes)) if script(step) is not Mode.NONE or step % 7 == 3]
    assert len(wanted) - 1 <= len(drafter.contexts) <= len(wanted)


def test_where_nothing_is_drafted_the_drafter_sees_every_row_later() -> None:
    """Every position of the text reaches it once, in order, whatever the mode was."""
    drafter = Watched()
    guard = Script(lambda step: Mode.TREE if step % 20 == 0 else Mode.NONE)
    request = Request(tuple(PROMPT), 100, prompt_rows=10, budget=None)
    tokens, _, _ = run(request, drafter, planner=BudgetPlanner(FREE, guard))
    text = PROMPT + tokens
    positions = []
    for length, rows in drafter.contexts:
        for part in rows:
            on_path = [part.root_index + depth for depth in range(len(part.path))]
            positions += on_path
            assert [part.tree.token_tuple[node] for node in part.path] == [text[i] for i in on_path]
            for i, node in zip(on_path, part.path, strict=True):
                assert i < len(PROMPT) - 1 or part.top_ids[node, 0] == text[i + 1]
        assert positions[-1] == length - 2
    assert positions == list(range(len(PROMPT) - 10, len(PROMPT) - 10 + len(positions)))
    assert max(len(rows) for _, rows in drafter.contexts) <= 2


def test_the_guard_is_told_what_steps_took_and_gave() -> None:
    guard = Script(lambda step: Mode.TREE)
    request = Request(tuple(PROMPT), 60, budget=None)
    _, _, decoder = run(request, oracle(), planner=BudgetPlanner(FREE, guard))
    stats = decoder.stats
    assert [numbers[0] for numbers in guard.seen] == stats.emitted_per_step
    assert [numbers[3] for numbers in guard.seen] == stats.nodes_per_step
    assert sum(numbers[1] for numbers in guard.seen) == pytest.approx(stats.decode_ms)
    assert sum(numbers[2] for numbers in guard.seen) == pytest.approx(stats.phase_ms["draft"])
    for _, _, _, num_drafted, promised, predicted_ms, plain_ms in guard.seen:
        assert (predicted_ms, plain_ms) == (FREE.ms(1 + num_drafted), FREE.ms(1))
        assert (promised > 0) == (num_drafted > 0)


def test_the_first_steps_of_a_model_measure_plain_decoding_for_all_requests() -> None:
    model = make_tiny("llama")
    target = build_target(model, consume=False)
    decoders = []
    for _ in range(2):
        decoders.append(Decoder.of(target, Request(tuple(PROMPT), 40, budget=None), "merged", FREE))
        assert [t for e in decoders[-1].run() for t in e.token_ids] == greedy(model, PROMPT, 40)
    first, second = decoders
    assert first.stats.nodes_per_step[:5] == [0] * 5
    assert first.stats.build(40).guard_changes[0].measures
    assert not any(change.step == 0 for change in second.stats.build(40).guard_changes)
