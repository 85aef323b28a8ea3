"""The attention for GPUs in vLLM's Triton backend: our kernel interpreted, vLLM's kernels replaced by plain code."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is installed on Linux x86_64 alone")

from treedecode.accept import accept_greedy
from treedecode.tree import DraftTree
from treedecode.vllm.step import StepTrees, TreeRows, metadata_with

pytestmark = pytest.mark.vllm

BLOCK, HEAD, HEADS, KV_HEADS, SCALE = 16, 32, 4, 2, 0.3
# rows and cached tokens of each request: a chunk of a prompt, a tree, a plain step, a tree after two rows of a prompt
ROWS, PREFIXES = [5, 7, 1, 6], [20, 41, 18, 0]
TREES = {1: [-1, 0, 0, 1, 1, 2, 3], 3: [-1, 0, 0, 0]}


def stock_attention(
    q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, window_size, block_table, softcap, **_
):
    """What vLLM's kernel computes, one request at a time."""
    for request, seq_len in enumerate(seqused_k.tolist()):
        first, end = cu_seqlens_q[request : request + 2].tolist()
        positions = torch.arange(seq_len)
        slots = block_table[request, positions // BLOCK].long(), positions % BLOCK
        queries = torch.arange(seq_len - (end - first), seq_len)[:, None]
        visible = positions <= queries
        if window_size[0] >= 0:
            visible &= positions >= queries - window_size[0]
        out[first:end] = dense(q[first:end], k[slots], v[slots], visible, softmax_scale, softcap)


def stock_write(key, value, key_cache, value_cache, slot_mapping, *_):
    key_cache[slot_mapping // BLOCK, slot_mapping % BLOCK] = key
    value_cache[slot_mapping // BLOCK, slot_mapping % BLOCK] = value


def dense(query, keys, values, visible, scale, soft_cap):
    group = query.shape[1] // keys.shape[1]
    scores = torch.einsum("nhd,shd->hns", query, keys.repeat_interleave(group, 1)) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hns,shd->nhd", weights, values.repeat_interleave(group, 1))


@pytest.fixture(autouse=True)
def stock_kernels(monkeypatch):
    from vllm.v1.attention.backends import triton_attn

    monkeypatch.setattr(triton_attn, "unified_attention", stock_attention)
    monkeypatch.setattr(triton_attn, "triton_reshape_and_cache_flash", stock_write)


def builder():
    """The metadata builder on a configuration as far as it is looked at."""
    from vllm.config import CUDAGraphMode

    from treedecode.vllm.gpu_attention import TreeTritonMetadataBuilder

    config = SimpleNamespace(
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda _: HEADS,
            get_num_kv_heads=lambda _: KV_HEADS,
            get_head_size=lambda: HEAD,
            rswa_window=None,
        ),
        compilation_config=SimpleNamespace(static_forward_context={}, cudagraph_mode=CUDAGraphMode.PIECEWISE),
        parallel_config=None,
    )
    spec = SimpleNamespace(block_size=BLOCK)
    return TreeTritonMetadataBuilder(spec, [], config, torch.device("cpu"))


def layer(window=None, soft_cap=None, **changes):
    from treedecode.vllm.gpu_attention import TreeTritonImpl

    impl = TreeTritonImpl(HEADS, HEAD, SCALE, KV_HEADS, None, window, "auto", soft_cap, **changes)
    scale = torch.ones(())
    return SimpleNamespace(impl=impl, layer_name="layer", _q_scale=scale, _k_scale=scale, _v_scale=scale)


class Step:
    """A batch with trees and without, its keys written to the cache as vLLM does before it calls attention."""

    def __init__(self, impl, of_layer, heads_first=False):
        from vllm.v1.attention.backend import CommonAttentionMetadata

        generator = torch.Generator().manual_seed(0)
        num_rows, max_blocks = sum(ROWS), 4
        self.query = torch.randn(num_rows, HEADS, HEAD, generator=generator)
        self.key, self.value = torch.randn(2, num_rows, KV_HEADS, HEAD, generator=generator)
        self.table = (
            (1 + torch.randperm(len(ROWS) * max_blocks, generator=generator)).view(len(ROWS), -1).int()
        )
        num_blocks = 1 + self.table.numel()
        if heads_first:
            self.cache = torch.zeros(num_blocks, KV_HEADS, BLOCK, 2 * HEAD)
        else:
            self.cache = torch.zeros(num_blocks, BLOCK, KV_HEADS, 2 * HEAD).transpose(1, 2)
        self.prefixes, slots = [], []
        for request, (rows, prefix_len) in enumerate(zip(ROWS, PREFIXES, strict=True)):
            prefix = torch.randn(2, prefix_len, KV_HEADS, HEAD, generator=generator)
            impl.do_kv_cache_update(
                of_layer, *prefix, self.cache, self.slots(request, torch.arange(prefix_len))
            )
            self.prefixes.append(prefix)
            slots.append(self.slots(request, prefix_len + torch.arange(rows)))
        self.slot_mapping = torch.cat(slots)
        impl.do_kv_cache_update(of_layer, self.key, self.value, self.cache, self.slot_mapping)
        starts = torch.tensor([0, *np.cumsum(ROWS)], dtype=torch.int32)
        self.common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=torch.tensor(ROWS, dtype=torch.int32) + torch.tensor(PREFIXES, dtype=torch.int32),
            num_reqs=len(ROWS),
            num_actual_tokens=num_rows,
            max_query_len=max(ROWS),
            max_seq_len=48,
            block_table_tensor=self.table,
            slot_mapping=self.slot_mapping,
        )
        placed = []
        for request, parents in TREES.items():
            before = ROWS[request] - len(parents)
            tree = DraftTree.trusted(parents, list(range(len(parents))))
            placed.append(TreeRows(request, int(starts[request]) + before, PREFIXES[request] + before, tree))
        self.trees = StepTrees.of(placed, num_rows)

    def slots(self, request, positions):
        return self.table[request, positions // BLOCK].long() * BLOCK + positions % BLOCK

    def attended(self, impl, of_layer, of_builder):
        with metadata_with(self.trees, [of_builder]):
            metadata = of_builder.build(0, self.common)
        output = torch.full_like(self.query, float("nan"))
        impl.forward(of_layer, self.query, self.key, self.value, self.cache, metadata, output)
        return output

    def expected(self, window, soft_cap):
        output, first = torch.empty_like(self.query), 0
        for request, (rows, prefix_len) in enumerate(zip(ROWS, PREFIXES, strict=True)):
            parents = TREES.get(request, [-1])
            before = rows - len(parents)
            mask = np.tril(np.ones((rows, prefix_len + rows), bool), prefix_len)
            tree = DraftTree.trusted(parents, list(range(len(parents)))).shape
            mask[before:] = tree.step_mask(prefix_len + before)
            depths = np.concatenate([np.arange(before) - before, tree.depths])
            positions = np.concatenate([np.arange(prefix_len), depths + prefix_len + before])
            if window:
                mask &= positions > positions[prefix_len:, None] - window
            end = first + rows
            keys, values = (
                torch.cat([cached, fresh[first:end]])
                for cached, fresh in zip(self.prefixes[request], (self.key, self.value), strict=True)
            )
            output[first:end] = dense(
                self.query[first:end], keys, values, torch.from_numpy(mask), SCALE, soft_cap
            )
            first = end
        return output


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize(("window", "soft_cap"), [(None, None), (8, None), (24, 5.0)])
def test_a_mixed_step_equals_dense_attention(window, soft_cap, heads_first):
    of_layer = layer(window, soft_cap)
    step = Step(of_layer.impl, of_layer, heads_first)
    got = step.attended(of_layer.impl, of_layer, builder())
    assert float((got - step.expected(window, soft_cap)).abs().max()) < 2e-5


def test_trees_are_taken_for_chains_without_their_metadata():
    of_layer = layer()
    step = Step(of_layer.impl, of_layer)
    metadata = builder().build(0, step.common)
    output = torch.empty_like(step.query)
    of_layer.impl.forward(of_layer, step.query, step.key, step.value, step.cache, metadata, output)
    assert float((output - step.expected(None, None)).abs().max()) > 1e-2


def test_metadata_has_the_trees_and_vllms_view_of_the_rest():
    of_layer, of_builder = layer(), builder()
    step = Step(of_layer.impl, of_layer)
    with metadata_with(step.trees, [of_builder]):
        metadata = of_builder.build(0, step.common)
    assert metadata.packed.trees.tolist() == [[1, 5, 41, 7, 0], [3, 15, 2, 4, 7]]
    assert metadata.linear.query_start_loc.tolist() == [0, 5, 6, 8]
    assert metadata.linear.seq_lens.tolist() == [25, 19, 2]
    assert metadata.num_actual_tokens == sum(ROWS)


def test_accepted_rows_move_to_the_slots_after_the_root():
    from treedecode.vllm.step import commit_step

    of_layer = layer()
    step = Step(of_layer.impl, of_layer)
    step.attended(of_layer.impl, of_layer, builder())
    walks = [
        accept_greedy(DraftTree.trusted([-1], [0]), [0]),
        # nodes 2 and 5 of the first tree, node 3 of the second
        accept_greedy(step.trees.trees[0].tree, [2, 9, 5, 9, 9, 9, 9]),
        accept_greedy(DraftTree.trusted([-1], [0]), [0]),
        accept_greedy(step.trees.trees[1].tree, [3, 9, 9, 9]),
    ]
    assert [len(walk.path) for walk in walks] == [1, 3, 1, 2]
    assert commit_step(step.trees, walks) == 3 * 2 * KV_HEADS * HEAD * 4
    for request, rows in ((1, [5, 7, 10]), (3, [15, 18])):
        position = PREFIXES[request] + (2 if request == 3 else 0) + torch.arange(len(rows))
        slots = step.slots(request, position)
        cached = step.cache.transpose(1, 2)[slots // BLOCK, slots % BLOCK]
        assert torch.equal(cached, torch.cat([step.key[rows], step.value[rows]], dim=-1))


def test_the_self_test_compares_with_vllms_kernel(monkeypatch):
    from vllm.v1.attention.backends import triton_attn

    from treedecode.vllm.selftest import self_test

    layers = {name: layer(window) for name, window in (("full", None), ("sliding", 40))}
    for of_layer in layers.values():
        of_layer.kv_cache = torch.zeros(8, BLOCK, KV_HEADS, 2 * HEAD).transpose(1, 2)
    of_builder = builder()
    group = SimpleNamespace(get_metadata_builder=lambda _: of_builder, layer_names=list(layers))
    runner = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context=layers), attn_groups=[[group]]
    )
    assert self_test(runner) == 2

    def one_key_less(*, seqused_k, **rest):
        stock_attention(seqused_k=seqused_k - 1, **rest)

    monkeypatch.setattr(triton_attn, "unified_attention", one_key_less)
    with pytest.raises(RuntimeError, match="self-test failed on layer full"):
        self_test(runner)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"sinks": torch.zeros(HEADS)}, "attention sinks"),
        ({"kv_sharing_target_layer_name": "other"}, "another layer's KV cache"),
        ({"chunk_lookback": 1}, "chunked attention"),
    ],
)
def test_layers_that_trees_do_not_have_are_refused(change, what):
    with pytest.raises(ValueError, match=f"trees do not support .*{what}.*without treedecode's --worker-cls"):
        layer(**change)


