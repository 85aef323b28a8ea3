"""Chi-squared of samples: right ones pass, wrong ones do not, rare tokens are counted together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from treedecode.engines.params import SamplingParams
from treedecode.verify.samples import Continuation, against_model, by_context, two_samples

PROBS = np.array([0.4, 0.3, 0.2, 0.06, 0.03, 0.008, 0.002])


def drawn(count: int, seed: int, probs: np.ndarray = PROBS) -> list[Continuation]:
    """Two tokens each, the second from the same probabilities turned by the first."""
    rng = np.random.default_rng(seed)
    first = rng.choice(len(probs), size=count, p=probs)
    return [(int(a), int(rng.choice(len(probs), p=np.roll(probs, a)))) for a in first]


def logits_after(context: Continuation) -> torch.Tensor:
    return torch.from_numpy(np.log(np.roll(PROBS, context[0] if context else 0)))


def test_counts_by_beginning() -> None:
    counts = by_context([(1, 2), (1, 3), (2,)])
    assert counts == {(): Counter({1: 2, 2: 1}), (1,): Counter({2: 1, 3: 1})}


def test_samples_of_one_distribution_pass_as_often_as_they_should() -> None:
    sigmas = []
    for seed in range(40):
        test = two_samples(drawn(400, seed), drawn(600, 1000 + seed)).test
        assert test.passed
        sigmas.append((test.statistic - test.degrees) / (2 * test.degrees) ** 0.5)
    assert abs(np.mean(sigmas)) < 0.5 and 0.6 < np.std(sigmas) < 1.4


def test_samples_of_a_model_pass_as_often_as_they_should() -> None:
    sigmas = []
    for seed in range(40):
        found = against_model(drawn(500, seed), logits_after, SamplingParams(1.0))
        assert found.test.passed and found.impossible is None
        sigmas.append((found.test.statistic - found.test.degrees) / (2 * found.test.degrees) ** 0.5)
    assert abs(np.mean(sigmas)) < 0.5 and 0.6 < np.std(sigmas) < 1.4


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_another_temperature_fails(power: float) -> None:
    wrong = PROBS**power / (PROBS**power).sum()
    assert not two_samples(drawn(400, 0, wrong), drawn(400, 1)).test.passed
    assert not against_model(drawn(400, 0, wrong), logits_after, SamplingParams(1.0)).test.passed


def test_a_wrong_second_token_fails() -> None:
    """The first ones are right, and so are the second ones on the whole, but not after the first."""
    right = drawn(600, 0)
    seconds = [sample[1] for sample in right]
    shuffled = [(sample[0], second) for sample, second in zip(right, seconds[1:] + seconds[:1], strict=True)]
    assert not two_samples(shuffled, drawn(600, 1)).test.passed
    assert not against_model(shuffled, logits_after, SamplingParams(1.0)).test.passed


def test_equal_samples_and_few_samples_say_nothing() -> None:
    same = two_samples(drawn(300, 0), drawn(300, 0)).test
    assert same.statistic == 0 and same.degrees > 5
    assert two_samples(drawn(19, 0), drawn(400, 1)).test.degrees == 0


def test_rare_tokens_are_counted_together() -> None:
    mine = [(token,) for token in [0] * 100 + list(range(1, 30))]
    other = [(token,) for token in [0] * 100 + list(range(30, 60))]
    assert two_samples(mine, other).test.degrees == 1


def test_tokens_that_a_filter_leaves_out_are_impossible() -> None:
    params = SamplingParams(1.0, top_k=3)
    found = against_model(drawn(400, 0), logits_after, params)
    assert found.impossible is not None
    kept = [(a,) for a, _ in drawn(400, 0) if a < 3]
    assert against_model(kept, logits_after, params).impossible is None
