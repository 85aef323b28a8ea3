"""Commits of contiguous and paged caches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from treedecode.kv import (
    commit_batch,
    commit_layers,
    commit_moves,
    commit_paged,
    commit_paged_batch,
    commit_path,
)
from treedecode.testing import oracle, strategies

PATHS = strategies.accepted_paths() | strategies.row_orders()


def numbered(*shape):
    """A cache whose every element is different."""
    return torch.arange(torch.tensor(shape).prod().item(), dtype=torch.float64).reshape(shape)


@given(PATHS, st.integers(0, 9), st.integers(0, 3))
def test_contiguous_commit_equals_the_oracle(path, prefix_len, extra):
    num_rows = prefix_len + 24 + extra
    key, value = numbered(2, 3, num_rows, 4), -numbered(2, 3, num_rows, 2)
    rows = oracle.committed_rows(num_rows, prefix_len, path)
    expected = key[:, :, rows].clone(), value[:, :, rows].clone()
    pointers = key.data_ptr(), value.data_ptr()
    commit_path(key, value, prefix_len, path)
    assert torch.equal(key, expected[0]) and torch.equal(value, expected[1])
    assert (key.data_ptr(), value.data_ptr()) == pointers


@given(PATHS)
def test_moves_are_exactly_the_rows_out_of_place(path):
    sources, destinations = commit_moves(path)
    assert list(zip(destinations, sources, strict=True)) == [
        (i, node) for i, node in enumerate(path) if i != node
    ]


class CountingTensor(torch.Tensor):
    """Counts the rows that are written by ``index_copy_``."""

    rows_written = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.index_copy_:
            cls.rows_written += len(args[2])
        return super().__torch_function__(func, types, args, kwargs or {})


def test_only_what_must_move_is_written():
    cache = numbered(1, 12, 2).as_subclass(CountingTensor)
    commit_path(cache, cache.clone(), 3, [0, 1, 4, 5])
    assert CountingTensor.rows_written == 2 * 2
    CountingTensor.rows_written = 0
    version = cache._version
    commit_path(cache, cache, 3, [0, 1, 2])
    assert CountingTensor.rows_written == 0 and cache._version == version


def test_layers_and_views_commit_in_place():
    big = numbered(3, 2, 20, 4)
    layers = [(big[i, :, :10], big[i, :, 10:]) for i in range(3)]
    expected = [
        tuple(part[:, oracle.committed_rows(10, 2, [0, 2, 5])].clone() for part in layer) for layer in layers
    ]
    commit_layers(iter(layers), 2, [0, 2, 5])
    for i in range(3):
        assert torch.equal(big[i, :, :10], expected[i][0]) and torch.equal(big[i, :, 10:], expected[i][1])


def test_a_layer_too_short_leaves_every_layer_alone():
    layers = [(numbered(1, 10, 2), numbered(1, 10, 2)), (numbered(1, 10, 2), numbered(1, 6, 2))]
    with pytest.raises(ValueError, match="expected at least 8 rows, got 6"):
        commit_layers(layers, 2, [0, 2, 5])
    assert torch.equal(layers[0][0], numbered(1, 10, 2))


def test_a_path_that_fits_exactly_is_taken():
    cache = numbered(1, 10, 2)
    commit_path(cache, cache.clone(), 8, [0, 1])
    commit_path(cache, cache.clone(), 10, [])
    assert torch.equal(cache, numbered(1, 10, 2))


@st.composite
def paged_requests(draw):
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    prefix_lens = draw(st.lists(st.integers(0, 40), min_size=1, max_size=3))
    paths = [draw(strategies.accepted_paths(12)) for _ in prefix_lens]
    blocks_each = -(-(max(prefix_lens) + 12) // block_size)
    num_blocks = blocks_each * len(prefix_lens) + 2
    order = draw(st.permutations(range(num_blocks)))
    tables = [list(order[i * blocks_each : (i + 1) * blocks_each]) for i in range(len(prefix_lens))]
    return block_size, prefix_lens, paths, num_blocks, tables


@given(paged_requests(), st.sampled_from([1, 2]))
def test_paged_commits_equal_the_oracle(request, slot_dim):
    block_size, prefix_lens, paths, num_blocks, tables = request
    key, value = numbered(num_blocks, block_size, 2, 3), -numbered(num_blocks, block_size, 2, 5)
    expected = [key.clone(), value.clone()]
    for table, prefix_len, path in zip(tables, prefix_lens, paths, strict=True):
        slots = [(block, slot) for block in table for slot in range(block_size)]
        rows = oracle.committed_rows(len(slots), prefix_len, path)
        for before, after in zip((key, value), expected, strict=True):
            for slot, row in zip(slots, rows, strict=True):
                after[slot] = before[slots[row]]
    batch_key, batch_value = (cache.movedim(1, slot_dim).clone() for cache in (key, value))
    solo_key, solo_value = batch_key.clone(), batch_value.clone()

    for table, prefix_len, path in zip(tables, prefix_lens, paths, strict=True):
        commit_paged(solo_key, solo_value, table, prefix_len, path, slot_dim)
    assert torch.equal(solo_key.movedim(slot_dim, 1), expected[0])
    assert torch.equal(solo_value.movedim(slot_dim, 1), expected[1])

    padded = torch.tensor([path + [-1] * (12 - len(path)) for path in paths])
    commit_paged_batch(
        batch_key, batch_value, torch.tensor(tables), torch.tensor(prefix_lens), padded, slot_dim
    )
    assert torch.equal(batch_key, solo_key) and torch.equal(batch_value, solo_value)


@given(st.lists(st.tuples(st.integers(0, 9), strategies.accepted_paths(12)), min_size=1, max_size=4))
def test_batched_commit_equals_every_row_alone(requests):
    key, value = numbered(len(requests), 2, 24, 3), -numbered(len(requests), 2, 24, 5)
    solo = key.clone(), value.clone()
    for row, (prefix_len, path) in enumerate(requests):
        commit_path(solo[0][row], solo[1][row], prefix_len, path)
    padded = torch.tensor([path + [-1] * (15 - len(path)) for _, path in requests])
    commit_batch(key, value, torch.tensor([prefix_len for prefix_len, _ in requests]), padded)
    assert torch.equal(key, solo[0]) and torch.equal(value, solo[1])


def test_batched_commits_never_synchronise():
    with FakeTensorMode():
        prefix_lens, path = torch.zeros(4, dtype=torch.int64), torch.zeros(4, 6, dtype=torch.int64)
        commit_batch(torch.zeros(4, 2, 30, 8), torch.zeros(4, 2, 30, 8), prefix_lens, path)
        tables = torch.zeros(4, 5, dtype=torch.int32)
        commit_paged_batch(torch.zeros(9, 16, 2, 8), torch.zeros(9, 16, 2, 8), tables, prefix_lens, path)


CACHE = torch.zeros(1, 8, 2)
PAGED = torch.zeros(4, 2, 1, 2)
LENGTHS = torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: commit_path(CACHE, CACHE, 3, [0, 5]), ValueError, "expected at least 9 rows, got 8"),
        (lambda: commit_path(CACHE, CACHE, -1, [0, 5]), ValueError, "prefix_len must be at least 0"),
        (lambda: commit_moves([0, -1]), ValueError, "path nodes must be at least 0"),
        (lambda: commit_moves([0, 2, 2]), ValueError, "a node stands on the path once"),
        (lambda: commit_moves([0, True]), TypeError, "got True"),
        (
            lambda: commit_paged(PAGED, PAGED, [0, 1], 2, [0, 2]),
            ValueError,
            "at least 3 blocks of 2 rows, got 2",
        ),
        (lambda: commit_paged(PAGED, PAGED, [0, 4], 0, [0, 2]), ValueError, "distinct blocks from 0 to 3"),
        (lambda: commit_paged(PAGED, PAGED, [0, -1], 0, [0, 2]), ValueError, "distinct blocks from 0 to 3"),
        (lambda: commit_paged(PAGED, PAGED, [1, 1], 0, [0, 2]), ValueError, "distinct blocks from 0 to 3"),
        (lambda: commit_paged(PAGED, PAGED, [0, 1.0], 0, [0, 2]), TypeError, "block of position 1"),
        (
            lambda: commit_batch(CACHE[None], CACHE[None], LENGTHS, LENGTHS[:, None]),
            ValueError,
            r"expected path \[1, P\]",
        ),
        (
            lambda: commit_batch(CACHE, CACHE, LENGTHS[:1], LENGTHS[:1, None]),
            ValueError,
            r"shape \[B, heads, seq, dim\], got \[1, 8, 2\]",
        ),
        (
            lambda: commit_paged(CACHE, CACHE, [0], 0, [0, 2]),
            ValueError,
            r"shape \[num_blocks, .*\], got \[1, 8, 2\]",
        ),
        (
            lambda: commit_paged_batch(CACHE, CACHE, LENGTHS[:, None], LENGTHS, LENGTHS[:, None]),
            ValueError,
            r"shape \[num_blocks, .*\], got \[1, 8, 2\]",
        ),
        # nothing moves here, and yet the rows are not there
        (lambda: commit_path(CACHE, CACHE, 20, [0]), ValueError, "expected at least 21 rows, got 8"),
        (lambda: commit_path(CACHE, CACHE, 9, []), ValueError, "expected at least 9 rows, got 8"),
        (lambda: commit_paged(PAGED, PAGED, [0], 2, [0]), ValueError, "at least 2 blocks of 2 rows, got 1"),
        (lambda: commit_path(CACHE, CACHE, 2**31, [0]), ValueError, "prefix_len must be at most 2147483647"),
        (
            lambda: commit_path(CACHE.numpy(), CACHE.numpy(), 0, [0]),
            TypeError,
            r"torch tensor \[\.\.\., seq, dim\], got ndarray",
        ),
        (lambda: commit_path(CACHE[0, 0], CACHE[0, 0], 0, [0]), ValueError, r"seq, dim\], got \[2\]"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_comparison_with_the_oracle_can_fail():
    """Moving row by row without reading first loses rows as soon as they overlap out of order."""
    path = [2, 0, 1]
    naive = numbered(6, 1)
    for i, node in enumerate(path):
        naive[2 + i] = naive[2 + node]
    assert not torch.equal(naive, numbered(6, 1)[oracle.committed_rows(6, 2, path)])
