"""vLLM's Triton attention backend, with trees: tree rows are computed by our kernel, all others by vLLM's.

Registered by the worker as ``CUSTOM``. CUDA graphs hold the model between its attention layers (``PIECEWISE``), never
the attention itself: trees differ from step to step, and a replayed graph would see those it was captured with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor
from vllm.config.cache import CacheDType
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadata,
    TritonAttentionMetadataBuilder,
)

from treedecode.attention.paged import PackedTrees, PlacedTree, pack_trees
from treedecode.attention.paged_triton import tree_attention
from treedecode.vllm.layer import TreeBuilder, TreeImpl, TreeMetadata
from treedecode.vllm.step import StepTrees


class TreeTritonBackend(TritonAttentionBackend):
    """``TRITON_ATTN`` that knows trees. What trees do not have is refused by vLLM's own check of a chosen backend."""

    supported_kv_cache_dtypes: ClassVar[list[CacheDType]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[TritonAttentionImpl]:
        return TreeTritonImpl

    @staticmethod
    def get_builder_cls() -> type[TritonAttentionMetadataBuilder]:
        return TreeTritonMetadataBuilder

    @classmethod
    def supports_sink(cls) -> bool:
        return False

    @classmethod
    def supports_alibi_sqrt(cls) -> bool:
        return False

    @classmethod
    def supports_mm_prefix(cls) -> bool:
        return False

    @classmethod
    def supports_rswa(cls) -> bool:
        return False

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER


@dataclass
class TreeTritonMetadata(TreeMetadata, TritonAttentionMetadata):
    """Metadata of a step with trees.

    Attributes:
        step: the trees.
        linear: of the rows that belong to no tree; None if there are none.
        packed: the trees as the kernel reads them.
    """

    step: StepTrees = field(kw_only=True)
    linear: TritonAttentionMetadata | None = field(kw_only=True)
    packed: PackedTrees = field(kw_only=True)


class TreeTritonMetadataBuilder(TreeBuilder, TritonAttentionMetadataBuilder):
    """Builds ``TreeTritonMetadata`` for steps with trees."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    def with_trees(self, whole: Any, step: StepTrees, linear: Any) -> TreeTritonMetadata:
        placed = [
            PlacedTree(rows.request, rows.first_row, rows.prefix_len, rows.tree.shape) for rows in step.trees
        ]
        packed = pack_trees(placed, whole.block_table.device)
        return TreeTritonMetadata(**vars(whole), step=step, linear=linear, packed=packed)


class TreeTritonImpl(TreeImpl, TritonAttentionImpl):
    """Attention of one layer; refuses a quantised cache and chunked attention, too."""

    def unsupported(self) -> dict[str, bool]:
        return {
            **super().unsupported(),
            "a quantised KV cache (set --kv-cache-dtype auto)": self.kv_cache_dtype
            not in TreeTritonBackend.supported_kv_cache_dtypes,
            "chunked attention": self.chunk_lookback >= 0,
        }

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        return False

    @property
    def window(self) -> int | None:
        # vLLM keeps the tokens before the query
        return self.sliding_window[0] + 1 if self.sliding_window[0] >= 0 else None

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
        # [num_blocks, kv_heads, block_size, 2 * head_size] -> [num_blocks, block_size, kv_heads, head_size] twice
        key_cache, value_cache = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        tree_attention(
            query,
            key,
            value,
            key_cache,
            value_cache,
            metadata.block_table,
            metadata.packed,
            output,
            self.scale,
            self.window,
            self.logits_soft_cap,
        )
