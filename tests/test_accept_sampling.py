"""Batched sampled walks: the plain reference for the same numbers, padding, dtypes, devices' rules, and edges."""

from __future__ import annotations

import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from treedecode.accept import accept_sampled
from treedecode.accept_inputs import METHODS
from treedecode.accept_sampling import accept_sampled_batch
from treedecode.rejection import most_tests
from treedecode.testing import strategies
from treedecode.testing.enumeration import Case
from treedecode.testing.exact import support_faults
from treedecode.testing.problems import random_problem
from treedecode.testing.samplers import batched, public, reference
from treedecode.tree import DraftTree, TreeShape

DRAWN = METHODS[1:]
ALMOST_ONE = math.nextafter(1, 0)
STAR = DraftTree.sampled(TreeShape.star(2), [0, 1, 2])
ROW = [0.1, 0.2, 0.3, 0.4]


@st.composite
def drawn_cases(draw, method, max_nodes=7, vocab_size=8, kinds=("narrow",)):
    """A tree drawn by a drafter, and random numbers."""
    parents = draw(strategies.parents(max_nodes))
    kind = draw(st.sampled_from(["any", "zeros", "certain", "opposed", *kinds]))
    seed = draw(st.integers(0, 10**6))
    problem, rng = random_problem(parents, vocab_size, seed, kind), random.Random(seed)
    drafted = problem.sample(rng, replacement=method.endswith("with_replacement"))
    tree = DraftTree.sampled(problem.shape, drafted.token_ids)
    return Case(tree, drafted, [rng.random() for _ in range(2 * max_nodes)], 1.0)


def rows_of(case):
    return list(case.drafted.target_probs), list(case.drafted.draft_probs)


# ---- the reference


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=60)
@given(data=st.data())
def test_every_row_of_a_batch_equals_the_reference(method, data):
    """Ragged trees, padded with valid-looking nodes: what a row gives does not depend on its batch mates."""
    batch = data.draw(st.lists(drawn_cases(method), min_size=1, max_size=6))
    for case, result in zip(batch, batched(batch, method), strict=True):
        assert result == reference(case.tree, *rows_of(case), method, case.uniforms)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40)
@given(data=st.data())
def test_the_public_function_equals_the_reference(method, data):
    case = data.draw(drawn_cases(method, kinds=()))  # what was not drawn is refused
    expected = reference(case.tree, *rows_of(case), method, case.uniforms)
    assert public(case.tree, *rows_of(case), method, case.uniforms) == expected


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40)
@given(data=st.data(), max_depth=st.integers(0, 4))
def test_the_depth_limit_cuts_the_tree(method, data, max_depth):
    case = data.draw(drawn_cases(method))
    parents, tokens = (torch.tensor([ids]) for ids in (case.tree.shape.parent_tuple, case.tree.token_tuple))
    target, draft = (torch.tensor([rows], dtype=torch.float64) for rows in rows_of(case))
    uniforms = torch.tensor([case.uniforms], dtype=torch.float64)
    result = accept_sampled_batch(parents, tokens, target, uniforms, draft, method, max_depth=max_depth)
    kept = [node for node, depth in enumerate(case.tree.shape.depth_tuple) if depth <= max_depth]
    cut = case.tree.within_depth(max_depth)
    rows = [[rows[node] for node in kept] for rows in rows_of(case)]
    expected = reference(cut, *rows, method, case.uniforms)
    assert result.path.shape == (1, max_depth + 1)
    assert [node for node in result.path[0].tolist() if node >= 0] == [kept[node] for node in expected.path]
    assert [token for token in result.token_ids[0].tolist() if token >= 0] == expected.token_ids


@settings(max_examples=60)
@given(case=drawn_cases("without_replacement"))
def test_most_tests_are_rounds_enough(case):
    inputs = [torch.tensor([ids]) for ids in (case.tree.shape.parent_tuple, case.tree.token_tuple)]
    target, draft = (torch.tensor([rows], dtype=torch.float64) for rows in rows_of(case))
    uniforms = torch.tensor([case.uniforms], dtype=torch.float64)
    rounds = most_tests(case.tree.shape)
    results = [
        accept_sampled_batch(*inputs, target, uniforms, draft, "without_replacement", max_tests=limit)
        for limit in (None, rounds)
    ]
    assert torch.equal(results[0].token_ids, results[1].token_ids)


