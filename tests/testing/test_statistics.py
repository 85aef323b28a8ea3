"""Chi-squared over vocabularies too large to enumerate: V = 16 with 200,000 trials, and V = 4,096."""

from __future__ import annotations

import pytest
import torch

from treedecode.accept_inputs import METHODS
from treedecode.accept_sampling import accept_sampled_batch
from treedecode.testing.statistics import chi_squared, opposed_tables, simulate
from treedecode.testing.suite import check_frequencies
from treedecode.tree import TreeShape


@pytest.mark.parametrize("method", METHODS)
def test_sixteen_tokens_at_every_position(method):
    check_frequencies(accept_sampled_batch, method)


@pytest.mark.parametrize("method", METHODS)
def test_four_thousand_tokens(method):
    check_frequencies(accept_sampled_batch, method, vocab_size=4096, trials=6_000)


def test_most_cells_are_large_enough_to_count():
    tables = opposed_tables(16, 2, seed=0)
    tokens = simulate(tables, TreeShape.from_parents([-1, 0, 0, 1, 1]), "one_draw", 200_000, seed=3)
    for position in range(3):
        assert chi_squared(tables, tokens, position).degrees >= 15 * 16**position * 0.5  # the rest is pooled


def test_the_statistic_by_hand():
    tables = opposed_tables(2, 0, seed=0)
    tables.target[0][0] = torch.tensor([0.25, 0.75])
    tokens = torch.tensor([[0]] * 30 + [[1]] * 70)
    result = chi_squared(tables, tokens, 0)
    assert result.statistic == pytest.approx(25 / 25 + 25 / 75)
    assert (result.degrees, round(result.threshold, 3)) == (1, 15.142)
