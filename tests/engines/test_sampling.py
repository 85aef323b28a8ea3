from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from treedecode.engines.sampling import (
    SamplingParams,
    apply_repetition_penalty,
    choose,
    keyed_uniforms,
    processed_probs,
)
from treedecode.tree import DraftTree, TreeShape


def logits(rows: int = 4, vocab: int = 2000) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("params", "warpers"),
    [
        ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
        ({"temperature": 1.0, "top_k": 5}, [TopKLogitsWarper(5)]),
        ({"temperature": 1.0, "top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"temperature": 1.0, "top_p": 0.9999}, [TopPLogitsWarper(0.9999)]),
        ({"temperature": 1.3, "min_p": 0.1}, [TemperatureLogitsWarper(1.3), MinPLogitsWarper(0.1)]),
        (
            {"temperature": 0.9, "top_k": 50, "top_p": 0.7, "min_p": 0.05},
            [
                TemperatureLogitsWarper(0.9),
                TopKLogitsWarper(50),
                TopPLogitsWarper(0.7),
                MinPLogitsWarper(0.05),
            ],
        ),
    ],
)
def test_warpers_equal_transformers(params: dict[str, Any], warpers: list[Any]) -> None:
    scores = logits()
    expected = scores
    for warper in warpers:
        expected = warper(torch.zeros(4, 1, dtype=torch.long), expected)
    torch.testing.assert_close(processed_probs(scores, SamplingParams(**params)), expected.softmax(-1))


def test_repetition_penalty_follows_the_path() -> None:
    """Siblings do not see each other's tokens; every node sees history and its own path (CASES 32 in kind)."""
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 1]), [7, 11, 12, 13])
    scores = logits()
    history = [3, 5, 7]
    got = apply_repetition_penalty(scores, tree, torch.tensor(history), 1.7)
    processor = RepetitionPenaltyLogitsProcessor(1.7)
    for row, path in enumerate([[], [11], [12], [11, 13]]):
        expected = processor(torch.tensor([history + path]), scores[row : row + 1].clone())
        torch.testing.assert_close(got[row : row + 1], expected)


def test_draws_follow_the_distribution() -> None:
    params = SamplingParams(temperature=1.0, top_k=6, seed=5)
    scores = logits(1, 40)
    probs = processed_probs(scores, params)[0]
    draws = 20_000
    uniforms = torch.from_numpy(keyed_uniforms(5, range(draws)))
    tokens = choose(scores.expand(draws, -1), params, uniforms)
    counts = torch.bincount(tokens, minlength=40).double()
    assert counts[probs == 0].sum() == 0
    kept = probs > 0
    statistic = ((counts - draws * probs)[kept] ** 2 / (draws * probs[kept])).sum().item()
    assert statistic < chi2.ppf(1 - 1e-6, int(kept.sum()) - 1)


def test_a_zero_probability_token_is_never_drawn() -> None:
    scores = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    for uniform, token in ((0.0, 1), (0.5, 3), (1 - 2**-53, 3)):
        uniforms = torch.tensor([uniform], dtype=torch.float64)
        assert choose(scores, SamplingParams(temperature=1.0), uniforms).tolist() == [token]


def test_uniforms_depend_on_seed_and_position_only() -> None:
    first = keyed_uniforms(1, [4, 5, 5])
    assert first[1] == first[2] == keyed_uniforms(1, [5])[0] != first[0]
    assert keyed_uniforms(2, [4])[0] != first[0]


@pytest.mark.parametrize(
    ("params", "error", "words"),
    [
        ({"temperature": -1.0}, ValueError, "temperature must be at least 0, got -1.0"),
        ({"temperature": math.nan}, ValueError, "temperature"),
        ({"temperature": "hot"}, TypeError, "temperature must be a number"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"top_k": 1.5}, TypeError, "top_k must be an integer"),
        ({"top_p": 0.0}, ValueError, "top_p must be above 0 and at most 1"),
        ({"top_p": 2.0}, ValueError, "top_p"),
        ({"min_p": 1.5}, ValueError, "min_p"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty must be above 0"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": True}, TypeError, "seed"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        SamplingParams(**params)