def test_most_tests_is_the_costliest_path():
    assert most_tests(TreeShape.chain(0)) == 0
    assert most_tests(TreeShape.chain(3)) == 3
    assert most_tests(TreeShape.star(4)) == 4
    assert most_tests(TreeShape.from_parents([-1, 0, 0, 1, 1, 1, 2])) == 4  # 0-1 and three, 0-1-2 and one


# ---- a tensor program


@pytest.mark.parametrize("method", METHODS)
def test_no_walk_synchronises(method):
    """Fake tensors hold no data: .item(), .tolist(), nonzero or a branch on a value raises."""
    with FakeTensorMode():
        ids = torch.zeros(8, 6, dtype=torch.int64)
        probs = torch.zeros(8, 6, 11)
        uniforms = torch.zeros(8, 6, dtype=torch.float64)
        sizes = torch.zeros(8, dtype=torch.int64)
        result = accept_sampled_batch(ids, ids, probs, uniforms, probs, method, sizes, max_depth=3)
        assert result.path.shape == result.token_ids.shape == (8, 4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_inputs_are_not_modified(method, dtype):
    parents = torch.tensor([[-1, 0, 0, 1, 1], [-1, 0, 1, 2, 3]])
    tokens = torch.tensor([[0, 1, 2, 3, 4], [0, 4, 3, 2, 1]])
    probs = torch.randn(2, 2, 5, 6, generator=torch.Generator().manual_seed(0)).softmax(-1).to(dtype)
    uniforms = torch.rand(2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given_inputs = (parents, tokens, probs[0], uniforms, probs[1])
    before = [tensor.clone() for tensor in given_inputs]
    for _ in range(2):
        accept_sampled_batch(*given_inputs, method)
        assert all(torch.equal(one, other) for one, other in zip(before, given_inputs, strict=True))


def test_the_public_function_modifies_nothing():
    target, draft = np.tile(ROW, (3, 1)), np.tile(ROW[::-1], (3, 1))
    uniforms = np.array([0.9, 0.9, 0.9])
    for method in METHODS:
        accept_sampled(STAR, target, draft, method, uniforms=uniforms)
        assert target.tolist() == [ROW] * 3 and draft.tolist() == [ROW[::-1]] * 3
        assert uniforms.tolist() == [0.9] * 3


# ---- numerical edges


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_dtype_emits_a_token_without_mass(method, dtype):
    for seed, kind in enumerate(("zeros", "certain")):
        for parents in ((-1, 0, 0), (-1, 0, 0, 1)):
            problem = random_problem(parents, 4, seed, kind)
            assert support_faults(partial(batched, dtype=dtype), problem, method) == []


@pytest.mark.parametrize("method", DRAWN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE])
def test_a_draft_equal_to_the_target_is_accepted_whatever_the_number(method, dtype, uniform):
    parents = torch.tensor([[-1, 0, 0, 1, 3, 3]])  # the first path: 0, 1, 3, 4
    tokens = torch.tensor([[0, 7, 8, 3, 5, 6]])
    probs = torch.randn(1, 6, 50, generator=torch.Generator().manual_seed(3)).softmax(-1).to(dtype)
    uniforms = torch.full((1, 6), uniform, dtype=torch.float64)
    result = accept_sampled_batch(parents, tokens, probs, uniforms, probs, method, max_depth=3)
    assert result.path.tolist() == [[0, 1, 3, 4]]


@pytest.mark.parametrize("method", DRAWN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_certain_target_decides_alone(method, dtype):
    """Target rows of exactly 0 and 1: the walk is the greedy one, at every number."""
    parents, tokens = torch.tensor([[-1, 0, 0, 1, 2]]), torch.tensor([[0, 1, 2, 3, 3]])
    target = torch.zeros(1, 5, 4, dtype=dtype)
    for node, choice in enumerate([2, 0, 1, 0, 0]):
        target[0, node, choice] = 1
    draft = torch.tensor([0.1, 0.3, 0.2, 0.4]).to(dtype).expand(1, 5, 4)
    for uniform in (0.0, 0.3, ALMOST_ONE):
        uniforms = torch.full((1, 5), uniform, dtype=torch.float64)
        result = accept_sampled_batch(parents, tokens, target, uniforms, draft, method)
        assert result.path.tolist() == [[0, 2, -1, -1, -1]]
        assert result.token_ids.tolist() == [[2, 1, -1, -1, -1]]


@pytest.mark.parametrize("method", DRAWN)
def test_disjoint_models_are_rejected_and_replaced(method):
    target, draft = torch.tensor([[[0, 0, 0.5, 0.5]] * 3]), torch.tensor([[[0.5, 0.5, 0, 0]] * 3])
    for uniform in (0.0, 0.4, ALMOST_ONE):
        uniforms = torch.full((1, 3), uniform, dtype=torch.float64)
        result = accept_sampled_batch(
            torch.tensor([[-1, 0, 0]]), torch.tensor([[0, 1, 0]]), target, uniforms, draft, method
        )
        assert result.num_accepted.tolist() == [0]
        assert result.token_ids[0].tolist()[0] == (3 if uniform > 0.5 else 2)


@pytest.mark.parametrize("method", METHODS)
def test_low_precision_follows_the_rounded_rows(method):
    """bfloat16 rows sum to 1 within a percent: they are normalised, not read as they are."""
    generator = torch.Generator().manual_seed(5)
    size, width, vocab_size = 400, 5, 40
    parents = torch.tensor([[-1, 0, 0, 1, 1]]).expand(size, width)
    target, draft = torch.randn(2, size, width, vocab_size, generator=generator).softmax(-1).bfloat16()
    tokens = torch.zeros(size, width, dtype=torch.int64)
    tokens[:, 1:3] = torch.multinomial(draft[:, 0].float(), 2, generator=generator)
    tokens[:, 3:] = torch.multinomial(draft[:, 1].float(), 2, generator=generator)
    uniforms = torch.rand(size, width, generator=generator, dtype=torch.float64)
    exact = [probs.double() / probs.double().sum(-1, keepdim=True) for probs in (target, draft)]
    low = accept_sampled_batch(parents, tokens, target, uniforms, draft, method)
    high = accept_sampled_batch(parents, tokens, exact[0], uniforms, exact[1], method)
    # a number within float32 rounding of a threshold may go either way: none of 400 x 5 is expected to
    assert (low.token_ids == high.token_ids).all(1).float().mean() > 0.99


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_vocabulary_that_is_a_multiple_of_nothing(method, dtype):
    """151,666 tokens; the mass is on the last ones."""
    vocab_size = 151_666
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, 1, 4, vocab_size, generator=generator)
    logits[..., -3:] += 14
    target, draft = logits.softmax(-1).to(dtype)
    last = vocab_size - 1
    parents, tokens = torch.tensor([[-1, 0, 0, 1]]), torch.tensor([[0, last, last - 1, last - 2]])
    for uniform in (0.0, 0.7, ALMOST_ONE):
        uniforms = torch.full((1, 4), uniform, dtype=torch.float64)
        result = accept_sampled_batch(parents, tokens, target, uniforms, draft, method)
        emitted = [token for token in result.token_ids[0].tolist() if token >= 0]
        assert len(emitted) == int(result.num_accepted) + 1
        assert all(0 <= token < vocab_size for token in emitted)
        if uniform == 0.7 and method == "one_draw":
            assert emitted[-1] >= vocab_size - 3


def test_numbers_are_used_in_the_order_of_decisions():
    """One per tested sibling, then one for the last token."""
    uniforms = [0.999, 0.999, 0.0]
    accepted = accept_sampled(
        STAR, [ROW] * 3, [[0.0, 0.5, 0.5, 0.0]] * 3, "without_replacement", uniforms=uniforms
    )
    assert accepted.num_accepted == 0 and accepted.token_ids == [0]


# ---- generators and refusals


@pytest.mark.parametrize("method", DRAWN)
def test_a_step_takes_one_number_per_node_from_its_generator(method):
    for uniform in range(5):
        generator = np.random.default_rng(uniform)
        accept_sampled(STAR, [ROW] * 3, [ROW[::-1]] * 3, method, generator=generator)
        expected = np.random.default_rng(uniform)
        expected.random(3)
        assert generator.random() == expected.random()
    torch_runs = [
        accept_sampled(STAR, [ROW] * 3, [ROW[::-1]] * 3, method, generator=torch.Generator().manual_seed(5))
        for _ in range(2)
    ]
    assert torch_runs[0] == torch_runs[1]


BUILT = DraftTree.build([-1, 0, 0], [0, 2, 1], [0.0, -1.0, -0.5])[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_probs": None}, "needs draft_probs.*'one_draw'"),
        ({"tree": BUILT}, "made by DraftTree.sampled"),
        ({"tree": BUILT.prefix(1), "target_probs": [ROW] * 2, "draft_probs": [ROW] * 2}, "DraftTree.sampled"),
        ({"draft_probs": [[0.5, 0.5, 0, 0]] * 3}, "node 2 has token 2, which has probability 0 in row 0"),
        ({"uniforms": [0.99, 0.99]}, "expected at least 3, got 2"),
        ({"uniforms": [0.5], "generator": np.random.default_rng(0)}, "got both"),
    ],
)
def test_what_cannot_be_a_draw_is_refused(changes, message):
    arguments = {
        "tree": STAR,
        "target_probs": [[0.7, 0.1, 0.1, 0.1]] * 3,
        "draft_probs": [[0.1, 0.4, 0.4, 0.1]] * 3,
        "method": "without_replacement",
        "uniforms": [0.5] * 3,
    }
    with pytest.raises(ValueError, match=message):
        accept_sampled(**{**arguments, **changes})


