from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treedecode.attention import grouped, reference
from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.kernels import TORCH, numba_kernels
from treedecode.engines.linear import Linear
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


@pytest.mark.parametrize("weighted", [True, False])
def test_compiled_kernels_equal_tensor_operations(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outcomes = []
    heads = torch.randn(5, 8, 16, generator=generator)
    weight = torch.rand(6, 16, generator=generator) if weighted else None
    cos, sin = (torch.randn(5, 1, 16, generator=generator) for _ in range(2))
    hidden, mixed = (torch.randn(5, 48, generator=generator) for _ in range(2))
    post, pre = (torch.rand(48, generator=generator) for _ in range(2))
    for kernels in (TORCH, numba_kernels()):
        keys, values, total = torch.zeros(2, 9, 16), torch.zeros(2, 9, 16), hidden.clone()
        query = kernels.rotate_and_store(heads, weight, cos, sin, 1e-6, 4, keys, values, 3)
        normed = kernels.add_norm(total, mixed, post if weighted else None, pre, 1e-6)
        outcomes.append((query, keys, values, total, normed))
    for got, expected in zip(*reversed(outcomes), strict=True):
        torch.testing.assert_close(got, expected)


def test_commit_moves_rows_of_every_layer_in_place() -> None:
    """CASES 23, for layers of two shapes at once."""
    specs = [LayerSpec(1, 4, None), LayerSpec(2, 8, 16), LayerSpec(1, 4, None)]
    cache = KVCache(specs, 12, torch.float32, CPU)
    pointers = cache.data_ptrs()
    for index in range(3):
        for tensor in cache.layer(index):
            tensor.copy_(torch.arange(12.0)[:, None].expand_as(tensor))
    cache.length = 4
    cache.commit([0, 3, 4, 5])
    assert cache.length == 8
    assert cache.data_ptrs() == pointers
    for index in range(3):
        for tensor in cache.layer(index):
            assert tensor[0, :8, 0].tolist() == [0, 1, 2, 3, 4, 7, 8, 9]


@pytest.mark.parametrize("rows", [1, 2, 8, 17, 32])
@pytest.mark.parametrize("keep_plain", [True, False])
def test_packed_linears_equal_plain_ones(rows: int, keep_plain: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, 40, generator=generator) for size in (24, 8, 8)]
    biases = [torch.randn(24, generator=generator), None, torch.randn(8, generator=generator)]
    x = torch.randn(rows, 40, generator=generator)
    packed, plain = Linear(weights, biases, True, keep_plain), Linear(weights, biases, pack=False)
    assert packed.packed
    assert not plain.packed
    torch.testing.assert_close(packed(x), plain(x), rtol=1e-4, atol=1e-4)


def test_only_float32_is_packed() -> None:
    assert not Linear([torch.zeros(4, 4, dtype=torch.float64)], [None], pack=True).packed
