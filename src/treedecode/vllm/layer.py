"""What the tree attention of all devices shares: rows that belong to no tree go to vLLM's own attention."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata

from treedecode.vllm.step import StashedKV, StepTrees

if TYPE_CHECKING:
    from vllm.v1.attention.backend import AttentionImpl as _Impl
    from vllm.v1.attention.backend import AttentionMetadataBuilder as _Builder
else:
    _Impl = _Builder = object


class TreeMetadata:
    """To stand before the metadata class of a vLLM backend: metadata of a step with trees.

    Attributes:
        step: the trees.
        linear: vLLM's metadata of the rows that belong to no tree; None if there are none.
        slot_mapping: slots of all rows.
    """

    step: StepTrees
    linear: Any
    slot_mapping: Tensor


class TreeBuilder(_Builder):
    """To stand before a metadata builder of vLLM: adds the step's trees, which the runner sets before it builds."""

    step: StepTrees | None = None

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Any:
        stock: Any = super()
        whole = stock.build(common_prefix_len, common_attn_metadata, fast_build)
        if self.step is None:
            return whole
        common = self.step.linear_metadata(common_attn_metadata)
        linear = None if common is None else stock.build(common_prefix_len, common, fast_build)
        return self.with_trees(whole, self.step, linear)

    @abstractmethod
    def with_trees(self, whole: Any, step: StepTrees, linear: Any) -> TreeMetadata:
        """Metadata of the step.

        Args:
            whole: vLLM's, of all rows.
            step: the trees.
            linear: vLLM's, of the rows that belong to no tree.
        """


class TreeImpl(_Impl):
    """To stand before vLLM's attention of one layer.

    Raises:
        ValueError: the layer needs what tree attention does not have.
    """

    attn_type: str
    logits_soft_cap: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        stock: Any = super()
        stock.__init__(*args, **kwargs)
        if found := [name for name, present in self.unsupported().items() if present]:
            raise ValueError(
                f"trees do not support {', '.join(found)}: run this model without treedecode's --worker-cls"
            )

    def unsupported(self) -> dict[str, bool]:
        """What trees do not have, by name, and whether the layer needs it."""
        layer: Any = self
        return {
            "ALiBi": layer.alibi_slopes is not None,
            "attention sinks": layer.sinks is not None,
            "layers that share another layer's KV cache": layer.kv_sharing_target_layer_name is not None,
        }

    @property
    @abstractmethod
    def window(self) -> int | None:
        """Tokens of the layer's sliding window, the query's own included; None if it has none."""

    @abstractmethod
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
        """Write the tree rows of ``output``; all tensors have the rows of the whole step."""

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """vLLM's call."""
        stock: Any = super()
        if not isinstance(attn_metadata, TreeMetadata) or self.attn_type != AttentionType.DECODER:
            return stock.forward(
                layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
            )
        step = attn_metadata.step
        if attn_metadata.linear is not None:
            rows = step.linear_rows
            part = torch.empty_like(output[: len(rows)])
            stock.forward(layer, query[rows], key[rows], value[rows], kv_cache, attn_metadata.linear, part)
            output[rows] = part
        step.stash[layer.layer_name] = StashedKV(
            self, layer, kv_cache, key[step.rows], value[step.rows], attn_metadata.slot_mapping
        )
        self.attend_trees(layer, query, key, value, kv_cache, attn_metadata, output)
        return output