def test_duplicates_are_draws_with_replacement_only():
    twins = DraftTree.sampled(TreeShape.star(2), [0, 1, 1])
    for method in (*METHODS[:1], "with_replacement", "traversal_with_replacement"):
        accept_sampled(twins, [ROW] * 3, [ROW] * 3, method, uniforms=[0.5] * 3)
    for method in ("without_replacement", "traversal"):
        with pytest.raises(ValueError, match="nodes 1 and 2 are both token 1 under node 0"):
            accept_sampled(twins, [ROW] * 3, [ROW] * 3, method, uniforms=[0.5] * 3)
    with pytest.raises(ValueError, match="siblings must have different tokens"):
        DraftTree(TreeShape.star(2), [0, 1, 1])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"method": "greedy"}, ValueError, "method must be one of"),
        ({"draft_probs": None}, ValueError, "'traversal' needs draft_probs"),
        ({"parents": torch.zeros(2, 3, dtype=torch.int32)}, TypeError, "parents must be int64"),
        ({"token_ids": torch.zeros(2, 4, dtype=torch.int64)}, ValueError, r"token_ids \[2, 4\]"),
        ({"target_probs": torch.zeros(2, 3, 5).long()}, TypeError, "target_probs must be floating"),
        ({"target_probs": torch.zeros(2, 4, 5)}, ValueError, r"target_probs .* got \[2, 4, 5\]"),
        ({"draft_probs": torch.zeros(2, 3, 6)}, ValueError, r"draft_probs .* got \[2, 3, 6\]"),
        ({"uniforms": torch.zeros(2, 3).long()}, TypeError, "uniforms must be floating"),
        ({"uniforms": torch.zeros(2, 2)}, ValueError, r"K >= 3 for 'traversal', got \[2, 2\]"),
        ({"num_nodes": torch.zeros(3)}, ValueError, r"num_nodes must have shape \[2\]"),
        ({"max_depth": -1}, ValueError, "max_depth must be at least 0"),
        ({"max_tests": -1, "method": "with_replacement"}, ValueError, "max_tests must be at least 0"),
    ],
)
def test_bad_batches_are_refused(changes, error, message):
    arguments = {
        "parents": torch.zeros(2, 3, dtype=torch.int64),
        "token_ids": torch.zeros(2, 3, dtype=torch.int64),
        "target_probs": torch.zeros(2, 3, 5),
        "uniforms": torch.zeros(2, 3),
        "draft_probs": torch.zeros(2, 3, 5),
        "method": "traversal",
    }
    with pytest.raises(error, match=message):
        accept_sampled_batch(**{**arguments, **changes})
