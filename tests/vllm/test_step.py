"""How a step is split into tree rows and others, and what is moved after it."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from treedecode.accept import accept_greedy
from treedecode.tree import DraftTree
from treedecode.vllm.step import StashedKV, StepTrees, TreeRows, metadata_with

pytestmark = pytest.mark.vllm


def random_tree(source, size):
    parents = [-1] + [source.randrange(node) for node in range(1, size)]
    return DraftTree.trusted(parents, [source.randrange(3) for _ in range(size)])


def test_positions_are_prefix_plus_depth():
    """CASES 6: parents at depth 2 are not the identity."""
    tree = DraftTree.trusted([-1, 0, 0, 1], [0, 1, 2, 3])
    step = StepTrees.of([TreeRows(0, 2, 5, tree)], 9)
    assert step.rows.tolist() == [2, 3, 4, 5] and step.linear_rows.tolist() == [0, 1, 6, 7, 8]
    assert (torch.tensor([5, 6, 7, 8]) + step.position_shift()).tolist() == [5, 6, 6, 7]


def common_metadata(lengths, computed):
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)
    num_tokens = int(starts[-1])
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([c + n for c, n in zip(computed, lengths, strict=True)], dtype=torch.int32),
        num_reqs=len(lengths),
        num_actual_tokens=num_tokens,
        max_query_len=max(lengths),
        max_seq_len=100,
        block_table_tensor=torch.arange(len(lengths))[:, None],
        slot_mapping=torch.arange(num_tokens) * 10,
    )


def test_builders_have_the_trees_while_they_build_and_not_after_a_failure():
    step = StepTrees.of([TreeRows(0, 0, 5, DraftTree.trusted([-1, 0, 0], [0, 1, 2]))], 3)
    builders = [SimpleNamespace(step=None) for _ in range(2)]

    def build():
        with metadata_with(step, iter(builders)):
            assert all(builder.step is step for builder in builders)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        build()
    assert not any(builder.step for builder in builders)


def test_the_other_rows_keep_their_lengths():
    """A prompt chunk, a bare tree, a plain step, and a tree behind rows of its own request."""
    tree = DraftTree.trusted([-1, 0, 0], [0, 1, 2])
    common = common_metadata([4, 3, 1, 5], [0, 20, 7, 30])
    step = StepTrees.of([TreeRows(1, 4, 20, tree), TreeRows(3, 10, 32, tree)], 13)
    linear = step.linear_metadata(common)
    assert linear.query_start_loc.tolist() == [0, 4, 5, 7]
    assert linear.seq_lens.tolist() == [4, 8, 32]
    assert linear.block_table_tensor[:, 0].tolist() == [0, 2, 3]
    assert linear.slot_mapping.tolist() == [0, 10, 20, 30, 70, 80, 90]
    assert (linear.num_reqs, linear.num_actual_tokens, linear.max_query_len) == (3, 7, 4)


def test_nothing_is_left_when_all_rows_are_trees():
    tree = DraftTree.trusted([-1, 0, 0], [0, 1, 2])
    step = StepTrees.of([TreeRows(0, 0, 9, tree), TreeRows(1, 3, 4, tree)], 6)
    assert step.linear_metadata(common_metadata([3, 3], [9, 4])) is None


def test_accepted_rows_move_behind_the_root_and_nothing_else_changes():
    """200 random batches against a cache of single numbers, written through the layers' own method."""
    from treedecode.vllm.step import commit_step

    source, num_moved = random.Random(0), 0
    for _ in range(200):
        trees, row = [], source.randrange(3)
        for request in range(source.randrange(1, 4)):
            tree = random_tree(source, source.randrange(1, 9))
            trees.append(TreeRows(request, row, 10, tree))
            row += tree.num_nodes + source.randrange(2)
        step = StepTrees.of(trees, row)
        slots = torch.tensor(source.sample(range(100), row))
        keys = torch.rand(row, 1, 2)
        cache = torch.zeros(100, 1, 2)
        cache[slots] = keys

        def update(layer, key, value, kv_cache, slot_mapping):
            kv_cache[slot_mapping] = key

        impl = SimpleNamespace(do_kv_cache_update=update)
        step.stash["layer"] = StashedKV(impl, None, cache, keys[step.rows], keys[step.rows], slots)
        walks = [
            accept_greedy(rows.tree, [source.randrange(3) for _ in range(rows.tree.num_nodes)])
            for rows in trees
        ]
        expected = cache.clone()
        for rows, walk in zip(trees, walks, strict=True):
            for place, node in enumerate(walk.path):
                expected[slots[rows.first_row + place]] = keys[rows.first_row + node]
        num_moved += commit_step(step, walks) > 0
        assert torch.equal(cache, expected)
    assert num_moved > 20
