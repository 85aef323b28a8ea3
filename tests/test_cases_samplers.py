"""CASES.md 19, 20, 20b-20d and 22: sampled siblings, and temperatures in a batch."""

from __future__ import annotations

import math
from unittest import mock

import pytest
import torch

from treedecode.accept import accept_greedy, accept_sampled
from treedecode.accept_sampling import accept_sampled_batch
from treedecode.testing import reference
from treedecode.testing.enumeration import branches
from treedecode.testing.exact import exactness, exactness_batched, exactness_of_walk
from treedecode.testing.mutations import (
    by_draft_probability,
    confident,
    legal,
    merged,
)
from treedecode.testing.planting import relisted
from treedecode.testing.problems import Problem
from treedecode.testing.samplers import batched, public
from treedecode.tree import DraftTree, TreeShape

TARGET, REVERSED = [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]


def star(width):
    return Problem((-1, *[0] * width), 4, lambda path: TARGET, lambda path: REVERSED)


def softmaxed(target, draft, weight):
    rest = [math.exp(max(weight * p - q, 0)) for p, q in zip(target, draft, strict=True)]
    return [value / sum(rest) for value in rest]


def first_token(problem, method):
    """Distribution of the reference walk's first emitted token, exact."""
    first = [0.0] * problem.vocab_size
    for drafted, mass in problem.drafts(replacement=method.endswith("with_replacement")):
        for branch in branches(drafted, method):
            first[branch.result.token_ids[0]] += mass * branch.mass
    return first


@pytest.mark.parametrize("method", ["with_replacement", "without_replacement", "traversal"])
def test_case_19_the_residual_is_normalised_not_softmaxed(method):
    problem = Problem((-1, 0), 2, lambda path: [0.6, 0.4], lambda path: [0.8, 0.2])
    assert exactness_batched(batched, problem, method).exact
    assert first_token(problem, method) == pytest.approx([0.6, 0.4], abs=1e-12)
    with mock.patch.object(reference, "residual", softmaxed):
        assert first_token(problem, method) == pytest.approx([0.69, 0.31], abs=1e-3)


@pytest.mark.parametrize("method", ["without_replacement", "traversal"])
@pytest.mark.parametrize("width", [2, 3])
def test_case_20_siblings_without_replacement(width, method):
    assert exactness(public, star(width), method).exact
    assert exactness_batched(batched, star(width), method).exact


@pytest.mark.parametrize(("width", "variation"), [(2, 0.043), (3, 0.078)])
def test_case_20_a_draft_that_is_not_renormalised(width, variation):
    with mock.patch.object(reference, "without", lambda draft, token: draft):
        found = exactness_of_walk(reference.walk, star(width), "without_replacement").total_variation
    assert found == pytest.approx(variation, abs=1e-3)


@pytest.mark.parametrize(("width", "variation"), [(2, 0.117), (3, 0.353)])
def test_case_20b_sorted_siblings_are_biased_and_refused(width, variation):
    fault = relisted(by_draft_probability)
    found = exactness_of_walk(fault, star(width), "without_replacement").total_variation
    assert found == pytest.approx(variation, abs=1e-3)
    drawn = [0, 1, 2, 3][: width + 1]
    scores = [0.0, *(REVERSED[token] - 1 for token in drawn[1:])]
    tree, _ = DraftTree.build([-1] + [0] * width, drawn, scores)
    with pytest.raises(ValueError, match="draw order and duplicates"):
        accept_sampled(tree, [TARGET] * (width + 1), [REVERSED] * (width + 1), "without_replacement")


