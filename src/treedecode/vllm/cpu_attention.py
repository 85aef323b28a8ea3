"""vLLM's CPU attention backend, with trees: tree rows are computed here, all others by vLLM's own op.

Installed by the worker in place of ``CPU_ATTN``: on a CPU vLLM looks for no other name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from treedecode.vllm.cpu_cache import BlockLayout, block_layout
from treedecode.vllm.cpu_view import PaddedTrees, padded_trees
from treedecode.vllm.step import StashedKV, StepTrees


class TreeCPUBackend(CPUAttentionBackend):
    """``CPU_ATTN`` that knows trees."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        return TreeCPUImpl

    @staticmethod
    def get_builder_cls() -> type[CPUAttentionMetadataBuilder]:
        return TreeCPUMetadataBuilder


@dataclass
class TreeCPUMetadata(CPUAttentionMetadata):
    """Metadata of a step with trees.

    Attributes:
        step: the trees.
        linear: of the rows that belong to no tree; None if there are none.
        views: padded trees by window.
    """

    step: StepTrees | None = None
    linear: CPUAttentionMetadata | None = None
    views: dict[int | None, list[PaddedTrees]] = field(default_factory=dict)


class TreeCPUMetadataBuilder(CPUAttentionMetadataBuilder):
    """Adds the step's trees, which the runner sets before it builds, to the metadata."""

    step: StepTrees | None = None

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        whole = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if self.step is None:
            return whole
        common = self.step.linear_metadata(common_attn_metadata)
        linear = None if common is None else super().build(common_prefix_len, common, fast_build)
        return TreeCPUMetadata(**vars(whole), step=self.step, linear=linear)


class TreeCPUImpl(CPUAttentionBackendImpl):
    """Attention of one layer.

    Raises:
        ValueError: the layer needs what tree attention does not have: ALiBi, sinks, a quantised cache, or another
            layer's K/V.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        unsupported = {
            "ALiBi": self.alibi_slopes is not None,
            "attention sinks": self.sinks is not None,
            "a quantised KV cache (set --kv-cache-dtype auto)": self.is_fp8_kv_cache,
            "layers that share another layer's KV cache": self.kv_sharing_target_layer_name is not None,
        }
        if found := [name for name, present in unsupported.items() if present]:
            raise ValueError(
                f"trees do not support {', '.join(found)}: run this model without treedecode's --worker-cls"
            )

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: CPUAttentionMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(attn_metadata, TreeCPUMetadata) or self.attn_type != AttentionType.DECODER:
            return super().forward(
                layer,
                query,
                key,
                value,
                kv_cache,
                attn_metadata,
                output,
                output_scale,
                output_block_scale,
            )
        step = attn_metadata.step
        assert step is not None
        if attn_metadata.linear is not None:
            rows = step.linear_rows
            part = torch.empty_like(output[: len(rows)])
            super().forward(layer, query[rows], key[rows], value[rows], kv_cache, attn_metadata.linear, part)
            output[rows] = part
        key, value = key[step.rows], value[step.rows]
        step.stash[layer.layer_name] = StashedKV(
            self, layer, kv_cache, key, value, attn_metadata.slot_mapping
        )
        block_size = kv_cache.shape[2]
        window = self.sliding_window if self.sliding_window > 0 else None
        if window not in attn_metadata.views:
            attn_metadata.views[window] = padded_trees(step, attn_metadata.block_table, block_size, window)
        layout = block_layout(layer.isa, kv_cache.dtype, block_size, self.head_size)
        query = query[step.rows]
        for trees in attn_metadata.views[window]:
            attended = tree_attention(
                query, key, value, kv_cache, layout, trees, self.scale, self.logits_soft_cap
            )
            output[step.rows[trees.places[trees.real]]] = attended[trees.real].to(output.dtype)
        return output


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kv_cache: Tensor,
    layout: BlockLayout,
    trees: PaddedTrees,
    scale: float,
    soft_cap: float = 0.0,
) -> Tensor:
    """Attention of tree nodes to the cached prefix and to their ancestors, in float32.

    Args:
        query: ``[R, query_heads, head_size]``, all tree rows.
        key: ``[R, kv_heads, head_size]``.
        value: as ``key``.
        kv_cache: ``[num_blocks, kv_heads, block_size, 2 * head_size]``.
        layout: of a block.
        trees: what each node sees.
        scale: factor of the scores.
        soft_cap: ``cap * tanh(score / cap)``; 0 for none.

    Returns:
        float32 ``[B, N, query_heads, head_size]``; padding rows are of no meaning.
    """
    num_kv_heads, head_size = key.shape[1:]
    num_trees, width = trees.places.shape
    # [B, M, H, 2, block_size * head_size] -> keys [B, H, D, T], values [B, H, T, D]
    raw = kv_cache.view(kv_cache.shape[0], num_kv_heads, 2, -1)[trees.block_ids].float()
    prefix_keys = layout.keys(raw[:, :, :, 0]).permute(0, 2, 3, 1, 4).flatten(3)
    prefix_values = layout.values(raw[:, :, :, 1]).transpose(1, 2).flatten(2, 3)
    # [B, N, H, G, D] -> [B, H, N * G, D]
    groups = query[trees.places].float().unflatten(2, (num_kv_heads, -1))
    queries = groups.transpose(1, 2).flatten(2, 3)
    keys = key[trees.places].float().permute(0, 2, 3, 1)
    values = value[trees.places].float().transpose(1, 2)
    scores = torch.cat([queries @ prefix_keys, queries @ keys], dim=-1).mul_(scale)
    if soft_cap:
        scores = torch.tanh(scores / soft_cap).mul_(soft_cap)
    scores = scores.unflatten(2, (width, -1))
    scores.masked_fill_(~trees.visible[:, None, :, None], float("-inf"))
    weights = scores.softmax(-1).flatten(2, 3)
    num_prefix = prefix_keys.shape[-1]
    attended = weights[..., :num_prefix] @ prefix_values + weights[..., num_prefix:] @ values
    return (
        attended.unflatten(2, (width, -1))
        .transpose(1, 2)
        .reshape(num_trees, width, query.shape[1], head_size)
    )
