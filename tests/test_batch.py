"""Batches of a fixed size: padding changes no walk, no mask and no commit, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treedecode.accept import accept_greedy, walk_batch
from treedecode.batch import BucketBatch, from_retrieve, pad_to_bucket, to_retrieve
from treedecode.kv import commit_moves
from treedecode.testing.strategies import draft_trees
from treedecode.tree import DraftTree, TreeShape

VOCAB = 50


def naive_walk(batch: BucketBatch, row: int, target_ids: np.ndarray) -> list[int]:
    """A kernel of its own: it knows no number of nodes and takes whatever hangs below the node and matches."""
    path = [0]
    for node in range(1, batch.parents.shape[1]):
        parent = batch.parents[row, node]
        if parent == path[-1] and batch.token_ids[row, node] == target_ids[row, parent]:
            path.append(node)
    return path


def faults_of(batch: BucketBatch, trees: Sequence[DraftTree], target_ids: np.ndarray) -> set[str]:
    """What padding has changed: walks, masks, commits, embedding inputs."""
    faults = set()
    tensors = [torch.from_numpy(array) for array in (batch.parents, batch.token_ids, target_ids)]
    walks = {
        "walk": walk_batch(*tensors, num_nodes=torch.from_numpy(batch.num_nodes)),
        "walk without sizes": walk_batch(*tensors),
    }
    for row, tree in enumerate(trees):
        size = tree.num_nodes
        expected = accept_greedy(tree, target_ids[row, :size])
        for name, walk in walks.items():
            path = [node for node in walk.path[row].tolist() if node >= 0]
            emitted = [token for token in walk.token_ids[row].tolist() if token >= 0]
            if (path, emitted) != (expected.path, expected.token_ids):
                faults.add(name)
            if commit_moves(path) != commit_moves(expected.path):
                faults.add("commit")
        if naive_walk(batch, row, target_ids) != expected.path:
            faults.add("naive walk")
        if not np.array_equal(batch.mask[row, :size, :size], tree.shape.mask()):
            faults.add("mask")
        if batch.mask[row, :size, size:].any():
            faults.add("padding is seen")
        if not np.array_equal(batch.depths[row, :size], tree.depths):
            faults.add("positions")
        if not np.array_equal(batch.sees_prefix[row], np.arange(batch.parents.shape[1]) < size):
            faults.add("prefix")
    if not (batch.mask.sum(2)[~batch.sees_prefix] == 1).all() or not batch.mask.diagonal(0, 1, 2).all():
        faults.add("padding sees")
    if batch.input_ids.min() < 0 or batch.input_ids.max() >= VOCAB:
        faults.add("embedding")
    return faults


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[DraftTree], int, int, np.ndarray]:
    trees = draw(st.lists(draft_trees(max_nodes=10, vocab_size=VOCAB), min_size=1, max_size=4))
    num_drafted = max(tree.num_drafted for tree in trees) + draw(st.integers(0, 5))
    batch_size = len(trees) + draw(st.integers(0, 2))
    target_ids = np.zeros((batch_size, 1 + num_drafted), np.int64)  # 0 is what padding embeds
    for row, tree in enumerate(trees):
        for node in range(1, tree.num_nodes):
            if draw(st.booleans()):
                target_ids[row, tree.parents[node]] = tree.token_ids[node]
    return trees, num_drafted, batch_size, target_ids


@settings(deadline=None, max_examples=60)
@given(cases())
def test_padding_changes_nothing(case: tuple[list[DraftTree], int, int, np.ndarray]) -> None:
    trees, num_drafted, batch_size, target_ids = case
    batch = pad_to_bucket(trees, num_drafted, batch_size)
    assert batch.mask.shape == (batch_size, 1 + num_drafted, 1 + num_drafted)
    assert batch.num_requests == len(trees)
    assert not batch.sees_prefix[len(trees) :].any()
    assert faults_of(batch, trees, target_ids) == set()
    # the linked layout, which kernels of other engines walk, has no padding in it either
    layout = to_retrieve([tree.shape for tree in trees], 1 + num_drafted)
    assert [shape.num_nodes for shape in from_retrieve(layout)] == [tree.num_nodes for tree in trees]


def hang(token: int) -> Callable[[BucketBatch], None]:
    """Padding as a child of the root, with a token."""

    def plant(batch: BucketBatch) -> None:
        batch.parents[0, -1] = 0
        batch.token_ids[0, -1] = token

    return plant


def unsized(batch: BucketBatch) -> None:
    hang(0)(batch)
    batch.num_nodes[0] = batch.parents.shape[1]


def seen(batch: BucketBatch) -> None:
    batch.mask[0, 0, -1] = True


def looking(batch: BucketBatch) -> None:
    batch.mask[0, -1, 0] = True


def blind(batch: BucketBatch) -> None:
    batch.mask[0, -1, -1] = False


def unembeddable(batch: BucketBatch) -> None:
    batch.input_ids[:] = batch.token_ids


def with_prefix(batch: BucketBatch) -> None:
    batch.sees_prefix[0, -1] = True


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (hang(0), {"walk without sizes", "naive walk", "commit"}),
        (unsized, {"walk", "walk without sizes", "naive walk", "commit"}),
        (seen, {"padding is seen"}),
        (looking, {"padding sees"}),
        (blind, {"padding sees"}),
        (unembeddable, {"embedding"}),
        (with_prefix, {"prefix"}),
    ],
)
def test_planted_faults_are_found(plant: Callable[[BucketBatch], None], found: set[str]) -> None:
    """The target says 0 everywhere, which padding would carry if it had an ordinary token."""
    trees = [DraftTree(TreeShape.from_parents([-1, 0, 0]), [7, 3, 4])]
    batch = pad_to_bucket(trees, 5)
    target_ids = np.zeros((1, 6), np.int64)
    assert faults_of(batch, trees, target_ids) == set()
    plant(batch)
    assert faults_of(batch, trees, target_ids) == found


def test_minus_one_alone_keeps_padding_out() -> None:
    """Even below the root, and with walks that know no sizes."""
    trees = [DraftTree(TreeShape.chain(1), [7, 3])]
    batch = pad_to_bucket(trees, 3)
    batch.parents[0, 2:] = 0
    assert faults_of(batch, trees, np.zeros((1, 4), np.int64)) == set()


def test_no_requests_are_all_padding() -> None:
    batch = pad_to_bucket([], 2, 3)
    assert batch.num_requests == 0
    assert np.array_equal(batch.mask, np.broadcast_to(np.eye(3, dtype=bool), (3, 3, 3)))
    assert batch.num_nodes.tolist() == [1, 1, 1]


def test_what_does_not_fit_is_refused() -> None:
    tree = DraftTree(TreeShape.chain(3), [1, 2, 3, 4])
    with pytest.raises(ValueError, match="row 1: expected at most 3 nodes, got 4"):
        pad_to_bucket([DraftTree.root_only(1), tree], 2)
    with pytest.raises(ValueError, match="expected at most batch_size = 1 trees, got 2"):
        pad_to_bucket([tree, tree], 3, 1)
    with pytest.raises(TypeError, match="row 1 must be a DraftTree, got TreeShape"):
        pad_to_bucket([tree, tree.shape], 3)
    with pytest.raises(ValueError, match="num_drafted"):
        pad_to_bucket([tree], -1)
    assert replace(pad_to_bucket([tree], 3), num_requests=1).input_ids.tolist() == [[1, 2, 3, 4]]
