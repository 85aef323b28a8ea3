"""Inputs that broke other systems, the core's share; each test is named after its case."""

from __future__ import annotations

import functools
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treedecode.accept import Acceptance, accept_greedy, accept_sampled, truncate_at_stop, walk_batch
from treedecode.batch import check_trees, pad_trees
from treedecode.kv import commit_path
from treedecode.mask import additive, batch_step_mask, check_mask
from treedecode.testing import oracle, strategies
from treedecode.testing.toy import StepHooks, ToyModel, decode
from treedecode.tree import DraftTree, TreeShape, depth_room

SEEDS = (0, 2, 3)  # toy models whose greedy output does not fall into a loop
PROMPT = [1, 2, 3, 1, 2]


@functools.cache
def plain_output(seed=0, max_len=60, window=None):
    return decode(ToyModel(seed=seed), PROMPT, max_len, window=window)


def guessing_drafter(continuation, rng, num_nodes=12, vocab_size=12):
    """Draft trees that hold a part of the true ``continuation`` of PROMPT, among wrong siblings."""

    def draft(tokens):
        parents, ids = [-1], [tokens[-1]]
        truth = (PROMPT + continuation)[len(tokens) :]
        spine = 0
        for token in truth[: rng.randrange(5)]:
            wrong = rng.sample([other for other in range(vocab_size) if other != token], rng.randrange(3))
            siblings = [*wrong, token]
            rng.shuffle(siblings)
            above, spine = spine, len(ids) + siblings.index(token)
            parents += [above] * len(siblings)
            ids += siblings
        while len(ids) < num_nodes:
            parents.append(rng.randrange(len(ids)))
            ids.append(rng.randrange(vocab_size))
        return DraftTree.build(parents, ids)[0]

    return draft


# ---- building trees


@pytest.mark.parametrize(
    ("bad_parents", "bad_scores", "message"),
    [
        ([-1, 0, 7], [0, -1, -2], "row 3: .*node 2 has parent 7"),
        ([-1, 2, 1], [0, -1, -2], "row 3: .*node 1 has parent 2"),
        ([-1, 0, 1], [0, -1, math.nan], "row 3: .*node 2 has score nan"),
    ],
)
def test_case_01_a_malformed_last_row_is_named(bad_parents, bad_scores, message):
    parents = [[-1, 0, 0]] * 3 + [bad_parents]
    scores = [[0, -1, -2]] * 3 + [bad_scores]
    for rows in (parents, np.array(parents)):
        with pytest.raises(ValueError, match=message):
            check_trees(rows, [[1, 2, 3]] * 4, scores=scores)


def test_case_01_a_malformed_row_never_hangs_the_batched_walk():
    parents = torch.tensor([[-1, 0, 0], [-1, 2, 1], [-1, 0, 7]])
    tokens = torch.tensor([[1, 2, 3]] * 3)
    result = walk_batch(parents, tokens, torch.tensor([[2, 9, 9]] * 3))
    assert result.path.tolist() == [[0, 1, -1], [0, -1, -1], [0, 1, -1]]


@pytest.mark.parametrize("shape", [TreeShape.star(4), TreeShape.chain(1), TreeShape.chain(0)])
def test_case_02_smallest_trees(shape):
    tree = DraftTree(shape, range(10, 10 + shape.num_nodes))
    assert accept_greedy(tree, [99] * shape.num_nodes).token_ids == [99]
    if shape.num_drafted:
        last = shape.num_drafted
        target_ids = [10 + last] + [99] * last
        assert accept_greedy(tree, target_ids) == Acceptance([0, last], [10 + last, 99], 1)
    else:
        assert shape.mask().tolist() == [[True]] and shape.retrieve_indices().tolist() == [[0]]
    expected = plain_output()

    def draft(tokens):
        return DraftTree(shape, [tokens[-1], *range(shape.num_drafted)])

    output = decode(ToyModel(), PROMPT, 60, draft)
    assert output.token_ids == expected.token_ids
    assert set(output.emitted_per_step) <= {1, 2}


