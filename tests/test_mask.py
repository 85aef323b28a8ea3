"""Dense, packed, additive and step masks, and positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treedecode.mask import additive, batch_step_mask, check_mask, tree_mask_tensor
from treedecode.testing import oracle, strategies
from treedecode.tree import TreeShape

PREFIX_LENS = st.integers(0, 40)
WINDOWS = st.none() | st.integers(1, 50)


def test_reference_rows():
    shape = TreeShape.from_paths(
        [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0)]
    )
    mask = shape.mask()
    assert mask.dtype == np.bool_ and mask.shape == (10, 10)
    assert np.flatnonzero(mask[9]).tolist() == [0, 1, 3, 6, 9]
    assert np.flatnonzero(mask[5]).tolist() == [0, 2, 5]


def test_hand_written_mask():
    expected = """
        1....
        11...
        1.1..
        11.1.
        1.1.1
    """
    rows = [[cell == "1" for cell in line.strip()] for line in expected.strip().splitlines()]
    assert TreeShape.from_parents([-1, 0, 0, 1, 2]).mask().tolist() == rows


@given(strategies.parents(70))
def test_mask_equals_the_oracle_and_inverts(parents):
    shape = TreeShape.from_parents(parents)
    assert shape.mask().tolist() == oracle.mask(parents)
    assert tree_mask_tensor(shape).tolist() == oracle.mask(parents)
    assert TreeShape.from_mask(shape.mask()) == shape


@given(strategies.parents(), PREFIX_LENS)
def test_positions_equal_the_oracle(parents, prefix_len):
    positions = TreeShape.from_parents(parents).position_ids(prefix_len)
    assert positions.dtype == np.int64
    assert positions.tolist() == oracle.position_ids(parents, prefix_len)


@given(strategies.parents(), PREFIX_LENS, WINDOWS)
def test_step_mask_equals_the_oracle(parents, prefix_len, window):
    mask = TreeShape.from_parents(parents).step_mask(prefix_len, window)
    assert mask.dtype == np.bool_ and mask.shape == (len(parents), prefix_len + len(parents))
    assert mask.tolist() == oracle.step_mask(parents, prefix_len, window)


@given(strategies.parents(150), st.sampled_from([32, 64]))
def test_packed_mask_equals_the_oracle_and_inverts(parents, bits):
    shape = TreeShape.from_parents(parents)
    words = shape.packed_mask(bits)
    assert words.dtype == np.dtype(f"uint{bits}") and words.shape == (len(parents), -(-len(parents) // bits))
    assert words.tolist() == oracle.packed(oracle.mask(parents), bits)
    assert TreeShape.from_packed_mask(words, bits) == shape
    assert TreeShape.from_packed_mask(words.view(f"int{bits}"), bits) == shape


@given(st.lists(st.tuples(strategies.shapes(10), st.integers(0, 12)), max_size=4), WINDOWS)
def test_batched_step_mask_holds_every_row(rows, window):
    shapes, prefix_lens = [shape for shape, _ in rows], [prefix_len for _, prefix_len in rows]
    batch = batch_step_mask(shapes, prefix_lens, window)
    for mask, shape, prefix_len in zip(batch, shapes, prefix_lens, strict=True):
        solo = shape.step_mask(prefix_len, window)
        assert np.array_equal(mask[: solo.shape[0], : solo.shape[1]], solo)
        assert not mask[: solo.shape[0], solo.shape[1] :].any()
        assert mask[solo.shape[0] :].sum(axis=1).tolist() == [1] * (len(mask) - len(solo))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_additive_is_zero_where_visible(dtype):
    shape = TreeShape.from_parents([-1, 0, 0])
    bias = additive(shape.step_mask(2), dtype)
    assert bias.dtype == dtype
    assert bias.tolist() == [
        [0 if seen else float("-inf") for seen in row] for row in oracle.step_mask([-1, 0, 0], 2, None)
    ]
    assert torch.equal(bias, additive(torch.from_numpy(shape.step_mask(2)), dtype))
    assert additive(shape.mask()).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: TreeShape.chain(1).packed_mask(16), ValueError, "32 or 64 bits, got 16"),
        (lambda: TreeShape.chain(1).step_mask(-1), ValueError, "prefix_len must be at least 0, got -1"),
        (lambda: TreeShape.chain(1).step_mask(10**30), ValueError, "prefix_len must be below 2\\*\\*63"),
        (lambda: TreeShape.chain(1).step_mask(2**40), ValueError, "prefix_len must be at most 2147483647"),
        (lambda: TreeShape.chain(1).step_mask(4, 0), ValueError, "window must be at least 1, got 0"),
        (lambda: TreeShape.chain(1).step_mask(4, 2.0), TypeError, "window must be an integer"),
        (lambda: TreeShape.from_mask(np.ones((2, 3), bool)), ValueError, r"shape \[N, N\], got \(2, 3\)"),
        (lambda: TreeShape.from_mask(np.eye(2)), TypeError, "bool, true = visible; got dtype float64"),
        (lambda: TreeShape.from_mask(np.zeros((0, 0), bool)), ValueError, "the root sees itself alone"),
        (lambda: TreeShape.from_mask(TreeShape.chain(2).mask().T), ValueError, "the root sees itself alone"),
        (lambda: TreeShape.from_mask(np.eye(3, dtype=bool)), ValueError, "row 1 is not the path of a tree"),
        (
            lambda: TreeShape.from_mask(np.ones((3, 3), bool).cumsum(0) > 0),
            ValueError,
            "root sees itself alone",
        ),
        (lambda: TreeShape.from_packed_mask(np.ones((3, 2), np.uint64)), ValueError, r"got \(3, 2\)"),
        (
            lambda: TreeShape.from_packed_mask(np.ones((3, 1), np.uint32)),
            TypeError,
            "64 bits, got dtype uint32",
        ),
        (lambda: TreeShape.from_packed_mask(np.array([[1], [7]], np.uint64)), ValueError, "row 1 is not"),
        (lambda: batch_step_mask([TreeShape.chain(1)], []), ValueError, "1 trees, 0 lengths"),
        (lambda: additive(np.ones((2, 2))), TypeError, "expected a bool mask"),
        (lambda: additive(np.ones((2, 2), bool), torch.int64), TypeError, "expected a floating dtype"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_checked_shapes():
    check_mask(np.ones((10, 20), bool), 10, 20)
    check_mask(torch.ones(2, 1, 10, 20, dtype=torch.bool), 10, 20)


def test_the_comparison_with_the_oracle_can_fail():
    parents = [-1, 0, 0, 1, 2]
    causal = TreeShape.chain(4)
    assert causal.mask().tolist() != oracle.mask(parents)
    assert causal.position_ids(5).tolist() != oracle.position_ids(parents, 5)
    by_slot = [[6 + i - 4 < key for key in range(11)] for i in range(5)]  # window by flat index, not by depth
    full = np.array(oracle.step_mask(parents, 6, None))
    assert (full & by_slot).tolist() != oracle.step_mask(parents, 6, 4)
    assert TreeShape.from_parents(parents).packed_mask(32)[:, ::-1].tolist() == oracle.packed(
        oracle.mask(parents), 32
    )  # one word a row: the order of words shows from 33 nodes on
    wide = list(range(-1, 40))
    assert TreeShape.from_parents(wide).packed_mask(32)[:, ::-1].tolist() != oracle.packed(
        oracle.mask(wide), 32
    )
