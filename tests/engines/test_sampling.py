from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from treedecode.engines.params import SamplingParams
from treedecode.engines.sampling import choose, processed_probs
from treedecode.streams import keyed_uniforms


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


def tied(vocab: int = 40) -> torch.Tensor:
    """Rows of few levels, so that ties stand at every cut."""
    levels = torch.randint(5, (6, vocab), generator=torch.Generator().manual_seed(0))
    return levels.double() / 2


@pytest.mark.parametrize("top_k", [1, 2, 7, 39, 40, 99])
def test_top_k_of_ties_equals_transformers(top_k: int) -> None:
    """Ties with the k-th stay, as they do there; k may exceed the vocabulary."""
    got = processed_probs(tied(), SamplingParams(temperature=1.0, top_k=top_k))
    expected = TopKLogitsWarper(top_k)(torch.zeros(6, 1, dtype=torch.long), tied()).softmax(-1)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("min_p", [1e-9, 0.1, 0.36, 0.37, 1.0])
def test_min_p_of_ties_equals_transformers(min_p: float) -> None:
    got = processed_probs(tied(), SamplingParams(temperature=1.0, min_p=min_p))
    expected = MinPLogitsWarper(min_p)(torch.zeros(6, 1, dtype=torch.long), tied()).softmax(-1)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.9, 0.999])
def test_a_nucleus_of_ties(top_p: float) -> None:
    """The smallest set that reaches ``top_p``, completed by whatever is as likely as its last token."""
    probs = tied().softmax(-1)
    got = processed_probs(tied(), SamplingParams(temperature=1.0, top_p=top_p))
    for row, kept in zip(probs, got > 0, strict=True):
        assert row[kept].sum() >= top_p - 1e-12
        least = row[kept].min()
        assert torch.equal(kept, row >= least)
        assert row[row > least].sum() < top_p


def test_a_nucleus_does_not_depend_on_the_other_rows() -> None:
    """One wide row sends the whole step another way; a narrow row with ties must not notice."""
    generator = torch.Generator().manual_seed(0)
    narrow = torch.randn(1, 5000, generator=generator).mul(4).round()
    wide = torch.zeros(1, 5000)
    params = SamplingParams(temperature=1.0, top_p=0.9)
    alone = processed_probs(narrow, params)
    assert torch.equal(processed_probs(torch.cat([wide, narrow]), params)[1:], alone)
    assert 1 < int((alone > 0).sum()) < 1024


def test_half_precision_is_widened() -> None:
    assert processed_probs(logits().bfloat16(), SamplingParams(temperature=1.0)).dtype == torch.float32


def test_sampling_needs_uniforms() -> None:
    with pytest.raises(ValueError, match="one uniform per row, got None"):
        choose(logits(), SamplingParams(temperature=1.0), None)


def test_draws_over_seeds_follow_the_distribution() -> None:
    """One position, many seeds: another path through the keyed noise than many positions of one seed."""
    scores = logits(1, 12)
    params = SamplingParams(temperature=1.4, top_p=0.95, min_p=0.01)
    probs = processed_probs(scores, params)[0]
    draws = 4000
    uniforms = torch.tensor([keyed_uniforms(seed, [7])[0] for seed in range(draws)])
    counts = torch.bincount(choose(scores.expand(draws, -1), params, uniforms), minlength=12).double()
    kept = probs > 0
    assert counts[~kept].sum() == 0
    statistic = ((counts - draws * probs)[kept] ** 2 / (draws * probs[kept])).sum().item()
    assert statistic < chi2.ppf(1 - 1e-6, int(kept.sum()) - 1)


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
        (
            {"frequency_penalty": 2.1},
            ValueError,
            "frequency_penalty must be at least -2 and at most 2, got 2.1",
        ),
        ({"presence_penalty": "x"}, TypeError, "presence_penalty must be a number, got 'x'"),
        ({"logit_bias": [1]}, TypeError, r"logit_bias must map token ids to numbers, got \[1\]"),
        ({"logit_bias": {-1: 2.0}}, ValueError, "logit_bias token ids must be at least 0, got -1"),
        ({"logit_bias": {1.0: 2.0}}, TypeError, "logit_bias token ids must be an integer, got 1.0"),
        ({"logit_bias": {3: "x"}}, TypeError, "logit_bias of token 3 must be a number, got 'x'"),
        ({"logit_bias": {3: math.inf}}, ValueError, "logit_bias of token 3 must be a finite number or -inf"),
        (
            {"logit_bias": {3: 1e39}},
            ValueError,
            r"logit_bias of token 3 must be at most 1e\+15 in size or -inf",
        ),
        ({"logit_bias": (3, 1.0)}, TypeError, "logit_bias must map token ids to numbers, got "),
        ({"logit_bias": {3: math.nan}}, ValueError, "logit_bias of token 3 must be a finite number or -inf"),
        ({"bad_words_ids": "word"}, TypeError, "bad_words_ids must be sequences of token ids, got 'word'"),
        ({"bad_words_ids": [3]}, TypeError, "each of bad_words_ids must be a sequence of token ids, got 3"),
        ({"bad_words_ids": [[]]}, ValueError, "at least one token id, got an empty one"),
        ({"bad_words_ids": [[-1]]}, ValueError, "bad_words_ids must be at least 0, got -1"),
        ({"min_tokens": -1}, ValueError, "min_tokens must be at least 0, got -1"),
        ({"min_tokens": 1.5}, TypeError, "min_tokens must be an integer, got 1.5"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": True}, TypeError, "seed"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        SamplingParams(**params)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1e-19, 1e-30, 1e-38, 1e-45, 5e-324])
def test_the_smallest_temperatures_are_greedy(temperature: float, dtype: torch.dtype) -> None:
    """Logits over such a temperature overflow: no NaN, no token outside the vocabulary."""
    scores = torch.tensor([[-3.0, 900.0, 2.0, 900.0], [-5.0, -9.0, -4.0, -7.0]], dtype=dtype)
    probs = processed_probs(scores, SamplingParams(temperature=temperature))
    assert probs.tolist() == [[0, 0.5, 0, 0.5], [0, 0, 1, 0]]