def test_alibi_and_quantised_caches_are_refused():
    from treedecode.vllm.gpu_attention import TreeTritonImpl

    for alibi, cache, what in (([0.5] * HEADS, "auto", "ALiBi"), (None, "fp8", "--kv-cache-dtype auto")):
        with pytest.raises(ValueError, match=f"trees do not support .*{what}"):
            TreeTritonImpl(HEADS, HEAD, SCALE, KV_HEADS, alibi, None, cache)


def test_vllm_refuses_what_the_backend_does_not_have():
    from vllm.platforms.interface import DeviceCapability

    from treedecode.vllm.gpu_attention import TreeTritonBackend

    supported = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "use_mla": False,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": DeviceCapability(9, 0),
        "attn_type": "decoder",
        "has_sliding_window": True,
    }
    assert TreeTritonBackend.validate_configuration(**supported) == []
    for name, value in {
        "has_sink": True,
        "kv_cache_dtype": "fp8",
        "use_mm_prefix": True,
        "attn_type": "encoder_only",
        "use_rswa": True,
    }.items():
        assert TreeTritonBackend.validate_configuration(**{**supported, name: value}), name


def test_no_graph_holds_the_attention():
    from vllm.v1.attention.backend import AttentionCGSupport

    from treedecode.vllm.gpu_attention import TreeTritonBackend

    support = TreeTritonBackend.get_builder_cls().get_cudagraph_support(None, None)
    assert support is AttentionCGSupport.NEVER
