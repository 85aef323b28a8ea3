"""Checks on the running engine before it serves: what was assumed about vLLM's cache and attention holds here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import CommonAttentionMetadata

from treedecode.tree import DraftTree, TreeShape
from treedecode.vllm.layer import TreeBuilder, TreeImpl
from treedecode.vllm.step import StepTrees, TreeRows, metadata_with

_NUM_NODES = 5
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def self_test(runner: Any) -> int:
    """Compare a tree step with vLLM's own attention on every kind of layer.

    A chain computed as a tree, by keys and values read back from a cache that vLLM wrote, must equal what vLLM's op
    computes for the same rows. The runner's own cache is not touched.

    Args:
        runner: the model runner, its caches set up.

    Returns:
        How many kinds of layers were compared.

    Raises:
        RuntimeError: a layer does not run the tree attention, or its results differ.
    """
    layers = runner.compilation_config.static_forward_context
    seen: set[tuple[Any, ...]] = set()
    for groups in runner.attn_groups:
        for group in groups:
            builder = group.get_metadata_builder(0)
            for name in group.layer_names:
                layer = layers[name]
                if not isinstance(layer.impl, TreeImpl) or not isinstance(builder, TreeBuilder):
                    raise RuntimeError(
                        f"layer {name} must run treedecode's attention, got {type(layer.impl).__qualname__}: "
                        "another plugin or --attention-backend chose its backend"
                    )
                impl = layer.impl
                kind = (id(builder), impl.window, impl.num_heads, impl.logits_soft_cap, impl.scale)
                if kind not in seen:
                    seen.add(kind)
                    _compare(name, layer, builder)
    return len(seen)


def _compare(name: str, layer: Any, builder: TreeBuilder) -> None:
    impl, kv_cache = layer.impl, layer.kv_cache
    _, num_kv_heads, block_size, _ = kv_cache.shape
    # the prefix ends inside its second block and, with a window, is longer than it
    window = impl.window or 0
    prefix_len = (max(block_size, window) // block_size) * block_size + block_size // 2
    device = kv_cache.device
    generator = torch.Generator().manual_seed(0)

    def numbers(num_rows: int, num_heads: int) -> Tensor:
        return torch.randn(num_rows, num_heads, impl.head_size, generator=generator).to(
            device, kv_cache.dtype
        )

    num_blocks = -(-(prefix_len + _NUM_NODES) // block_size)
    # in the order in which the engine's own cache lies
    shape = (num_blocks + 1, *kv_cache.shape[1:])
    cache = torch.empty_strided(shape, kv_cache.stride(), dtype=kv_cache.dtype, device=device).zero_()
    # blocks in reverse order, and block 0 left out as vLLM does
    table = torch.arange(num_blocks, 0, -1, dtype=torch.int32, device=device)[None]
    places = torch.arange(prefix_len + _NUM_NODES, device=device)
    slots = table[0, places // block_size].long() * block_size + places % block_size
    keys, values = numbers(len(places), num_kv_heads), numbers(len(places), num_kv_heads)
    impl.do_kv_cache_update(layer, keys, values, cache, slots)
    query = numbers(_NUM_NODES, impl.num_heads)
    key, value, slots = keys[prefix_len:], values[prefix_len:], slots[prefix_len:]
    starts = torch.tensor([0, _NUM_NODES], dtype=torch.int32)
    common = CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([len(places)], dtype=torch.int32, device=device),
        num_reqs=1,
        num_actual_tokens=_NUM_NODES,
        max_query_len=_NUM_NODES,
        max_seq_len=len(places),
        block_table_tensor=table,
        slot_mapping=slots,
    )

    def attend(step: StepTrees | None) -> Tensor:
        with metadata_with(step, [builder]):
            metadata = builder.build(0, common)
        output = torch.zeros_like(query)
        impl.forward(layer, query, key, value, cache, metadata, output)
        return output.float()

    chain = DraftTree(TreeShape.chain(_NUM_NODES - 1), range(_NUM_NODES))
    as_tree = attend(StepTrees.of([TreeRows(0, 0, prefix_len, chain)], _NUM_NODES, device))
    gap = float((as_tree - attend(None)).abs().max())
    if not gap < _tolerance(kv_cache):
        raise RuntimeError(
            f"self-test failed on layer {name}: a chain computed as a tree differs from vLLM's attention by {gap:.2e}; "
            "run without treedecode's --worker-cls and report it with the type of your device"
        )


def _tolerance(kv_cache: Tensor) -> float:
    # vLLM's kernels for GPUs multiply float32 as TF32
    tf32 = kv_cache.dtype == torch.float32 and not kv_cache.is_cpu
    return 1e-2 if tf32 else _TOLERANCE[kv_cache.dtype]