@given(strategies.draft_trees(), st.integers(0, 23), st.integers(0, 1000))
def test_case_03_more_nodes_never_accept_less(tree, num_drafted, seed):
    def target_of(cut):
        """A target that depends on the tokens of a node's path, as a model's does."""
        paths = [oracle.path_of(cut.shape.parent_tuple, node) for node in range(cut.num_nodes)]
        return [hash((seed, *(cut.token_tuple[n] for n in path))) % 3 + tree.token_tuple[0] for path in paths]

    small, large = accept_greedy(tree.prefix(num_drafted), target_of(tree.prefix(num_drafted))), None
    large = accept_greedy(tree, target_of(tree))
    assert large.num_accepted >= small.num_accepted
    assert large.token_ids[: len(small.token_ids)] == small.token_ids


def test_case_03_two_trees_of_the_same_drafts():
    outputs = []
    for paths in ([(0,), (0, 0)], [(0,), (1,), (0, 0)]):
        shape = TreeShape.from_paths(paths)

        def draft(tokens, shape=shape):
            guess = {(): tokens[-1], (0,): 2, (1,): 9, (0, 0): 2}
            return DraftTree(shape, [guess[path] for path in shape.paths])

        outputs.append(decode(ToyModel(), PROMPT, 60, draft))
    assert outputs[0].token_ids == outputs[1].token_ids == plain_output().token_ids
    assert len(outputs[1].emitted_per_step) < len(outputs[0].emitted_per_step)


def test_case_04_rank_paths():
    assert TreeShape.from_paths([(0,), (0,)]) == TreeShape.chain(1)
    with pytest.raises(ValueError, match=r"rank path \(0, 0\) needs its parent \(0,\)"):
        TreeShape.from_paths([(0, 0)])
    with pytest.raises(ValueError, match=r"rank path \(0, 0, 0\) needs its parent \(0, 0\)"):
        TreeShape.from_paths([(0,), (0, 0, 0)])
    with pytest.raises(ValueError, match=r"ranks must be at least 0, got rank path \(0, -1\)"):
        TreeShape.from_paths([(0,), (0, -1)])
    for rank in (0.0, True, "0", None, np.True_, np.float64(1)):
        with pytest.raises(TypeError, match="must be an integer"):
            TreeShape.from_paths([(rank,)])
    for path in (0, "0", None):
        with pytest.raises(TypeError, match="a rank path must be a tuple of ranks"):
            TreeShape.from_paths([path])


def test_case_05_repeated_siblings_merge_with_both_subtrees():
    tree, old_to_new = DraftTree.build([-1, 0, 0, 1, 2, 2], [1, 5, 5, 6, 7, 6])
    assert tree.parents.tolist() == [-1, 0, 1, 1] and tree.token_ids.tolist() == [1, 5, 6, 7]
    assert old_to_new.tolist() == [0, 1, 1, 2, 3, 2]


# ---- masks and positions


def test_case_06_positions_go_by_depth():
    shape = TreeShape.from_parents([-1, 0, 0, 1])
    assert shape.position_ids(5).tolist() == [5, 6, 6, 7]
    crossed = TreeShape.from_parents([-1, 0, 0, 1, 1, 2])  # parents at depth 2 are [1, 1, 2]
    assert crossed.position_ids(0).tolist() == [0, 1, 1, 2, 2, 2]
    assert np.flatnonzero(crossed.mask()[5]).tolist() == [0, 2, 5]


@pytest.mark.parametrize("shape", [(10, 15), (20, 10), (9, 20), (2, 1, 10, 15), (20,)])
def test_case_07_wrong_mask_shapes(shape):
    for mask in (np.ones(shape, bool), torch.ones(shape, dtype=torch.bool)):
        with pytest.raises(ValueError, match="10, 20") as caught:
            check_mask(mask, 10, 20)
        assert str(list(shape)) in str(caught.value)
        assert ("transposed" in str(caught.value)) == (shape == (20, 10))


