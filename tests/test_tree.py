"""Shapes, draft trees, batches and interchange layouts."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treedecode.batch import check_trees, from_retrieve, pad_trees, to_retrieve
from treedecode.testing import oracle, strategies
from treedecode.tree import DraftTree, TreeShape

REFERENCE = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0)]


def test_reference_tree():
    shape = TreeShape.from_paths(REFERENCE)
    assert shape.paths == ((), *REFERENCE)
    assert shape.parents.tolist() == [-1, 0, 0, 1, 1, 2, 3, 3, 4, 6]
    assert shape.depths.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert (shape.num_nodes, shape.num_drafted, shape.max_depth, len(shape)) == (10, 9, 4, 10)
    assert shape.children(1) == (3, 4)
    assert TreeShape.from_paths(reversed(REFERENCE)) == shape == TreeShape.from_paths(shape.paths)


def test_named_shapes():
    assert TreeShape.chain(3).parents.tolist() == [-1, 0, 1, 2]
    assert TreeShape.star(3).parents.tolist() == [-1, 0, 0, 0]
    assert TreeShape.chain(0) == TreeShape.star(0) == TreeShape.from_widths([]) == TreeShape.from_paths([])
    widths = TreeShape.from_widths([2, 2, 1])
    assert (widths.num_drafted, widths.max_depth) == (10, 3)
    assert widths.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6]
    spine = TreeShape.leaf_siblings(depth=4, width=3)
    assert (spine.num_drafted, spine.max_depth) == (12, 4)
    assert spine.paths[1:4] == ((0,), (1,), (2,)) and spine.paths[4:7] == ((0, 0), (0, 1), (0, 2))


def test_parents_keep_the_callers_order_and_any_integer_type():
    parents = [-1, 0, 1, 0, 3, 1]
    for given_type in (list, tuple, np.array, lambda p: np.array(p, np.int16), torch.tensor):
        shape = TreeShape.from_parents(given_type(parents))
        assert shape.parent_tuple == tuple(parents)
        assert shape.paths == ((), (0,), (0, 0), (1,), (1, 0), (0, 1))
    assert TreeShape.from_parents([-1, np.int64(0)]) == TreeShape.chain(1)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: TreeShape.from_parents([]), ValueError, "at least its root"),
        (lambda: TreeShape.from_parents([0, 0]), ValueError, "node 0 is the root: expected parent -1, got 0"),
        (lambda: TreeShape.from_parents([-1, -1]), ValueError, "only node 0 is the root: node 1"),
        (lambda: TreeShape.from_parents([-1, 0, -2]), ValueError, "node 2 has parent -2"),
        (
            lambda: TreeShape.from_parents([-1, 0, 0, 5, 3, 0]),
            ValueError,
            "precede children: node 3 has parent 5",
        ),
        (lambda: TreeShape.from_parents([-1, 1]), ValueError, "precede children: node 1 has parent 1"),
        (
            lambda: TreeShape.from_parents([-1, 0.0]),
            TypeError,
            "parent of node 1 must be an integer, got 0.0",
        ),
        (lambda: TreeShape.from_parents([-1, False]), TypeError, "got False"),
        (lambda: TreeShape.from_parents([-1, None]), TypeError, "got None"),
        (lambda: TreeShape.from_parents(np.array([-1.0, 0.0])), TypeError, "dtype float64"),
        (lambda: TreeShape.from_parents(np.array([True])), TypeError, "dtype bool"),
        (lambda: TreeShape.from_parents(np.zeros((2, 2), int)), ValueError, r"shape \(2, 2\)"),
        (lambda: TreeShape([-1, 0, 0], [0, 1, 1]), ValueError, "node 2 repeats rank 1"),
        (lambda: TreeShape([-1, 0, 0], [0, 1, -1]), ValueError, "node 2 has rank -1"),
        (lambda: TreeShape([-1, 0, 0], [0, 1]), ValueError, "3 nodes, got 2 ranks"),
        (lambda: TreeShape.chain(-1), ValueError, "depth must be at least 0, got -1"),
        (lambda: TreeShape.star(1.5), TypeError, "width must be an integer"),
        (lambda: TreeShape.from_widths([2, 0]), ValueError, "width of depth 1 must be at least 1"),
        (lambda: TreeShape.leaf_siblings(2, 0), ValueError, "width must be at least 1"),
        (lambda: TreeShape.chain(2).children(3), ValueError, "nodes are 0 to 2, got 3"),
        (lambda: TreeShape.chain(2).children(-1), ValueError, "node must be at least 0, got -1"),
        (lambda: TreeShape.chain(2).children(True), TypeError, "node must be an integer, got True"),
        (lambda: TreeShape.chain(2).prefix(-1), ValueError, "num_drafted must be at least 0"),
        (lambda: TreeShape.chain(2).position_ids(-1), ValueError, "prefix_len must be at least 0"),
        (lambda: TreeShape.chain(2).position_ids(2**63), ValueError, "prefix_len must be below 2\\*\\*63"),
        (lambda: TreeShape.chain(2).position_ids(2**31), ValueError, "prefix_len must be at most 2147483647"),
        (
            lambda: DraftTree(TreeShape.chain(1), [1, 2**70]),
            ValueError,
            "token id of node 1 must be below 2\\*\\*63",
        ),
        (
            lambda: DraftTree(TreeShape.chain(0), np.array([2**63], np.uint64)),
            ValueError,
            "token id of node 0 must be below 2\\*\\*63",
        ),
        (
            lambda: DraftTree(TreeShape.chain(1), [1, 2], torch.zeros(2, requires_grad=True)),
            TypeError,
            "scores must be numbers.*requires grad",
        ),
        (lambda: DraftTree([-1, 0], [1, 2]), TypeError, "shape must be a TreeShape, got list"),
        (lambda: DraftTree(TreeShape.chain(1), [1]), ValueError, "2 nodes, got 1 token ids"),
        (lambda: DraftTree(TreeShape.chain(1), [1, -2]), ValueError, "node 1 has token -2"),
        (lambda: DraftTree(TreeShape.chain(1), [1, 2.0]), TypeError, "token id of node 1"),
        (lambda: DraftTree(TreeShape.chain(1), [1, 2], [0.0]), ValueError, r"shape \[2\], got shape \[1\]"),
        (lambda: DraftTree(TreeShape.chain(1), [1, 2], [0, math.nan]), ValueError, "node 1 has score nan"),
        (lambda: DraftTree(TreeShape.chain(1), [1, 2], [0, math.inf]), ValueError, "node 1 has score inf"),
        (lambda: DraftTree(TreeShape.chain(1), [1, 2], ["a", "b"]), TypeError, "scores must be numbers"),
        (lambda: DraftTree(TreeShape.chain(1), [1, 2], None, ["root"]), ValueError, "2 nodes, got"),
        (
            lambda: DraftTree(TreeShape.star(2), [1, 5, 5]),
            ValueError,
            "nodes 1 and 2 are both token 5 under node 0",
        ),
    ],
)
def test_bad_input_is_refused_by_name(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_frozen():
    tree = DraftTree(TreeShape.chain(2), [1, 2, 3], [0.0, -1.0, -2.0])
    for array in (tree.parents, tree.depths, tree.token_ids, tree.scores):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    with pytest.raises(FrozenInstanceError):
        tree.shape = TreeShape.chain(1)
    with pytest.raises(FrozenInstanceError):
        del tree.shape.parent_tuple
    assert (tree.parents.dtype, tree.depths.dtype) == (np.int32, np.int32)
    assert (tree.token_ids.dtype, tree.scores.dtype) == (np.int64, np.float64)


def test_inputs_are_copied():
    parents, tokens = [-1, 0, 1], np.array([1, 2, 3])
    tree = DraftTree(TreeShape.from_parents(parents), tokens)
    parents[1], tokens[1] = 5, 9
    assert tree.parents.tolist() == [-1, 0, 1] and tree.token_ids.tolist() == [1, 2, 3]


@given(strategies.draft_trees())
def test_equality_hash_and_copies(tree):
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert other == tree and hash(other) == hash(tree) and other.shape == tree.shape
    assert tree != tree.shape and tree.shape != tree.shape.parent_tuple
    assert eval(repr(tree.shape), {"TreeShape": TreeShape}) == TreeShape.from_paths(tree.shape.paths)


@given(strategies.parents())
def test_topology_equals_the_oracle(parents):
    shape = TreeShape.from_parents(parents)
    assert shape.depths.tolist() == oracle.position_ids(parents, 0)
    assert shape.max_depth == max(oracle.position_ids(parents, 0))
    assert list(shape.paths) == [oracle.rank_path(parents, node) for node in range(len(parents))]
    assert [list(shape.children(n)) for n in range(len(parents))] == [
        oracle.children(parents, n) for n in range(len(parents))
    ]


@given(strategies.rank_paths())
def test_rank_paths_are_kept_in_canonical_order(paths):
    shape = TreeShape.from_paths(paths)
    assert list(shape.paths[1:]) == sorted(paths, key=lambda path: (len(path), path))
    assert TreeShape.from_paths(shape.choices()) == shape


@given(strategies.draft_trees(), st.integers(0, 30))
def test_prefix_is_the_first_nodes(tree, num_drafted):
    cut = tree.prefix(num_drafted)
    size = min(num_drafted + 1, tree.num_nodes)
    assert cut.parents.tolist() == tree.parents[:size].tolist()
    assert cut.token_ids.tolist() == tree.token_ids[:size].tolist()
    assert cut.shape == tree.shape.prefix(num_drafted) and cut.shape.paths == tree.shape.paths[:size]
    if tree.scores is not None:
        assert cut.scores.tolist() == tree.scores[:size].tolist()


@given(strategies.draft_trees(), st.integers(0, 6))
def test_within_depth_keeps_shallow_nodes(tree, max_depth):
    cut = tree.within_depth(max_depth)
    keep = [node for node in range(tree.num_nodes) if tree.depths[node] <= max_depth]
    assert cut.token_ids.tolist() == [tree.token_ids[node] for node in keep]
    assert cut.shape.paths == tuple(tree.shape.paths[node] for node in keep)
    DraftTree(TreeShape.from_parents(cut.parents), cut.token_ids)


# ---- building from drafts with repeated siblings


@given(strategies.draft_trees(vocab_size=60), st.data())
def test_build_merges_repeated_siblings_and_subtrees(tree, data):
    vocab = data.draw(st.integers(1, 4))
    tokens = [token % vocab for token in tree.token_tuple]
    scores = None if tree.scores is None else tree.scores.tolist()
    names = [f"source {node}" for node in range(tree.num_nodes)]
    merged, old_to_new = DraftTree.build(tree.parents, tokens, scores, names)

    def spelled(parents, ids):
        return [tuple(ids[n] for n in oracle.path_of(parents, node)) for node in range(len(parents))]

    before, after = (
        spelled(tree.shape.parent_tuple, tokens),
        spelled(merged.shape.parent_tuple, merged.token_tuple),
    )
    assert len(set(after)) == len(after) and set(after) == set(before)
    assert old_to_new.dtype == np.int32 and [after[new] for new in old_to_new] == before
    assert DraftTree(merged.shape, merged.token_ids, merged.scores) is not None
    for new in range(merged.num_nodes):
        members = [old for old in range(tree.num_nodes) if old_to_new[old] == new]
        source = int(merged.sources[new].split()[1])
        if scores is None:
            assert source == members[0]
        else:
            assert merged.scores[new] == max(scores[old] for old in members) == scores[source]
    if scores is None:
        firsts = [old_to_new.tolist().index(new) for new in range(merged.num_nodes)]
        assert firsts == sorted(firsts)
    else:
        assert merged.scores.tolist() == sorted(merged.scores, reverse=True)


def test_build_breaks_ties_by_score_then_depth_then_order():
    parents, tokens = [-1, 0, 1, 0, 0, 4], [0, 10, 11, 12, 13, 14]
    tree, old_to_new = DraftTree.build(parents, tokens, [0, -1, -1, -2, -1, -0.5])
    # node 5 has the best score but stands under node 4
    assert tree.token_ids.tolist() == [0, 10, 13, 14, 11, 12]
    assert old_to_new.tolist() == [0, 1, 4, 5, 2, 3]
    assert DraftTree.build(parents, tokens, [0, -1, -1, -2, -1, -0.5])[0] == tree


def test_build_refuses_what_the_class_refuses():
    with pytest.raises(ValueError, match="node 1 has parent 2"):
        DraftTree.build([-1, 2, 1], [1, 2, 3])
    with pytest.raises(ValueError, match="node 2 has score nan"):
        DraftTree.build([-1, 0, 1], [1, 2, 3], [0, 0, math.nan])
    with pytest.raises(ValueError, match="3 nodes, got 2 token ids"):
        DraftTree.build([-1, 0, 1], [1, 2])


def test_root_only_and_trusted():
    tree = DraftTree.root_only(7)
    assert tree.num_drafted == 0 and tree.token_ids.tolist() == [7] and tree.sources == ("root",)
    checked = DraftTree(TreeShape.from_parents([-1, 0, 0]), [1, 2, 3], [0, -1, -2], ["root", "a", "b"])
    assert DraftTree.trusted([-1, 0, 0], [1, 2, 3], [0.0, -1.0, -2.0], ["root", "a", "b"]) == checked


# ---- interchange


@given(strategies.parents())
def test_layouts_equal_the_oracle(parents):
    shape = TreeShape.from_parents(parents)
    assert [links.tolist() for links in shape.linked()] == list(oracle.linked(parents))
    assert shape.retrieve_indices().tolist() == oracle.leaf_paths(parents)
    assert shape.serving_parents().tolist() == [parent - 1 for parent in parents[1:]]
    assert [tuple(path) for path in shape.choices()] == [
        oracle.rank_path(parents, n) for n in range(1, len(parents))
    ]


@given(strategies.parents(), st.randoms(use_true_random=False))
def test_layouts_round_trip(parents, random):
    shape = TreeShape.from_parents(parents)
    assert TreeShape.from_linked(*shape.linked()) == shape
    leaves = shape.retrieve_indices().tolist()
    random.shuffle(leaves)
    assert TreeShape.from_retrieve_indices(leaves) == shape
    assert TreeShape.from_serving(shape.serving_parents()) == shape
    assert set(TreeShape.from_paths(shape.choices()).paths) == set(shape.paths)


def test_linked_siblings_in_any_order_keep_their_order_as_ranks():
    shape = TreeShape.from_linked([3, -1, -1, -1], [-1, -1, 1, 2])
    assert shape.children(0) == (3, 2, 1) and shape.paths == ((), (2,), (1,), (0,))
    assert [links.tolist() for links in shape.linked()] == [[3, -1, -1, -1], [-1, -1, 1, 2]]


@given(st.lists(strategies.shapes(12), max_size=5), st.integers(0, 3))
def test_retrieve_layout_round_trips(shapes, extra):
    width = max((shape.num_nodes for shape in shapes), default=1) + extra
    layout = to_retrieve(shapes, width)
    for row, shape in enumerate(shapes):
        expected = [row * width + node for node in range(shape.num_nodes)]
        assert layout.retrieve_index[row].tolist() == expected + [-1] * (width - shape.num_nodes)
        first_child, next_sibling = oracle.linked(shape.parent_tuple)
        assert layout.retrieve_next_token[row, : shape.num_nodes].tolist() == first_child
        assert layout.retrieve_next_sibling[row, : shape.num_nodes].tolist() == next_sibling
    assert from_retrieve(layout) == shapes


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: TreeShape.from_linked([1, -1], [-1]), ValueError, "two links per node"),
        (lambda: TreeShape.from_linked([], []), ValueError, "at least the root"),
        (lambda: TreeShape.from_linked([1, -1], [1, -1]), ValueError, "the root has no sibling"),
        (lambda: TreeShape.from_linked([1, 1], [-1, -1]), ValueError, "node 1 is reached twice"),
        (lambda: TreeShape.from_linked([1, -1, -1], [-1, 1, -1]), ValueError, "node 1 is reached twice"),
        (lambda: TreeShape.from_linked([1, -1, -1], [-1, -1, -1]), ValueError, "node 2 is not"),
        (lambda: TreeShape.from_linked([5, -1], [-1, -1]), ValueError, "under node 0 got 5"),
        (lambda: TreeShape.from_linked([2, -1, 1], [-1, -1, -1]), ValueError, "node 1 has parent 2"),
        (lambda: TreeShape.from_retrieve_indices([0, 1]), ValueError, r"got \(2,\)"),
        (lambda: TreeShape.from_retrieve_indices([[0.0]]), TypeError, "float64"),
        (lambda: TreeShape.from_retrieve_indices([[1, 0]]), ValueError, "row 0 is"),
        (lambda: TreeShape.from_retrieve_indices([[0, -1, 1]]), ValueError, "-1 only pads its end"),
        (
            lambda: TreeShape.from_retrieve_indices([[0, 1, 3], [0, 2, 3]]),
            ValueError,
            "node 3 has two parents",
        ),
        (lambda: TreeShape.from_retrieve_indices([[0, 2]]), ValueError, "node 1 is on none"),
        (lambda: TreeShape.from_retrieve_indices([[0, 2, 1]]), ValueError, "node 1 has parent 2"),
        (lambda: TreeShape.from_serving([-1, 1]), ValueError, "serving node 1 has parent 1"),
        (lambda: TreeShape.from_serving([-2]), ValueError, "serving node 0 has parent -2"),
        (
            lambda: to_retrieve([TreeShape.chain(0), TreeShape.chain(4)], 3),
            ValueError,
            "row 1: expected at most 3",
        ),
        (lambda: pad_trees([DraftTree.root_only(1)] * 2, 0), ValueError, "width must be at least 1"),
    ],
)
def test_malformed_layouts_are_refused_by_name(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_malformed_retrieve_rows_are_named():
    layout = to_retrieve([TreeShape.star(2), TreeShape.chain(2)])
    layout.retrieve_next_token[1, 1] = 1
    with pytest.raises(ValueError, match=r"row 1: .*node 1 is reached twice"):
        from_retrieve(layout)
    layout.retrieve_index[0, 1] = 9
    with pytest.raises(ValueError, match="row 0: retrieve_index counts up"):
        from_retrieve(layout)


# ---- batches


@given(st.lists(strategies.draft_trees(10), max_size=5), st.integers(0, 3))
def test_padded_batches_round_trip(trees, extra):
    batch = pad_trees(trees, max((tree.num_nodes for tree in trees), default=1) + extra)
    assert batch.token_ids.min(initial=0) >= 0
    plain = [DraftTree(tree.shape, tree.token_ids) for tree in trees]
    assert check_trees(batch.parents, batch.token_ids, batch.num_nodes) == plain
    assert check_trees([t.parents for t in trees], [t.token_ids for t in trees]) == plain


def test_batches_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one row of token_ids per tree: 2 trees, got 1 rows"):
        check_trees([[-1], [-1]], [[1]])
    with pytest.raises(ValueError, match="row 0: expected num_nodes of at most 1, got 2"):
        check_trees([[-1]], [[1]], [2])
    with pytest.raises(ValueError, match="row 1: num_nodes must be at least 1"):
        check_trees([[-1], [-1]], [[1], [1]], [1, 0])


# ---- drawn siblings


def test_sampled_siblings_keep_draw_order_and_duplicates():
    shape = TreeShape.from_parents([-1, 0, 0, 0, 2])
    tree = DraftTree.sampled(shape, [9, 5, 3, 5, 5])
    assert tree.token_tuple == (9, 5, 3, 5, 5) and tree.scores is None and tree.drawn
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert other == tree and other.token_tuple == tree.token_tuple and other.drawn
    with pytest.raises(ValueError, match="5 nodes, got 4 token ids"):
        DraftTree.sampled(shape, [9, 5, 3, 5])
    with pytest.raises(ValueError, match="node 1 has token -5"):
        DraftTree.sampled(shape, [9, -5, 3, 5, 5])
    with pytest.raises(TypeError, match="shape must be a TreeShape, got list"):
        DraftTree.sampled([-1, 0], [9, 5])


def test_trees_of_lists_are_not_drawn_and_neither_are_their_parts():
    tree, _ = DraftTree.build([-1, 0, 0, 1], [9, 5, 3, 1], [0.0, -1.0, -0.5, -2.0])
    listed = DraftTree(TreeShape.star(1), [9, 5])
    parts = (tree, tree.prefix(1), tree.within_depth(1), pickle.loads(pickle.dumps(tree)), listed)
    assert not any(part.drawn for part in parts)
    same = DraftTree(tree.shape, tree.token_ids, tree.scores)
    assert same == tree  # how a tree was made is no part of what it is
