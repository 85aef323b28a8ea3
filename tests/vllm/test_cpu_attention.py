"""The CPU tree attention against a dense computation and against vLLM's own op, for every layout and window."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from treedecode.tree import DraftTree
from treedecode.vllm import cpu_cache
from treedecode.vllm.step import StepTrees, TreeRows

pytestmark = pytest.mark.vllm

BLOCK, HEAD = 32, 32
ISAS = ["vec", "vec16"]
PARENTS = [[-1, 0, 0, 1, 1, 2, 3], [-1, 0, 1, 2], [-1, 0, 0, 0]]


def written_cache(isa, dtype, keys, values, num_blocks, table):
    from vllm import _custom_ops as ops

    cache = torch.randn(num_blocks, keys.shape[1], BLOCK, 2 * HEAD).to(dtype)
    key_cache, value_cache = cache.view(num_blocks, keys.shape[1], 2 * BLOCK, HEAD).chunk(2, dim=2)
    places = torch.arange(len(keys))
    slots = table[places // BLOCK].long() * BLOCK + places % BLOCK
    ops.cpu_attn_reshape_and_cache(keys.to(dtype), values.to(dtype), key_cache, value_cache, slots, isa)
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("isa", ISAS)
def test_the_learned_layout_reads_back_what_was_written(isa, dtype):
    keys, values = torch.randn(2, BLOCK, 2, HEAD).to(dtype)
    cache = written_cache(isa, dtype, keys, values, 1, torch.zeros(1, dtype=torch.int32))
    layout = cpu_cache.block_layout(isa, dtype, BLOCK, HEAD)
    raw = cache.view(2, 2, BLOCK * HEAD)
    assert torch.equal(layout.keys(raw[:, 0]).permute(2, 0, 1), keys)
    assert torch.equal(layout.values(raw[:, 1]).transpose(0, 1), values)


def test_a_packed_layout_is_read_by_its_order():
    order = torch.randperm(BLOCK * HEAD)
    layout = cpu_cache.BlockLayout(order.argsort(), order.argsort(), BLOCK, HEAD)
    block = torch.randn(BLOCK, HEAD)
    stored = block.flatten()[order]
    assert torch.equal(layout.keys(stored), block.t())
    assert torch.equal(layout.values(stored), block)


def dense(query, keys, values, visible, scale, soft_cap):
    """One head at a time, one query at a time."""
    out = torch.zeros_like(query)
    groups = query.shape[1] // keys.shape[1]
    for node in range(len(query)):
        for head in range(query.shape[1]):
            k, v = keys[:, head // groups], values[:, head // groups]
            scores = k @ query[node, head] * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            scores[~visible[node]] = float("-inf")
            out[node, head] = scores.softmax(0) @ v
    return out


@pytest.mark.parametrize("window", [None, 1, 4, 20, 40])
@pytest.mark.parametrize(("kv_heads", "heads", "soft_cap"), [(1, 4, 0.0), (2, 6, 0.0), (3, 3, 5.0)])
@pytest.mark.parametrize("isa", ISAS)
def test_ragged_trees_equal_a_dense_computation(isa, kv_heads, heads, soft_cap, window):
    from treedecode.vllm.cpu_attention import tree_attention
    from treedecode.vllm.cpu_view import padded_trees

    torch.manual_seed(0)
    prefix_lens, num_blocks, scale = [1, 107, 64], 24, 0.3
    table = torch.randperm(num_blocks)[: 3 * 6].view(3, 6).to(torch.int32)
    cache = torch.randn(num_blocks, kv_heads, BLOCK, 2 * HEAD)
    trees, prefixes, first_row = [], [], 0
    for request, (parents, prefix_len) in enumerate(zip(PARENTS, prefix_lens, strict=True)):
        tree = DraftTree.trusted(parents, list(range(len(parents))))
        trees.append(TreeRows(request, first_row, prefix_len, tree))
        first_row += len(parents)
        keys, values = torch.randn(2, prefix_len, kv_heads, HEAD)
        prefixes.append((keys, values))
        fresh = written_cache(isa, torch.float32, keys, values, num_blocks, table[request])
        used = table[request, : -(-prefix_len // BLOCK)].long()
        cache[used] = fresh[used]
    step = StepTrees.of(trees, first_row)
    query, (key, value) = torch.randn(first_row, heads, HEAD), torch.randn(2, first_row, kv_heads, HEAD)
    layout = cpu_cache.block_layout(isa, torch.float32, BLOCK, HEAD)
    seen = 0
    for padded in padded_trees(step, table, BLOCK, window):
        at = padded.places
        out = tree_attention(query[at], key[at], value[at], cache, layout, padded, scale, soft_cap)
        got = torch.empty_like(query)
        got[padded.real_rows] = out.flatten(0, 1)[padded.real]
        for rows, (keys, values) in zip(trees, prefixes, strict=True):
            nodes = slice(rows.first_row, rows.first_row + rows.tree.num_nodes)
            if not torch.isin(padded.places[:, 0], torch.tensor([rows.first_row])).any():
                continue
            seen += 1
            visible = torch.from_numpy(np.array(rows.tree.shape.step_mask(rows.prefix_len, window)))
            expected = dense(
                query[nodes],
                torch.cat([keys, key[nodes]]),
                torch.cat([values, value[nodes]]),
                visible,
                scale,
                soft_cap,
            )
            assert torch.allclose(got[nodes], expected, atol=2e-5)
    assert seen == len(trees)
