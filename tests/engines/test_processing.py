"""What logits become: every row against an oracle that knows nothing of trees, and faults that must show."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from tests.engines.path_faults import FAULTS
from treedecode.accept import accept_greedy
from treedecode.drafters.base import DraftContext
from treedecode.engines.params import SamplingParams
from treedecode.engines.processing import Processing
from treedecode.engines.sampling import choose
from treedecode.testing.drafters import RandomDrafter
from treedecode.tree import DraftTree, TreeShape

VOCAB = 23


def scores_of(tree: DraftTree, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(tree.num_nodes, VOCAB, dtype=torch.float64, generator=generator)


def path_of(tree: DraftTree, node: int) -> list[int]:
    """Tokens from the root, which is not among them, to a node."""
    tokens = []
    while node:
        tokens.append(tree.token_tuple[node])
        node = tree.shape.parent_tuple[node]
    return tokens[::-1]


def oracle(scores: torch.Tensor, params: SamplingParams, ids: list[int], num_prompt: int, stops: Any) -> Any:
    """One row by transformers' own processors, and penalties on counts by their definition."""
    given = torch.tensor([ids])
    scores = scores[None].clone()
    if params.logit_bias:
        scores = SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias})(
            given, scores
        )
    if params.repetition_penalty:
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(given, scores)
    for token in set(ids[num_prompt:]):
        scores[0, token] -= (params.frequency_penalty or 0.0) * ids[num_prompt:].count(token)
        scores[0, token] -= params.presence_penalty or 0.0
    if params.bad_words_ids:
        scores = NoBadWordsLogitsProcessor([list(word) for word in params.bad_words_ids])(given, scores)
    return MinNewTokensLengthLogitsProcessor(num_prompt, params.min_tokens, stops)(given, scores)[0]


def random_params(rng: random.Random) -> SamplingParams:
    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.6 else None

    words = [[rng.randrange(6) for _ in range(rng.randint(1, 4))] for _ in range(5)]
    return SamplingParams(
        repetition_penalty=maybe(rng.uniform(0.5, 2)),
        frequency_penalty=maybe(rng.uniform(-2, 2)),
        presence_penalty=maybe(rng.uniform(-2, 2)),
        logit_bias=maybe({rng.randrange(VOCAB): rng.uniform(-9, 9) for _ in range(4)}),
        bad_words_ids=maybe(words),
        min_tokens=rng.randrange(9),
    )


def agrees(seed: int, num_steps: int = 4) -> bool:
    """Whether every row of a few steps of one request is what the oracle says."""
    rng = random.Random(seed)
    params, stops = random_params(rng), [1, 4]
    processing = Processing(params, stops, VOCAB)
    prompt = [rng.randrange(6) for _ in range(rng.randint(1, 9))]
    history = list(prompt)
    drafter = RandomDrafter(6, seed)
    for step in range(num_steps):
        tree = drafter.propose(DraftContext(history, len(prompt), 12, 5, ()))
        scores = scores_of(tree, step)
        kept = scores.clone()
        got = processing(scores, tree, history, len(history) - len(prompt))
        assert torch.equal(scores, kept)
        for node in range(tree.num_nodes):
            ids = history + path_of(tree, node)
            expected = oracle(scores[node], params, ids, len(prompt), stops)
            if not torch.allclose(got[node], expected, rtol=1e-6, atol=1e-6):
                return False
        history += [*path_of(tree, tree.num_drafted), rng.randrange(6)]
    return True


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_row_is_that_of_its_own_path(seed: int) -> None:
    assert agrees(seed)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str) -> None:
    with FAULTS[fault]():
        assert not all(agrees(seed) for seed in range(8))


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.7])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    """Zero and both signs."""
    scores = torch.tensor([[0.0, -1.0, 2.0, 3.0, -math.inf]], dtype=torch.float64)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[0, 1, 2, 4]]), scores.clone())
    params = SamplingParams(repetition_penalty=penalty)
    got = Processing(params, (), 5)(scores, DraftTree.root_only(2), [0, 1, 4, 2], 0)
    assert torch.equal(got, expected)


@pytest.mark.parametrize(("penalty", "emitted"), [(1.5, [1, 15]), (0.7, [1, 1, 15])])
def test_case_32(penalty: float, emitted: list[int]) -> None:
    """Logits 100 on the drafted token 1, 99 on token 15; history [2]; drafts 1, 1, 1."""
    params = SamplingParams(frequency_penalty=penalty)
    scores = torch.zeros(4, 20)
    scores[:, 1], scores[:, 15] = 100, 99
    for num_output in (0, 1):
        tree = DraftTree(TreeShape.chain(3), [2, 1, 1, 1])
        got = Processing(params, (), 20)(scores, tree, [2], num_output)
        assert accept_greedy(tree, choose(got, params, None).tolist()).token_ids == emitted


def test_case_32_siblings_do_not_count_for_each_other() -> None:
    params = SamplingParams(frequency_penalty=1.5)
    scores = torch.zeros(3, 20)
    scores[:, 1], scores[:, 15] = 100, 99
    star = DraftTree(TreeShape.star(2), [2, 1, 15])
    got = Processing(params, (), 20)(scores, star, [2], 1)
    assert choose(got, params, None).tolist() == [1, 15, 1]


def test_stop_tokens_outside_the_vocabulary_are_no_error() -> None:
    scores = torch.zeros(1, 5)
    got = Processing(SamplingParams(min_tokens=2), [3, 99], 5)(scores, DraftTree.root_only(1), [1], 0)
    assert got[0].isneginf().tolist() == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"logit_bias": {5: 1.0}}, "logit_bias token ids must be at most 4 .*5 tokens.*, got 5"),
        ({"bad_words_ids": [[1, 7]]}, "bad_words_ids token ids must be at most 4 .*5 tokens.*, got 7"),
    ],
)
def test_tokens_outside_the_vocabulary_are_named(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Processing(SamplingParams(**params), (), 5)


def test_nothing_asked_for_is_nothing_to_do() -> None:
    neutral = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "logit_bias": {}, "bad_words_ids": []}
    assert not Processing(SamplingParams(**neutral), [1], VOCAB)
    assert Processing(SamplingParams(min_tokens=1), [1], VOCAB)


def test_half_precision_is_widened() -> None:
    scores = torch.ones(1, 5, dtype=torch.bfloat16)
    got = Processing(SamplingParams(presence_penalty=1e-4), (), 5)(scores, DraftTree.root_only(2), [2], 1)
    assert got.dtype == torch.float32
    assert float(got[0, 2]) == pytest.approx(1 - 1e-4, abs=1e-7)


def test_a_step_reads_only_what_is_new() -> None:
    """A prompt of any length is read once; the tokens of later steps once each."""

    class Counted(list[int]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.reads += 1
            return super().__getitem__(index)

    history = Counted([2] * 5000)
    processing = Processing(SamplingParams(frequency_penalty=1.0), (), 5)
    for step in range(4):
        tree = DraftTree(TreeShape.chain(3), [2, 1, 1, 1])
        processing(torch.zeros(4, 5), tree, history, step)
        history.append(2)
    assert Counted.reads == 5000 + 3
    other = [3, 2]
    got = processing(torch.zeros(1, 5), DraftTree.root_only(2), other, 1)
    assert got.tolist() == [[0.0, 0.0, -1.0, 0.0, 0.0]]