def test_case_08_prefix_of_100_and_7_nodes():
    parents = [-1, 0, 0, 1, 1, 2, 5]
    assert TreeShape.from_parents(parents).step_mask(100).tolist() == oracle.step_mask(parents, 100, None)
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 107, 8, generator=generator, dtype=torch.float64)
    bias = additive(TreeShape.from_parents(parents).step_mask(100), torch.float64)
    output = (query[100:] @ key.T + bias).softmax(-1) @ value
    for node in range(7):
        seen = [*range(100), *(100 + j for j in oracle.path_of(parents, node))]
        alone = (query[100 + node] @ key[seen].T).softmax(-1) @ value[seen]
        torch.testing.assert_close(output[node], alone, atol=1e-12, rtol=0)


def test_case_09_the_tree_is_cut_at_the_length_limit():
    assert depth_room(62, 64) == 0 and depth_room(61, 64) == 1 and depth_room(64, 64) == 0
    tree = DraftTree(TreeShape.chain(4), [1, 2, 3, 4, 5]).within_depth(depth_room(62, 64))
    assert tree.num_drafted == 0 and tree.shape.position_ids(62).tolist() == [62]
    for max_len in (6, 7, 8, 20, 64):
        truth = plain_output(max_len=max_len)
        output = decode(ToyModel(), PROMPT, max_len, guessing_drafter(truth.token_ids, random.Random(0)))
        assert output.token_ids == truth.token_ids and len(PROMPT) + len(output.token_ids) == max_len
        assert output.largest_position < max_len and output.finish_reason == "length"


def test_case_10_window_by_depth():
    shape = TreeShape.from_parents([-1, 0, 0, 1, 2])
    expected = [
        [3, 4, 5, 6],
        [4, 5, 6, 7],
        [4, 5, 6, 8],
        [5, 6, 7, 9],
        [5, 6, 8, 10],
    ]
    assert [np.flatnonzero(row).tolist() for row in shape.step_mask(6, window=4)] == expected


@pytest.mark.parametrize("order", [[2, 9], [9, 2]])
def test_case_10_batch_of_one_short_and_one_long_prefix(order):
    parents = [-1, 0, 0, 1, 2]
    batch = batch_step_mask([TreeShape.from_parents(parents)] * 2, order, window=4)
    for mask, prefix_len in zip(batch, order, strict=True):
        assert mask[:, : prefix_len + 5].tolist() == oracle.step_mask(parents, prefix_len, 4)
        assert not mask[:, prefix_len + 5 :].any()


# ---- greedy walk


def test_case_13_ties_go_to_the_lowest_id_for_one_row_and_many():
    logits = torch.zeros(16, 50_000)
    logits[:, [40_001, 123, 9_999]] = 7.5
    assert logits.argmax(-1).tolist() == [123] * 16 == [row.argmax(-1).item() for row in logits]
    tree = DraftTree(TreeShape.star(15), [0, 40_001, 9_999, *range(110, 123)])
    assert accept_greedy(tree, logits.argmax(-1)).num_accepted == 0
    model = ToyModel()
    model.unembedding[:, 7] = model.unembedding[:, 2]  # tokens 2 and 7 now tie on every row
    truth = decode(model, PROMPT, 60)
    assert 2 in truth.token_ids and 7 not in truth.token_ids
    for seed in range(4):
        drafter = guessing_drafter(truth.token_ids, random.Random(seed))
        assert decode(model, PROMPT, 60, drafter).token_ids == truth.token_ids


