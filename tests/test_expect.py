"""Expected tokens: the published reference numbers, and enumeration of every outcome."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import treedecode as td
from treedecode.expect import RankProbs, node_reach

REFERENCE = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0)]
PROBS = (0.7, 0.15)


def test_reference_numbers() -> None:
    assert td.expected_tokens(td.TreeShape.from_paths(REFERENCE), PROBS) == pytest.approx(3.2801, abs=1e-9)
    assert td.expected_tokens(td.TreeShape.chain(4), PROBS) == pytest.approx(2.7731, abs=1e-9)
    ratio = td.expected_tokens(td.TreeShape.from_paths(REFERENCE), PROBS) / td.expected_tokens(
        td.TreeShape.chain(4), PROBS
    )
    assert ratio == pytest.approx(1.18, abs=0.005)


def test_small_shapes() -> None:
    assert td.expected_tokens(td.TreeShape.chain(0), PROBS) == 1.0
    assert td.expected_tokens(td.TreeShape.star(4), (0.4, 0.3, 0.2, 0.05)) == pytest.approx(1.95)
    # ranks beyond those given are never accepted
    assert td.expected_tokens(td.TreeShape.star(4), PROBS) == pytest.approx(1.85)


def test_reach_by_node() -> None:
    """Every node of the reference tree by hand: r0 = 0.7, r1 = 0.15 along its path."""
    reach = node_reach(td.TreeShape.from_paths(REFERENCE), PROBS)
    assert reach == pytest.approx([1, 0.7, 0.15, 0.49, 0.105, 0.105, 0.343, 0.0735, 0.0735, 0.2401])
    assert node_reach(td.TreeShape.chain(3), [(0.5,), (0.4, 0.1)]) == pytest.approx([1, 0.5, 0.2, 0.0])
    assert node_reach(td.TreeShape.chain(0), PROBS) == [1.0]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_depth_1_star_emits_one_more_if_any_of_its_nodes_holds(width: int) -> None:
    probs = (0.5, 0.2, 0.1, 0.05)
    assert td.expected_tokens(td.TreeShape.star(width), probs) == pytest.approx(1 + sum(probs[:width]))


def test_rank_is_kept_where_a_better_sibling_is_missing() -> None:
    assert td.expected_tokens(td.TreeShape.from_paths([(1,)]), PROBS) == pytest.approx(1.15)


def test_equals_the_mean_over_all_outcomes() -> None:
    """Let every depth's accepted rank be drawn, walk the tree, and average the emitted tokens exactly."""
    shape = td.TreeShape.from_paths(REFERENCE)
    paths = set(shape.paths)
    outcomes = [(0, 0.7), (1, 0.15), (9, 0.15)]
    mean = 0.0
    for drawn in itertools.product(outcomes, repeat=shape.max_depth):
        weight = float(np.prod([prob for _, prob in drawn]))
        ranks = tuple(rank for rank, _ in drawn)
        accepted = max(depth for depth in range(len(ranks) + 1) if ranks[:depth] in paths)
        mean += weight * (accepted + 1)
    assert td.expected_tokens(shape, PROBS) == pytest.approx(mean, abs=1e-12)


def test_probabilities_by_depth() -> None:
    assert td.expected_tokens(td.TreeShape.chain(3), [(0.5,), (0.4, 0.1)]) == pytest.approx(1 + 0.5 + 0.2)
    assert td.expected_tokens(td.TreeShape.chain(2), np.array([[0.5, 0.1], [0.4, 0.1]])) == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("rank_probs", "error", "message"),
    [
        ((), ValueError, "at least one entry"),
        ((0.7, -0.1), ValueError, r"in \[0, 1\]: rank 1 has -0.1"),
        ((0.7, 1.5), ValueError, r"in \[0, 1\]: rank 1 has 1.5"),
        ((float("nan"),), ValueError, r"in \[0, 1\]"),
        ((0.7, 0.31), ValueError, "sum to at most 1"),
        ([(0.5,), (0.9, 0.2)], ValueError, "at depth 2 must sum"),
        ([(0.5,), ()], ValueError, "at depth 2 must have at least one"),
        ([0.5, (0.2,)], TypeError, "mix"),
        (("0.7",), TypeError, "must be numbers"),
        ((True,), TypeError, "must be numbers"),
        ("0.7", TypeError, "sequence of numbers"),
        (0.7, TypeError, "sequence of numbers"),
    ],
)
def test_bad_probabilities(rank_probs: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        td.expected_tokens(td.TreeShape.chain(1), rank_probs)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        td.plan_tree(rank_probs, 4)  # type: ignore[arg-type]


def test_bad_shape() -> None:
    with pytest.raises(TypeError, match="must be a TreeShape"):
        td.expected_tokens([(0,)], PROBS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a TreeShape"):
        node_reach((-1, 0), PROBS)  # type: ignore[arg-type]


def test_sum_of_rounded_probabilities_passes() -> None:
    assert RankProbs([1 / 3] * 3).of(1, 2) == pytest.approx(1 / 3)
    assert RankProbs([0.1] * 10).of(7, 3) == 0.1
