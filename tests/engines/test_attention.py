from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treedecode.attention import grouped, reference
from treedecode.mask import additive
from treedecode.testing.strategies import shapes
from treedecode.tree import TreeShape


@pytest.mark.parametrize("ratio", [1, 2, 3, 6, 7, 8])
@pytest.mark.parametrize("nodes", [1, 2, 5, 16, 17, 33, 64, 65])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_grouped_attention_equals_the_reference(ratio: int, nodes: int, head_dim: int) -> None:
    """CASES 8 and 12: odd sizes, 100 prefix keys."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(nodes, 2 * ratio, head_dim, generator=generator)
    key, value = (torch.randn(2, 100 + nodes, head_dim, generator=generator) for _ in range(2))
    mask = torch.rand(nodes, 100 + nodes, generator=generator) < 0.7
    mask[:, 0] = True
    additive = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    expected = reference.tree_attention(query, key, value, mask, 0.1).reshape(nodes, -1)
    torch.testing.assert_close(grouped.tree_attention(query, key, value, additive, 0.1), expected)


@given(shape=shapes(), prefix_len=st.integers(0, 9), window=st.none() | st.integers(1, 6))
def test_step_masks(shape: TreeShape, prefix_len: int, window: int | None) -> None:
    """CASES 11 among them: no prefix at all; every row sees itself, so nothing is NaN."""
    generator = torch.Generator().manual_seed(0)
    nodes, seen = shape.num_nodes, prefix_len + shape.num_nodes
    query = torch.randn(nodes, 6, 8, generator=generator, dtype=torch.float64)
    key, value = (torch.randn(3, seen, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.from_numpy(shape.step_mask(prefix_len, window))
    expected = reference.tree_attention(query, key, value, mask, 0.3).reshape(nodes, -1)
    got = grouped.tree_attention(query, key, value, additive(mask, torch.float64), 0.3)
    torch.testing.assert_close(got, expected)
    assert not got.isnan().any()


def test_the_reference_against_one_row_written_out() -> None:
    query = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    key, value = torch.tensor([[[1.0, 1.0], [3.0, 1.0], [9.0, 9.0]]]), torch.tensor([[[1.0], [2.0], [50.0]]])
    mask = torch.tensor([[True, True, False]])
    got = reference.tree_attention(query, key, value, mask, 0.5)
    high = torch.tensor(0.5 * (3 - 1)).sigmoid().item()  # softmax of two scores that differ by 1
    torch.testing.assert_close(got, torch.tensor([[[1 + high], [1.5]]]))


def test_half_precision_sums_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 4, 16, generator=generator)
    key, value = (torch.randn(2, 700, 16, generator=generator) for _ in range(2))
    mask = torch.ones(3, 700, dtype=torch.bool)
    expected = reference.tree_attention(query, key, value, mask, 0.2).reshape(3, -1)
    parts = [tensor.bfloat16() for tensor in (query, key, value, additive(mask))]
    got = grouped.tree_attention(*parts, scale=0.2)  # type: ignore[arg-type]
    torch.testing.assert_close(got.float(), expected, rtol=0.05, atol=0.02)