CASE_14 = DraftTree(
    TreeShape.from_paths(
        [(0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (0, 0, 0), (0, 1, 1), (1, 0, 0)]
    ),
    [10, *range(11, 23)],
)


@pytest.mark.parametrize(
    ("changes", "num_accepted", "emitted"),
    [
        (dict(enumerate(range(31, 44))), 0, [31]),
        ({0: 11, 1: 15, 2: 102, 3: 103, 4: 104, 5: 105}, 2, [11, 15, 105]),
        ({0: 11, 1: 14, 2: 102, 3: 103, 4: 20, 5: 105, 10: 110}, 3, [11, 14, 20, 110]),
    ],
)
def test_case_14_walks(changes, num_accepted, emitted):
    target_ids = [changes.get(node, 100 + node) for node in range(13)]
    accepted = accept_greedy(CASE_14, target_ids)
    assert (accepted.num_accepted, accepted.token_ids) == (num_accepted, emitted)
    batch = walk_batch(
        torch.tensor([CASE_14.shape.parent_tuple]),
        torch.tensor([CASE_14.token_tuple]),
        torch.tensor([target_ids]),
    )
    assert batch.num_accepted.tolist() == [num_accepted]
    assert batch.token_ids[0, : num_accepted + 1].tolist() == emitted


def test_case_15_chains():
    chain = DraftTree(TreeShape.chain(4), [0, 1, 2, 3, 4])
    assert accept_greedy(chain, [1, 9, 3, 4, 5]).num_accepted == 1  # matches [T, F, T, T]
    assert accept_greedy(DraftTree(TreeShape.chain(1), [0, 1]), [7, 8]) == Acceptance([0], [7], 0)
    assert accept_greedy(chain, [1, 2, 3, 4, 5]) == Acceptance([0, 1, 2, 3, 4], [1, 2, 3, 4, 5], 4)


@given(strategies.walk_cases(), st.integers(1, 64))
def test_case_16_repeated_calls_equal_a_fresh_object(case, window):
    def everything(tree):
        shape = tree.shape
        results = [shape.mask(), shape.step_mask(3, window), shape.position_ids(3), shape.packed_mask(32)]
        results += [*shape.linked(), shape.retrieve_indices(), tree.token_ids, tree.parents]
        return [result.tolist() for result in results], accept_greedy(tree, case.target_ids)

    first = everything(case.tree)
    case.tree.shape.mask()[:] = False  # what is handed out is the caller's own
    fresh = DraftTree(TreeShape.from_parents(case.tree.shape.parent_tuple), case.tree.token_tuple)
    assert first == everything(case.tree) == everything(case.tree) == everything(fresh)


# ---- sampled walk


def test_case_17_zero_probability_is_never_accepted():
    tree = DraftTree(TreeShape.chain(1), [0, 2])
    accepted = accept_sampled(tree, [[0, 1, 0], [0, 1, 0]], uniforms=[0.0])
    assert (accepted.token_ids, accepted.num_accepted) == ([1], 0)
    star = DraftTree(TreeShape.star(3), [0, 1, 2, 3])
    accepted = accept_sampled(star, [[0, 0.25, 0, 0.75]] * 4, uniforms=[0.25, 0.0])
    assert accepted.path == [0, 3] and accepted.token_ids[0] == 3


def test_case_18_a_deterministic_draft_is_not_a_sampled_one():
    tree = DraftTree(TreeShape.chain(1), [0, 0])  # the drafter's argmax; its softmax [.8, .2] is of no matter
    target_probs = [[0.6, 0.4]] * 2
    for draft_probs in (None, [[0.8, 0.2]] * 2):
        first = [0.0, 0.0]
        for uniforms, volume in oracle.uniform_cells(target_probs, 2):
            first[accept_sampled(tree, target_probs, draft_probs, uniforms=uniforms).token_ids[0]] += volume
        assert first == pytest.approx([0.6, 0.4], abs=1e-12)


def test_case_21_one_draw_per_node_not_per_path():
    a, b, c, d, e, f = range(6)
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 1, 1, 1, 2]), [0, a, e, b, c, d, f])
    row = [0.5, 0, 0, 0, 0.5, 0]
    uniform_row = [1 / 8] * 4 + [1 / 4] * 2
    target_probs = [row, *[uniform_row] * 6]

    def probability_of_a(accept):
        cells = oracle.uniform_cells(target_probs, 3)
        return sum(volume for uniforms, volume in cells if accept(uniforms) == a)

    def one_per_path(uniforms):
        """The fault: a draw for each of the paths ab, ac, ad until one of them starts right."""
        draws = [accept_sampled(tree, target_probs, uniforms=[u] * 3).token_ids[0] for u in uniforms]
        return a if a in draws else draws[-1]

    assert probability_of_a(
        lambda uniforms: accept_sampled(tree, target_probs, uniforms=uniforms).token_ids[0]
    ) == pytest.approx(0.5, abs=1e-12)
    assert probability_of_a(one_per_path) == pytest.approx(0.875, abs=1e-12)


# ---- cache


