from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from treedecode.engines.step import StepInput
from treedecode.testing.strategies import shapes
from treedecode.tree import DraftTree, TreeShape

CPU = torch.device("cpu")


@given(shape=shapes(), prefix_len=st.integers(0, 20), window=st.none() | st.integers(1, 12))
def test_view_is_the_step_mask(shape: TreeShape, prefix_len: int, window: int | None) -> None:
    tree = DraftTree(shape, list(range(shape.num_nodes)))
    step = StepInput.of_tree(tree, prefix_len, CPU, torch.float32)
    start, mask = step.view(window)
    expected = shape.step_mask(prefix_len, window)
    assert not expected[:, :start].any()
    np.testing.assert_array_equal((mask == 0).numpy(), expected[:, start:])
    np.testing.assert_array_equal(step.position_ids.numpy(), shape.position_ids(prefix_len))


@given(count=st.integers(1, 20), prefix_len=st.integers(0, 20), window=st.none() | st.integers(1, 12))
def test_a_run_of_tokens_is_a_chain(count: int, prefix_len: int, window: int | None) -> None:
    step = StepInput.of_chain(list(range(count)), prefix_len, CPU, torch.float64)
    chain = StepInput.of_tree(
        DraftTree(TreeShape.chain(count - 1), list(range(count))), prefix_len, CPU, torch.float64
    )
    assert step.position_ids.equal(chain.position_ids)
    assert step.token_ids.equal(chain.token_ids)
    assert step.view(window)[0] == chain.view(window)[0]
    assert step.view(window)[1].equal(chain.view(window)[1])


def test_cases_of_positions_and_windows() -> None:
    """CASES 6 and 10, written out."""
    step = StepInput.of_tree(
        DraftTree(TreeShape.from_parents([-1, 0, 0, 1]), [1, 2, 3, 4]), 5, CPU, torch.float32
    )
    assert step.position_ids.tolist() == [5, 6, 6, 7]
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 1, 2]), [1, 2, 3, 4, 5])
    start, mask = StepInput.of_tree(tree, 6, CPU, torch.float32).view(4)
    assert start == 3
    #                 keys at positions 3, 4, 5 of the prefix, then nodes 0 .. 4 at 6, 7, 7, 8, 8
    assert (mask == 0).int().tolist() == [
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 1, 0, 0],
        [0, 0, 1, 1, 1, 0, 1, 0],
        [0, 0, 1, 1, 0, 1, 0, 1],
    ]


def test_views_are_made_once() -> None:
    step = StepInput.of_chain([1, 2], 3, CPU, torch.float32)
    assert step.view(4)[1] is step.view(4)[1]
    assert step.view(None)[1] is not step.view(4)[1]
    assert step.view(4, 3)[1] is step.view(4, 3)[1]
    assert step.view(4, 3)[1].equal(torch.cat([step.view(4)[1]] * 3))
