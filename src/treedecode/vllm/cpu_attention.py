"""vLLM's CPU attention backend, with trees: tree rows are computed here, all others by vLLM's own op.

Installed by the worker in place of ``CPU_ATTN``: on a CPU vLLM looks for no other name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from treedecode.vllm.cpu_cache import BlockLayout, block_layout
from treedecode.vllm.cpu_view import PaddedTrees, padded_trees
from treedecode.vllm.layer import TreeBuilder, TreeImpl, TreeMetadata
from treedecode.vllm.step import StepTrees


class TreeCPUBackend(CPUAttentionBackend):
    """``CPU_ATTN`` that knows trees."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        return TreeCPUImpl

    @staticmethod
    def get_builder_cls() -> type[CPUAttentionMetadataBuilder]:
        return TreeCPUMetadataBuilder


@dataclass
class TreeCPUMetadata(TreeMetadata, CPUAttentionMetadata):
    """Metadata of a step with trees.

    Attributes:
        step: the trees.
        linear: of the rows that belong to no tree; None if there are none.
        views: padded trees by window.
    """

    step: StepTrees = field(kw_only=True)
    linear: CPUAttentionMetadata | None = None
    views: dict[int | None, list[PaddedTrees]] = field(default_factory=dict)


class TreeCPUMetadataBuilder(TreeBuilder, CPUAttentionMetadataBuilder):
    """Builds ``TreeCPUMetadata`` for steps with trees."""

    def with_trees(self, whole: Any, step: StepTrees, linear: Any) -> TreeCPUMetadata:
        return TreeCPUMetadata(**vars(whole), step=step, linear=linear)


class TreeCPUImpl(TreeImpl, CPUAttentionBackendImpl):
    """Attention of one layer; refuses a quantised cache, too."""

    def unsupported(self) -> dict[str, bool]:
        quantised = "a quantised KV cache (set --kv-cache-dtype auto)"
        return {**super().unsupported(), quantised: self.is_fp8_kv_cache}

    @property
    def window(self) -> int | None:
        return self.sliding_window if self.sliding_window > 0 else None

    def attend_trees(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        metadata: Any,
        output: Tensor,
    ) -> None:
        step, window, block_size = metadata.step, self.window, kv_cache.shape[2]
        if window not in metadata.views:
            metadata.views[window] = padded_trees(step, metadata.block_table, block_size, window)
        layout = block_layout(layer.isa, kv_cache.dtype, block_size, self.head_size)
        stashed = step.stash[layer.layer_name]
        for trees in metadata.views[window]:
            attended = tree_attention(
                query[trees.rows],
                stashed.key[trees.places],
                stashed.value[trees.places],
                kv_cache,
                layout,
                trees,
                self.scale,
                self.logits_soft_cap,
            )
            output[trees.real_rows] = attended.flatten(0, 1)[trees.real].to(output.dtype)


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
        query: ``[B, N, query_heads, head_size]``.
        key: ``[B, N, kv_heads, head_size]``.
        value: as ``key``.
        kv_cache: ``[num_blocks, kv_heads, block_size, 2 * head_size]``.
        layout: of a block.
        trees: what each node sees.
        scale: factor of the scores.
        soft_cap: ``cap * tanh(score / cap)``; 0 for none.

    Returns:
        float32 ``[B, N, query_heads, head_size]``; padding rows are of no meaning.
    """
    num_kv_heads = key.shape[2]
    width, blocks = query.shape[1], (trees.block_ids.shape[1], kv_cache.shape[2])
    # [B, M, H, 2, block_size * head_size] -> keys [B, M, H, D, block_size], values [B, M, H, block_size, D]
    raw = kv_cache.view(kv_cache.shape[0], num_kv_heads, 2, -1)[trees.block_ids].float()
    prefix_keys, prefix_values = layout.keys(raw[:, :, :, 0]), layout.values(raw[:, :, :, 1])
    # [B, N, H, G, D] -> [B, H, N * G, D]
    groups = (query.float() * scale).unflatten(2, (num_kv_heads, -1))
    queries = groups.transpose(1, 2).flatten(2, 3)
    # block by block, so that what was read of the cache is not copied once more
    prefix_scores = (queries[:, None] @ prefix_keys).permute(0, 2, 3, 1, 4).flatten(3)
    scores = torch.cat([prefix_scores, queries @ key.float().permute(0, 2, 3, 1)], dim=-1)
    if soft_cap:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    scores.unflatten(2, (width, -1)).masked_fill_(trees.hidden, float("-inf"))
    weights = scores.softmax(-1)
    num_prefix = prefix_scores.shape[-1]
    by_block = weights[..., :num_prefix].unflatten(-1, blocks).permute(0, 3, 1, 2, 4)
    attended = (by_block @ prefix_values).sum(1)
    attended += weights[..., num_prefix:] @ value.float().transpose(1, 2)
    return attended.unflatten(2, (width, -1)).transpose(1, 2).flatten(2, 3)