def test_case_23_committed_rows_equal_a_plain_forward():
    model = ToyModel()
    shape = TreeShape.from_parents([-1, 0, 0, 1, 3, 4])
    tokens = [3, 5, 6, 7, 8, 9]
    path = [0, 1, 3, 4]
    cache, prompt = model.new_cache(16), [1, 2, 4]
    causal = TreeShape.chain(2)
    model.forward(prompt, causal.position_ids(0), causal.mask(), cache, 0)
    model.forward(tokens, shape.position_ids(3), shape.step_mask(3), cache, 3)
    for key, value in cache:
        commit_path(key, value, 3, path)

    plain, chain = model.new_cache(16), TreeShape.chain(6)
    model.forward(prompt + [tokens[n] for n in path], chain.position_ids(0), chain.mask(), plain, 0)
    for layer, expected in zip(cache, plain, strict=True):
        for rows, expected_rows in zip(layer, expected, strict=True):
            torch.testing.assert_close(rows[:, :7], expected_rows[:, :7], atol=1e-12, rtol=0)


def test_case_23_accepting_nodes_0_3_4_5_moves_them_to_the_front():
    cache = torch.arange(20.0).reshape(1, 10, 2)
    expected = cache[:, [0, 1, 2, 3, 6, 7, 8]].clone()
    commit_path(cache, cache.clone(), 3, [0, 3, 4, 5])
    assert torch.equal(cache[:, :7], expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [None, 3])
def test_case_23_decoding_with_trees_equals_plain_decoding(seed, window):
    truth = plain_output(seed, 120, window=window)
    drafter = guessing_drafter(truth.token_ids, random.Random(seed))
    output = decode(ToyModel(seed=seed), PROMPT, 120, drafter, window=window)
    assert output.token_ids == truth.token_ids
    assert max(output.emitted_per_step) >= 4 and output.prefix_len == truth.prefix_len == 119
    for layer, expected in zip(output.cache, truth.cache, strict=True):
        for rows, expected_rows in zip(layer, expected, strict=True):
            torch.testing.assert_close(rows[:, :119], expected_rows[:, :119], atol=1e-9, rtol=0)


def window_by_slot(shape, prefix_len, window):
    query, key = np.arange(shape.num_nodes)[:, None] + prefix_len, np.arange(shape.num_nodes + prefix_len)
    return shape.step_mask(prefix_len) & (query - window < key)


FAULTS = {
    "flat position ids": StepHooks(position_ids=lambda shape, prefix_len: prefix_len + np.arange(len(shape))),
    "positions one off": StepHooks(position_ids=lambda shape, prefix_len: shape.depths + prefix_len + 1),
    "causal among nodes": StepHooks(
        mask=lambda shape, prefix_len, window: TreeShape.chain(len(shape) - 1).step_mask(prefix_len, window)
    ),
    "prefix not visible": StepHooks(
        mask=lambda shape, prefix_len, window: np.pad(shape.mask(), ((0, 0), (prefix_len, 0)))
    ),
    "window by slot": StepHooks(mask=window_by_slot),
    "no window": StepHooks(mask=lambda shape, prefix_len, window: shape.step_mask(prefix_len)),
    "no compaction": StepHooks(commit=lambda cache, prefix_len, path: None),
    "path of another node": StepHooks(
        commit=lambda cache, prefix_len, path: [
            commit_path(*layer, prefix_len, [0, *(node - 1 or 1 for node in path[1:2])]) for layer in cache
        ]
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_case_23_planted_faults_change_the_output(fault):
    window = 3 if "window" in fault else None

    def differs(seed):
        truth = plain_output(seed, 120, window).token_ids
        drafter = guessing_drafter(truth, random.Random(seed))
        return decode(ToyModel(seed=seed), PROMPT, 120, drafter, (), window, FAULTS[fault]).token_ids != truth

    assert any(map(differs, SEEDS))


@pytest.mark.parametrize(
    "path", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 2, 3, 4], [0, 2, 4, 5], [5, 4, 3], [4], [0], []]
)
def test_case_24_moves_equal_an_out_of_place_gather(path):
    key, value = torch.randn(2, 3, 12, 4), torch.randn(2, 3, 12, 4)
    rows = torch.tensor(oracle.committed_rows(12, 4, path))
    expected = key.index_select(2, rows), value.index_select(2, rows)
    commit_path(key, value, 4, path)
    assert torch.equal(key, expected[0]) and torch.equal(value, expected[1])


