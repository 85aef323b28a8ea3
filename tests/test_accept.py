"""Greedy, sampled and batched walks, and stops."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from treedecode.accept import Acceptance, accept_greedy, accept_sampled, truncate_at_stop, walk_batch
from treedecode.batch import pad_trees
from treedecode.testing import oracle, strategies
from treedecode.tree import DraftTree, TreeShape

STAR = DraftTree(TreeShape.star(3), [0, 1, 2, 3])
STAR_PROBS = [[0, 0.25, 0, 0.75]] * 4


def padded_targets(cases, width):
    return torch.tensor([case.target_ids + [3] * (width - len(case.target_ids)) for case in cases])


# ---- greedy


@given(strategies.walk_cases())
def test_greedy_walk_equals_the_oracle(case):
    accepted = accept_greedy(case.tree, case.target_ids)
    path, emitted = oracle.walk(case.tree.shape.parent_tuple, case.tree.token_tuple, case.target_ids)
    assert accepted == Acceptance(path, emitted, len(path) - 1)
    assert accept_greedy(case.tree, np.array(case.target_ids)) == accepted
    assert accept_greedy(case.tree, torch.tensor(case.target_ids)) == accepted


@given(strategies.draft_trees(), st.integers(0, 23))
def test_every_path_can_be_accepted_in_full(tree, node):
    path = oracle.path_of(tree.shape.parent_tuple, node % tree.num_nodes)
    target_ids = [99] * tree.num_nodes
    for parent, child in pairwise(path):
        target_ids[parent] = tree.token_tuple[child]
    assert accept_greedy(tree, target_ids).path == path


@pytest.mark.parametrize(
    ("target_ids", "error", "message"),
    [
        ([1, 2], ValueError, "4 nodes, got 2 target ids"),
        ([1, 2, 3, 4, 5], ValueError, "4 nodes, got 5 target ids"),
        ([1, 2.0, 3, 4], TypeError, "target id of node 1 must be an integer"),
        ([-1, 2, 3, 4], ValueError, "node 0 has target id -1"),
        (torch.ones(4), TypeError, "target id must be integers, got dtype float32"),
        (np.ones((1, 4), int), ValueError, "one dimension"),
    ],
)
def test_bad_targets_are_refused(target_ids, error, message):
    with pytest.raises(error, match=message):
        accept_greedy(STAR, target_ids)


def test_a_shape_alone_cannot_be_walked():
    with pytest.raises(TypeError, match="tree must be a DraftTree, got TreeShape"):
        accept_greedy(STAR.shape, [1, 2, 3, 4])
    with pytest.raises(TypeError, match="tree must be a DraftTree, got TreeShape"):
        accept_sampled(STAR.shape, STAR_PROBS)


@given(strategies.walk_cases(), st.integers(0, 30))
def test_cut_keeps_the_nodes_of_the_kept_tokens(case, num_tokens):
    accepted = accept_greedy(case.tree, case.target_ids)
    cut = accepted.cut(num_tokens)
    assert cut.token_ids == accepted.token_ids[:num_tokens]
    assert cut.path == accepted.path[: num_tokens + 1]
    assert cut.num_accepted == len(cut.path) - 1 <= len(cut.token_ids)


# ---- batched


@given(st.lists(strategies.walk_cases(), min_size=1, max_size=6), st.integers(0, 3))
def test_batched_walk_equals_the_oracle(cases, extra):
    width = max(case.tree.num_nodes for case in cases) + extra
    batch = pad_trees([case.tree for case in cases], width)
    arrays = [torch.from_numpy(array) for array in (batch.parents, batch.token_ids, batch.num_nodes)]
    parents, token_ids, num_nodes = arrays
    target_ids = padded_targets(cases, width)
    max_depth = max(case.tree.shape.max_depth for case in cases)
    for limit, columns in ((None, width), (max_depth, max_depth + 1), (width + 3, width + 4)):
        result = walk_batch(parents, token_ids, target_ids, num_nodes, limit)
        assert result.path.shape == result.token_ids.shape == (len(cases), columns)
        for row, case in enumerate(cases):
            path, emitted = oracle.walk(case.tree.shape.parent_tuple, case.tree.token_tuple, case.target_ids)
            padding = [-1] * (columns - len(path))
            assert result.path[row].tolist() == path + padding
            assert result.token_ids[row].tolist() == emitted + padding
            assert result.num_accepted[row] == len(path) - 1


@given(strategies.walk_cases(), st.integers(0, 5))
def test_batched_walk_stops_at_the_depth_limit(case, max_depth):
    parents, token_ids = (
        torch.tensor([ids]) for ids in (case.tree.shape.parent_tuple, case.tree.token_tuple)
    )
    result = walk_batch(parents, token_ids, torch.tensor([case.target_ids]), max_depth=max_depth)
    path, emitted = oracle.walk(case.tree.shape.parent_tuple, case.tree.token_tuple, case.target_ids)
    assert [node for node in result.path[0].tolist() if node >= 0] == path[: max_depth + 1]
    assert [token for token in result.token_ids[0].tolist() if token >= 0] == emitted[: max_depth + 1]
    assert result.num_accepted.tolist() == [min(len(path) - 1, max_depth)]


@given(st.lists(st.integers(-3, 9), min_size=6, max_size=6))
def test_batched_walk_never_accepts_under_a_malformed_parent(parents):
    ids = torch.zeros(1, 6, dtype=torch.int64)  # every token matches, so only the topology decides
    path = walk_batch(torch.tensor([parents]), ids, ids).path[0].tolist()
    for node in path[1:]:
        assert node == -1 or 0 <= parents[node] < node


def test_batched_walk_never_synchronises():
    """Fake tensors hold no data: .item(), .tolist(), nonzero or a branch on a value raises."""
    with FakeTensorMode():
        ids = torch.zeros(64, 32, dtype=torch.int64)
        result = walk_batch(ids, ids, ids, torch.zeros(64, dtype=torch.int64), 8)
        assert result.path.shape == (64, 9)
        with pytest.raises(DataDependentOutputException):
            result.num_accepted.max().item()


def test_batched_walk_runs_a_logarithmic_number_of_operations():
    def count_operations(width):
        ids = torch.zeros(2, width, dtype=torch.int64)
        with torch.profiler.profile() as profile:
            walk_batch(ids, ids, ids)
        return sum(event.count for event in profile.key_averages() if event.key.startswith("aten::"))

    assert count_operations(512) - count_operations(32) <= 20


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"parents": torch.zeros(2, 3, dtype=torch.int32)},
            TypeError,
            "parents must be int64, got torch.int32",
        ),
        ({"token_ids": torch.zeros(2, 4, dtype=torch.int64)}, ValueError, r"token_ids \[2, 4\]"),
        ({"target_ids": torch.zeros(3, dtype=torch.int64)}, ValueError, r"target_ids \[3\]"),
        ({"num_nodes": torch.ones(3, dtype=torch.int64)}, ValueError, r"num_nodes must have shape \[2\]"),
        ({"max_depth": -1}, ValueError, "max_depth must be at least 0"),
    ],
)
def test_bad_batches_are_refused(changes, error, message):
    ids = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(error, match=message):
        walk_batch(**{"parents": ids, "token_ids": ids, "target_ids": ids, **changes})


# ---- sampled


@st.composite
def sampled_cases(draw):
    tree = draw(strategies.draft_trees(5, vocab_size=6))
    vocab_size = 6
    rows = []
    for _ in range(tree.num_nodes):
        weights = draw(st.lists(st.integers(0, 3), min_size=vocab_size, max_size=vocab_size).filter(any))
        rows.append([weight / sum(weights) for weight in weights])
    return tree, rows


def sampled_distribution(tree, target_probs, accept=accept_sampled):
    """Output distribution of ``accept``, exact: every cell of uniforms is run once."""
    outcomes = defaultdict(float)
    for uniforms, volume in oracle.uniform_cells(target_probs, tree.shape.max_depth + 1):
        outcomes[tuple(accept(tree, target_probs, uniforms=uniforms).token_ids)] += volume
    return outcomes


def total_variation(one, other):
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2


@settings(max_examples=30)
@given(sampled_cases().filter(lambda case: case[0].shape.max_depth <= 1))
def test_sampled_walk_has_the_targets_distribution(case):
    tree, target_probs = case
    expected = oracle.emitted_distribution(tree.shape.parent_tuple, tree.token_tuple, target_probs)
    assert total_variation(sampled_distribution(tree, target_probs), expected) < 1e-12


DEEP = DraftTree(TreeShape.from_parents([-1, 0, 0, 1, 1]), [2, 0, 1, 2, 1])
DEEP_PROBS = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [1, 0, 0], [0.2, 0.2, 0.6], [0.7, 0, 0.3]]


def test_sampled_walk_is_exact_at_depth_two():
    expected = oracle.emitted_distribution(DEEP.shape.parent_tuple, DEEP.token_tuple, DEEP_PROBS)
    assert total_variation(sampled_distribution(DEEP, DEEP_PROBS), expected) < 1e-12


def test_planted_sampling_faults_fail_the_enumeration():
    expected = oracle.emitted_distribution(DEEP.shape.parent_tuple, DEEP.token_tuple, DEEP_PROBS)

    def row_of_the_next_node(tree, target_probs, uniforms):
        return accept_sampled(tree, np.roll(target_probs, 1, axis=0), uniforms=uniforms)

    def one_uniform_for_all(tree, target_probs, uniforms):
        return accept_sampled(tree, target_probs, uniforms=[uniforms[0]] * len(uniforms))

    def a_draw_per_child(tree, target_probs, uniforms):
        for child, uniform in zip(tree.shape.children(0), uniforms, strict=False):
            if (
                accept_sampled(tree, target_probs, uniforms=[uniform] * 3).token_ids[0]
                == tree.token_tuple[child]
            ):
                return Acceptance([0], [tree.token_tuple[child]], 0)
        return accept_sampled(tree, target_probs, uniforms=uniforms)

    for fault in (row_of_the_next_node, one_uniform_for_all, a_draw_per_child):
        assert total_variation(sampled_distribution(DEEP, DEEP_PROBS, fault), expected) > 0.01


@given(strategies.draft_trees(12, vocab_size=20), strategies.draft_trees(12, vocab_size=20), st.data())
def test_same_uniforms_same_tokens_with_any_tree(one, other, data):
    """One row for all nodes: what is emitted must be a prefix of the tokens that the uniforms give alone."""
    weights = data.draw(st.lists(st.integers(0, 5), min_size=20, max_size=20).filter(any))
    row = np.array(weights) / sum(weights)
    uniforms = data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=13, max_size=13))
    plain = [accept_sampled(DraftTree.root_only(0), row[None], uniforms=[u]).token_ids[0] for u in uniforms]
    for tree in (one, other):
        emitted = accept_sampled(tree, np.tile(row, (tree.num_nodes, 1)), uniforms=uniforms).token_ids
        assert emitted == plain[: len(emitted)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12).filter(any), st.floats(0, 1, exclude_max=True))
def test_a_token_without_probability_is_never_drawn(weights, uniform):
    for dtype in (np.float64, np.float32, np.float16):
        row = (np.array(weights) / sum(weights)).astype(dtype)
        if abs(row.astype(np.float64).sum() - 1) > 1e-4:
            continue
        token = accept_sampled(DraftTree.root_only(0), row[None], uniforms=[uniform]).token_ids[0]
        assert row[token] > 0


def test_the_largest_uniform_stays_in_the_vocabulary():
    almost_one = math.nextafter(1, 0)
    row = [0.1] * 10 + [0.0]  # sums to 0.9999999999999999
    assert accept_sampled(DraftTree.root_only(0), [row], uniforms=[almost_one]).token_ids == [9]
    single = np.full((1, 1000), 1 / 1000, np.float32)
    assert accept_sampled(DraftTree.root_only(0), single, uniforms=[almost_one]).token_ids == [999]


def test_rounding_does_not_pile_up_on_the_last_token():
    row = [0.99994, 1e-9]  # a low-precision distribution: 6e-5 are missing
    assert accept_sampled(DraftTree.root_only(0), [row], uniforms=[0.99996]).token_ids == [0]


def test_generators_repeat():
    probs = torch.tensor(DEEP_PROBS)

    def torch_run():
        return accept_sampled(DEEP, probs, generator=torch.Generator().manual_seed(5))

    assert torch_run() == torch_run()
    numpy_runs = [accept_sampled(DEEP, DEEP_PROBS, generator=np.random.default_rng(5)) for _ in range(2)]
    assert numpy_runs[0] == numpy_runs[1]
    torch.manual_seed(3)
    default = accept_sampled(DEEP, DEEP_PROBS)
    torch.manual_seed(3)
    assert accept_sampled(DEEP, DEEP_PROBS) == default


def test_generators_are_uniform():
    for generator in (np.random.default_rng(0), torch.Generator().manual_seed(0)):
        tree = DraftTree(TreeShape.star(2), [0, 1, 3])
        draws = [accept_sampled(tree, [[0.1, 0.2, 0.3, 0.4]] * 3, generator=generator) for _ in range(4000)]
        counts = np.bincount([accepted.token_ids[0] for accepted in draws], minlength=4)
        expected = 4000 * np.array([0.1, 0.2, 0.3, 0.4])
        assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 3 degrees, p = 0.001


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_dtype_is_read(dtype):
    probs = torch.tensor(STAR_PROBS, dtype=dtype)
    assert accept_sampled(STAR, probs, uniforms=[0.25, 0.1]).token_ids == [3, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"method": "rejection"}, ValueError, "method must be one of .*, got 'rejection'"),
        ({"target_probs": None}, TypeError, "target_probs must be numbers, got NoneType"),
        ({"target_probs": STAR_PROBS[:3]}, ValueError, r"N = 4 nodes, got \(3, 4\)"),
        ({"target_probs": STAR_PROBS[0]}, ValueError, r"got \(4,\)"),
        ({"target_probs": [[]] * 4}, ValueError, r"got \(4, 0\)"),
        ({"target_probs": np.array(STAR_PROBS) > 0}, TypeError, "got dtype bool"),
        ({"target_probs": [[0, 0.5, 0, 0.6]] * 4}, ValueError, "row 0 has minimum 0.0 and sum 1.1"),
        ({"target_probs": [*STAR_PROBS[:3], [0, 0, 0, 0]]}, ValueError, "row 3 has"),
        (
            {"target_probs": [*STAR_PROBS[:2], [-0.5, 1.5, 0, 0], STAR_PROBS[0]]},
            ValueError,
            "row 2 has minimum -0.5",
        ),
        ({"target_probs": [*STAR_PROBS[:3], [math.nan, 1, 0, 0]]}, ValueError, "row 3 has minimum nan"),
        ({"target_probs": [*STAR_PROBS[:3], [math.inf, 1, 0, 0]]}, ValueError, "sum inf"),
        ({"target_probs": [[0.5, 0.5]] * 4}, ValueError, "vocabulary of 2: node 2 has token 2"),
        ({"draft_probs": [[0.5, 0.5, 0, 0.5]] * 4}, ValueError, "draft_probs rows are distributions"),
        ({"draft_probs": [[0.5, 0.5]] * 4}, ValueError, r"target_probs' shape \(4, 4\), got \(4, 2\)"),
        ({"uniforms": [1.0]}, ValueError, "0 <= u < 1"),
        ({"uniforms": [-0.1]}, ValueError, "0 <= u < 1"),
        ({"uniforms": [math.nan]}, ValueError, "0 <= u < 1"),
        ({"uniforms": [0.5]}, ValueError, "expected at least 2, got 1"),
        ({"uniforms": []}, ValueError, "expected at least 1, got 0"),
        ({"uniforms": [0.5], "generator": np.random.default_rng(0)}, ValueError, "got both"),
        ({"generator": 7}, TypeError, "generator must be numpy's or torch's, got int"),
    ],
)
def test_bad_sampling_input_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        accept_sampled(STAR, **{"target_probs": STAR_PROBS, **arguments})


# ---- stops


@given(
    st.lists(st.integers(0, 9), max_size=12),
    st.lists(st.integers(0, 9), max_size=3),
    st.none() | st.integers(0, 14),
)
def test_truncation_equals_emitting_one_by_one(token_ids, stop_ids, max_tokens):
    kept, reason = [], None
    if max_tokens == 0:
        reason = "length"
    for token in token_ids:
        if reason is None:
            kept.append(token)
            if token in stop_ids:
                reason = "stop"
            elif len(kept) == max_tokens:
                reason = "length"
    assert truncate_at_stop(token_ids, stop_ids, max_tokens) == (kept, reason)


def test_stop_ids_may_be_one_none_or_many():
    assert truncate_at_stop([1, 2, 3], 2, None) == ([1, 2], "stop")
    assert truncate_at_stop([1, 2, 3], None, None) == ([1, 2, 3], None)
    assert truncate_at_stop([1, 2, 3], {3, 9}, 3) == ([1, 2, 3], "stop")
    with pytest.raises(ValueError, match="max_tokens must be at least 0, got -1"):
        truncate_at_stop([1], None, -1)
