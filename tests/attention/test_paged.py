"""Trees as a kernel reads them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from treedecode.attention.paged import MAX_NODES, PlacedTree, pack_trees
from treedecode.mask import bits_from_packed
from treedecode.shape import TreeShape
from treedecode.testing.strategies import shapes


def test_a_batch_of_two():
    packed = pack_trees(
        [
            PlacedTree(3, 7, 100, TreeShape.from_parents([-1, 0, 0, 1])),
            PlacedTree(0, 20, 0, TreeShape.chain(32)),
        ]
    )
    assert packed.trees.tolist() == [[3, 7, 100, 4, 0], [0, 20, 0, 33, 4]]
    assert packed.words.shape == (37, 2) and packed.depths.shape == (37,)
    assert packed.words[:4, 0].tolist() == [0b1, 0b11, 0b101, 0b1011] and not packed.words[:4, 1].any()
    # bit 31 of an int32 is its sign
    assert packed.words[36].tolist() == [-1, 1]
    assert packed.depths[:4].tolist() == [0, 1, 1, 2]
    assert (packed.max_nodes, packed.max_prefix) == (33, 100)


@given(shapes())
def test_words_are_the_packed_mask(shape):
    packed = pack_trees([PlacedTree(0, 0, 5, shape)])
    assert bits_from_packed(packed.words.numpy().view(np.uint32), 32) == bits_from_packed(
        shape.packed_mask(32), 32
    )


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ([], "at least one tree"),
        (
            [PlacedTree(0, 0, 0, TreeShape.chain(MAX_NODES))],
            "at most 129 nodes, root included: tree 0 has 130",
        ),
        ([PlacedTree(-1, 0, 0, TreeShape.chain(1))], "request must be at least 0, got -1"),
        ([PlacedTree(0, -2, 0, TreeShape.chain(1))], "first_row must be at least 0, got -2"),
        ([PlacedTree(2**31, 0, 0, TreeShape.chain(1))], r"request must be below 2\*\*31 in size"),
        ([PlacedTree(0, 2**31, 0, TreeShape.chain(1))], r"first_row must be below 2\*\*31 in size"),
        ([PlacedTree(0, 0, -3, TreeShape.chain(1))], "prefix_len must be at least 0, got -3"),
    ],
)
def test_what_no_kernel_can_read_is_refused(placed, message):
    with pytest.raises(ValueError, match=message):
        pack_trees(placed)