@pytest.mark.parametrize(("width", "variation"), [(2, 0.027), (3, 0.044)])
def test_case_20c_merged_duplicates_are_biased_and_refused(width, variation):
    fault = relisted(merged)
    found = exactness_of_walk(fault, star(width), "with_replacement").total_variation
    assert found == pytest.approx(variation, abs=1e-3)
    assert exactness_batched(batched, star(width), "with_replacement").exact
    tree, _ = DraftTree.build([-1] + [0] * width, [0] + [3] * width)
    assert tree.num_drafted == 1
    with pytest.raises(ValueError, match="draw order and duplicates"):
        accept_sampled(tree, [TARGET] * 2, [REVERSED] * 2, "with_replacement")


@pytest.mark.parametrize("choose", [confident, legal])
@pytest.mark.parametrize(
    "method", ["with_replacement", "without_replacement", "traversal", "traversal_with_replacement"]
)
def test_case_20d_pruned_draws_are_biased(choose, method):
    masked = Problem((-1, 0, 0), 4, lambda path: [0.0, 0.5, 0.3, 0.2], lambda path: REVERSED)
    assert exactness_of_walk(relisted(choose), masked, method).total_variation > 1e-3
    assert exactness_batched(batched, masked, method).exact


def test_case_20d_a_mask_on_the_draft_before_drawing_is_exact():
    masked = Problem((-1, 0, 0), 4, lambda path: [0.0, 0.5, 0.3, 0.2], lambda path: [0, 2 / 9, 3 / 9, 4 / 9])
    for method in ("with_replacement", "without_replacement", "traversal"):
        assert exactness_batched(batched, masked, method).exact


def test_case_20d_a_sampled_tree_is_cut_by_place_alone():
    """Nothing in the interface of a sampled tree looks at tokens or scores."""
    shape = TreeShape.from_parents([-1, 0, 0, 1, 1])
    one, other = (DraftTree.sampled(shape, tokens) for tokens in ([0, 3, 3, 1, 2], [0, 1, 2, 2, 2]))
    for cut in (lambda tree: tree.prefix(2), lambda tree: tree.within_depth(1)):
        assert cut(one).shape == cut(other).shape and cut(one).drawn
        assert cut(one).token_tuple == one.token_tuple[:3]
    assert one.scores is None


def test_case_20d_drawn_siblings_that_were_chosen_from_are_refused():
    tree = DraftTree.sampled(TreeShape.star(2), [0, 2, 1])
    rows = torch.full((2, 4), 0.25)
    for part in (tree.only([0, 2]), tree.along([0, 2])):
        with pytest.raises(ValueError, match=r"expected a tree made by DraftTree\.sampled"):
            accept_sampled(part, rows, rows, "without_replacement")


@pytest.mark.parametrize("method", ["one_draw", "with_replacement", "without_replacement", "traversal"])
def test_case_22_rows_of_other_temperatures_do_not_touch_each_other(method):
    temperatures = [0.0, 1.0, 0.0, 0.5]
    shape = TreeShape.from_parents([-1, 0, 0, 1, 1])
    generator = torch.Generator().manual_seed(0)
    tree = DraftTree.sampled(shape, [0, 4, 2, 1, 3])
    for trial in range(50):
        logits = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
        draft = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64).softmax(-1)
        uniforms = torch.rand(4, 5, generator=generator, dtype=torch.float64)
        target = torch.stack(
            [
                torch.nn.functional.one_hot(row.argmax(-1), 6).double()
                if temperature == 0
                else (row / temperature).softmax(-1)
                for row, temperature in zip(logits, temperatures, strict=True)
            ]
        )
        parents, tokens = (torch.tensor([ids] * 4) for ids in (tree.shape.parent_tuple, tree.token_tuple))
        result = accept_sampled_batch(parents, tokens, target, uniforms, draft, method)
        assert (result.num_accepted >= 0).all(), trial
        for row, temperature in enumerate(temperatures):
            solo = accept_sampled(tree, target[row], draft[row], method, uniforms=uniforms[row].tolist())
            assert [token for token in result.token_ids[row].tolist() if token >= 0] == solo.token_ids
            if temperature == 0:
                assert solo == accept_greedy(tree, logits[row].argmax(-1))
