"""Chi-squared over vocabularies too large to enumerate: V = 16 with 200,000 trials, and V = 4,096."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from treedecode import accept_sampling, rejection, traversal
from treedecode.accept_inputs import METHODS
from treedecode.testing.statistics import chi_squared, opposed_tables, simulate
from treedecode.tree import TreeShape

SMALL = opposed_tables(16, 2, seed=0)
SMALL_TREE = TreeShape.from_parents([-1, 0, 0, 1, 1])
LARGE = opposed_tables(4096, 1, seed=1, context=False, scale=2.0)


def softmaxed(target, draft):
    return (target - draft).clamp(min=0).softmax(-1)


def kept(draft, token):
    return draft


def unweighted(weight, target, draft):
    return (target / draft.clamp(min=1e-300)).clamp(max=1).to(weight.dtype)


@pytest.mark.parametrize("method", METHODS)
def test_sixteen_tokens_at_every_position(method):
    tokens = simulate(SMALL, SMALL_TREE, method, 200_000, seed=3)
    for position in range(3):
        result = chi_squared(SMALL, tokens, position)
        assert result.degrees >= 15 * 16**position * 0.5  # the rest is pooled
        assert result.passed, (position, result)


@pytest.mark.parametrize("method", METHODS)
def test_four_thousand_tokens(method):
    tokens = simulate(LARGE, TreeShape.star(2), method, 20_000, seed=4, chunk=1000)
    for position in range(2):
        result = chi_squared(LARGE, tokens, position)
        assert result.degrees > 300
        assert result.passed, (position, result)


@pytest.mark.parametrize(
    ("method", "module", "name", "fault"),
    [
        ("with_replacement", rejection, "residual", softmaxed),
        ("without_replacement", rejection, "without", kept),
        ("traversal", traversal, "without", kept),
        ("traversal", traversal, "entry_weight", unweighted),
        ("one_draw", accept_sampling, "draw", lambda weights, uniforms: weights.argmax(-1)),
    ],
)
def test_faults_fail_it(method, module, name, fault):
    with mock.patch.object(module, name, fault):
        tokens = simulate(SMALL, SMALL_TREE, method, 200_000, seed=3)
    assert not all(chi_squared(SMALL, tokens, position).passed for position in range(3))


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_stream_shared_by_drafting_and_verification_fails_it(method):
    tokens = simulate(SMALL, SMALL_TREE, method, 100_000, seed=3, shared_stream=True)
    assert not chi_squared(SMALL, tokens, 0).passed


def test_the_statistic_by_hand():
    tables = opposed_tables(2, 0, seed=0)
    tables.target[0][0] = torch.tensor([0.25, 0.75])
    tokens = torch.tensor([[0]] * 30 + [[1]] * 70)
    result = chi_squared(tables, tokens, 0)
    assert result.statistic == pytest.approx(25 / 25 + 25 / 75)
    assert (result.degrees, round(result.threshold, 3)) == (1, 15.142)
