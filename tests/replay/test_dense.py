"""Dense decoding: a tree at every output position, and the same output."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.tiny import LONG, PROMPTS, VOCAB, decode, reference, target_of
from treedecode.cost import CostCurve
from treedecode.drafters import make_drafter
from treedecode.engines.loop import Decoder
from treedecode.engines.params import SamplingParams
from treedecode.engines.request import Request
from treedecode.replay.recording import follow, tails
from treedecode.testing.drafters import AdversarialDrafter

PROMPT = PROMPTS[LONG]
# so dear that a live budget would draft nothing
STEEP = CostCurve([1, 2], [1.0, 100.0])


def run(drafter: Any, budget: int | None, count: int = 60, **sampling: Any) -> tuple[list[int], list[Any]]:
    steps = []
    request = Request(tuple(PROMPT), count, budget, SamplingParams(**sampling), dense=True)
    decoder = Decoder.of(
        target_of("llama", "fused"), request, drafter, STEEP, lambda *step: steps.append(step)
    )
    return [token for emission in decoder.run() for token in emission.token_ids], steps


@pytest.mark.parametrize("drafter", ["merged", "prompt-lookup"])
def test_the_output_is_plain_decoding_s(drafter: str) -> None:
    tokens, steps = run(drafter, 12)
    assert tokens == reference("llama", LONG)[:60]
    assert [len(acceptance.token_ids) for _, _, acceptance, *_ in steps] == [1] * 59


def test_sampled_output_is_plain_decoding_s() -> None:
    options = {"temperature": 0.9, "top_k": 20, "seed": 3, "repetition_penalty": 1.1}
    plain = decode(target_of("llama", "fused"), PROMPT, make_drafter("merged"), 0, 60, **options)
    assert run("merged", 12, **options)[0] == plain


def test_whole_trees_at_every_position() -> None:
    """Right drafts do not skip positions, and the live budget cuts nothing."""
    expected = reference("llama", LONG)[:30]
    oracle = AdversarialDrafter(PROMPT + expected, VOCAB)
    tokens, steps = run(oracle, None, 30)
    assert tokens == expected
    roots = [tree.token_tuple[0] for tree, *_ in steps]
    assert roots == expected[:-1]
    assert [prefix_len for *_, prefix_len, _ in steps] == list(range(len(PROMPT), len(PROMPT) + 29))
    assert sum(tree.num_drafted for tree, *_ in steps) > 60


def test_the_drafter_sees_every_row_once() -> None:
    contexts = []

    class Watched:
        name = "watched"

        def __init__(self) -> None:
            self._inner = make_drafter("merged")

        def begin(self, prompt_ids: list[int]) -> None:
            self._inner.begin(prompt_ids)

        def propose(self, context: Any) -> Any:
            contexts.append(context)
            return self._inner.propose(context)

    run(Watched(), 8, 20)
    assert contexts[0].rows == ()
    assert all([rows.path for rows in context.rows] == [(0,)] for context in contexts[1:])
    first = len(PROMPT)
    assert [c.rows[0].root_index for c in contexts[1:]] == list(range(first, first + len(contexts) - 1))


def test_the_drafter_is_not_shown_the_output_to_come() -> None:
    """Rows of right drafts would be answers: what the target says after output that is not there yet."""
    seen = []

    class Watched(AdversarialDrafter):
        def propose(self, context: Any) -> Any:
            seen.append((list(context.token_ids), context.rows))
            return super().propose(context)

    expected = reference("llama", LONG)
    _, steps = run(Watched(PROMPT + expected, VOCAB), 12, 60)
    said: dict[tuple[int, ...], list[int]] = {}  # what the target said, by text
    num_right = num_shown = 0
    for (text, rows), (tree, verified, *_) in zip(seen[1:], steps, strict=False):
        for node, tail in enumerate(tails(tree)):
            said[(*text[:-1], *tail)] = verified.top_ids[node].tolist()
        (given,) = rows
        assert given.root_index == len(text) - 2 and given.tree.token_tuple[0] == text[-2]
        ids = given.tree.token_tuple
        num_right += text[-1] in [tree.token_tuple[node] for node in tree.shape.children(0)]
        assert text[-1] not in [ids[node] for node in given.tree.shape.children(0)]
        for node, tail in enumerate(tails(given.tree)):
            assert given.top_ids[node].tolist() == said[(*text[:-1], *tail)]
            num_shown += 1
    assert num_right > 20 and num_shown > 100


def test_the_drafter_is_shown_the_rows_of_live_steps() -> None:
    """Cut in pieces, those of the steps that a live run takes; not those of the trees between."""
    pieces = []

    class Watched(AdversarialDrafter):
        def propose(self, context: Any) -> Any:
            pieces.extend(context.rows)
            return super().propose(context)

    expected = reference("llama", LONG)
    _, steps = run(Watched(PROMPT + expected, VOCAB), 12, 60)
    position = 0
    while position < len(pieces) - 12:
        tree = steps[position][0]
        path = follow(tree, expected[position + 1 :])
        shown = pieces[position : position + len(path)]
        assert sum(rows.tree.num_nodes for rows in shown) == tree.num_nodes
        position += len(path)
