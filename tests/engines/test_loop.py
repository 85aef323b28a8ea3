from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.test_tiny_models import PROMPTS, decode, reference, target_of
from tests.engines.tiny import VOCAB, make_tiny
from treedecode.drafters import make_drafter
from treedecode.drafters.base import DraftContext
from treedecode.engines.loop import Decoder
from treedecode.engines.request import Request, check_budget, check_prompt
from treedecode.testing.drafters import AdversarialDrafter
from treedecode.tree import DraftTree, TreeShape

PROMPT = PROMPTS["longer than the window"]


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
    return AdversarialDrafter(PROMPT + reference(name, "longer than the window"), VOCAB)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_max_new_tokens(count: int) -> None:
    expected = reference("llama", "longer than the window")[:count]
    tokens, reason, decoder = run(Request(tuple(PROMPT), count, 8), oracle())
    assert (tokens, reason) == (expected, "length")
    stats = decoder.stats.build(len(tokens))
    assert stats.num_emitted == count
    assert stats.num_forward_passes == (0 if count == 0 else stats.num_steps + 1)


def test_a_stop_token_inside_an_accepted_run_ends_the_output() -> None:
    """CASES 26, 28 and 36: cut at the stop token, wherever the tree put it."""
    expected = reference("llama", "longer than the window")
    stop = expected[20]
    cut = expected[: expected.index(stop) + 1]
    tokens, reason, decoder = run(Request(tuple(PROMPT), 200, 12, stop_ids=frozenset([stop])), oracle())
    assert (tokens, reason) == (cut, "stop")
    stats = decoder.stats.build(len(tokens))
    assert 1 + sum(stats.emitted_per_step) == len(tokens) == stats.num_emitted


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
    """CASES 34."""

    class Bomb:
        name = "bomb"

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"budget 0 must not touch {name}")

    tokens, _, _ = run(Request(tuple(PROMPT), 12, 0), Bomb())
    assert tokens == reference("llama", "longer than the window")[:12]


class Fixed:
    """Proposes what it is told to."""

    name = "fixed"

    def __init__(self, make: Callable[[DraftContext], DraftTree]) -> None:
        self._make = make

    def begin(self, prompt_ids: list[int]) -> None: ...

    def propose(self, context: DraftContext) -> DraftTree:
        return self._make(context)


def test_a_wrong_root_is_refused() -> None:
    drafter = Fixed(lambda context: DraftTree(TreeShape.chain(1), [(context.token_ids[-1] + 1) % VOCAB, 3]))
    with pytest.raises(ValueError, match="'fixed' must root its tree at the last committed token"):
        run(Request(tuple(PROMPT), 8, 4), drafter)


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
    assert tokens == reference("llama", "longer than the window")[:10]
    assert max(decoder.stats.nodes_per_step) <= 4


def test_second_call_equals_a_fresh_one() -> None:
    """CASES 16: one drafter object over several requests."""
    drafter = make_drafter("merged")
    target = target_of("qwen3", "fused")
    first = decode(target, PROMPT, drafter, count=60)
    assert (
        decode(target, PROMPTS["shorter than the window"], drafter, count=60)
        == reference("qwen3", "shorter than the window")[:60]
    )
    assert decode(target, PROMPT, drafter, count=60) == first


def test_prompt_rows_reach_the_drafter() -> None:
    seen = []

    def make(context: DraftContext) -> DraftTree:
        seen.append(context.rows)
        return DraftTree.root_only(context.token_ids[-1])

    run(Request(tuple(PROMPT), 6, 4, prompt_rows=10), Fixed(make))
    rows = seen[0][0]
    assert rows.root_index == len(PROMPT) - 10
    assert list(rows.tree.token_tuple) == PROMPT[-10:]
    assert rows.top_ids[-1, 0] == reference("llama", "longer than the window")[0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: check_budget(-1), ValueError, "budget must be at least 0, got -1"),
        (lambda: check_budget(10**6), ValueError, "budget must be at most"),
        (lambda: check_budget(2.5), TypeError, "budget must be an integer"),
        (lambda: check_budget(True), TypeError, "budget must be an integer"),
        (lambda: check_budget("many"), TypeError, '"auto"'),
        (lambda: check_prompt([], 10, None), ValueError, "the prompt is empty"),
        (lambda: check_prompt([10], 10, None), ValueError, "at most 9, got 10"),
        (lambda: check_prompt([1.0], 10, None), TypeError, "must be an integer"),
        (lambda: check_prompt([1] * 9, 10, 8), ValueError, "has 9 tokens, the model allows at most 8"),
        (lambda: Decoder(target_of("llama", "fused"), Request((1,), 4, 4)), ValueError, "needs a drafter"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_the_models_are_not_touched() -> None:
    """Sharing weights with the user's model must leave it as it was."""
    model = make_tiny("gemma3")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    from treedecode.engines.build import build_target

    decode(build_target(model, consume=False), PROMPT, oracle("gemma3"), count=20)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