# ---- stops


def test_case_26_eos_inside_an_accepted_run():
    eos = 2
    tree = DraftTree(TreeShape.chain(3), [10, 11, eos, 13])
    accepted = accept_greedy(tree, [11, eos, 13, 14])
    kept, reason = truncate_at_stop(accepted.token_ids, eos, 100)
    assert (kept, reason) == ([11, eos], "stop")
    assert accepted.cut(len(kept)) == Acceptance([0, 1, 2], [11, eos], 2)


def test_case_27_stop_and_cap():
    tokens = [10, 11, 2, 20, 21, 22]
    assert truncate_at_stop(tokens, [2], 5) == ([10, 11, 2], "stop")
    assert truncate_at_stop(tokens, [21], 4) == ([10, 11, 2, 20], "length")
    assert truncate_at_stop(tokens, [21], 5) == ([10, 11, 2, 20, 21], "stop")
    assert truncate_at_stop(tokens, [], 7) == (tokens, None)
    assert truncate_at_stop(tokens, [2], 0) == ([], "length")


def test_case_28_eos_drafted_and_rejected():
    eos = 2
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 2]), [10, eos, 11, eos])
    accepted = accept_greedy(tree, [11, 50, 12, 50])
    assert truncate_at_stop(accepted.token_ids, [eos], None) == ([11, 12], None)


@pytest.mark.parametrize("seed", SEEDS)
def test_cases_26_27_28_36_every_stop_token_with_trees_equals_plain(seed):
    for eos in range(12):
        truth = plain_output(seed).token_ids
        drafter = guessing_drafter(truth, random.Random(eos))
        output = decode(ToyModel(seed=seed), PROMPT, 60, drafter, stop_ids=[eos])
        if eos in truth:
            truth = truth[: truth.index(eos) + 1]
        assert output.token_ids == truth
        assert output.finish_reason == ("stop" if truth[-1] == eos else "length")
        assert sum(output.emitted_per_step) == len(output.token_ids)
        assert eos not in output.token_ids[:-1]


# ---- batches


def test_cases_29_30_a_mixed_batch_equals_every_row_alone():
    shapes = [TreeShape.chain(0), TreeShape.star(3), TreeShape.chain(0), TreeShape.from_widths([1, 2, 2])]
    shapes.append(TreeShape.chain(1))
    trees = [DraftTree(shape, range(shape.num_nodes)) for shape in shapes]
    assert [tree.num_drafted for tree in trees] == [0, 3, 0, 7, 1]
    batch = pad_trees(trees)
    assert batch.token_ids.min() >= 0
    parents, token_ids, num_nodes = map(torch.from_numpy, (batch.parents, batch.token_ids, batch.num_nodes))
    for seed in range(20):
        target_ids = torch.randint(0, 8, parents.shape, generator=torch.Generator().manual_seed(seed))
        for padding_parent in (-1, 0, 1, 100):  # whatever stands in the padding
            padded = torch.where(torch.arange(8) < num_nodes[:, None], parents, padding_parent)
            result = walk_batch(padded, token_ids, target_ids, num_nodes)
            for row, tree in enumerate(trees):
                solo = accept_greedy(tree, target_ids[row, : tree.num_nodes])
                assert [node for node in result.path[row].tolist() if node >= 0] == solo.path
                assert [token for token in result.token_ids[row].tolist() if token >= 0] == solo.token_ids


def test_case_36_emitted_is_what_is_kept():
    accepted = accept_greedy(DraftTree(TreeShape.chain(5), [0, 1, 2, 3, 4, 5]), [1, 2, 3, 4, 5, 6])
    kept, _ = truncate_at_stop(accepted.token_ids, [3], None)
    cut = accepted.cut(len(kept))
    assert (len(accepted.token_ids), len(cut.token_ids), cut.num_accepted) == (6, 3, 3)
