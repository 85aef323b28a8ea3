"""Decoder layers of the common families with the eager overhead taken out.

The same arithmetic as transformers' modelling code with fewer and larger operations: query, key and value are one
product, gate and up another; query and key are normalised and rotated together; keys and values go straight to
their cache rows. ``probe.check_against`` compares it with the model it was made from before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.fused_layer import Family, FusedLayer, free_weight, norm_weight
from treedecode.engines.head import Head, choose_head
from treedecode.engines.kernels import choose_kernels
from treedecode.engines.linear import Linear, main_kind
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target

# Rotary types whose angles depend on the current length: no table can be made ahead for those.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(qk_norm=True),
    "gemma3_text": Family(norm_offset=1.0, qk_norm=True, sandwich_norm=True),
}


def unfused_reason(config: Any) -> str:
    """Why a model with this transformers config cannot run here; empty when it can."""
    if config.model_type not in FAMILIES:
        return f"model type {config.model_type!r} is not one of {', '.join(sorted(FAMILIES))}"
    parameters = config.rope_parameters
    types = {parameters.get("rope_type")} | {
        p["rope_type"] for p in parameters.values() if isinstance(p, dict)
    }
    if types & _LENGTH_DEPENDENT_ROPE:
        return f"rotary type {', '.join(sorted(types & _LENGTH_DEPENDENT_ROPE))} depends on the length"
    return ""


def layer_windows(config: Any) -> list[int | None]:
    """The sliding window of every layer (None for full attention), from a transformers config."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


class FusedDecoder(Target):
    """A :class:`Target` for the families in ``FAMILIES``.

    Args:
        model: A transformers ``*ForCausalLM``.
        consume: Free each weight of ``model`` once it is packed; ``model`` is unusable afterwards. Without it the
            weights are shared and nothing is packed.
    """

    implementation = "fused"

    def __init__(self, model: Any, consume: bool) -> None:
        config, inner = model.config, model.model
        family = FAMILIES[config.model_type]
        embedding = inner.embed_tokens.weight
        self.dtype, self.device = embedding.dtype, embedding.device
        self.vocab_size = model.lm_head.weight.shape[0]
        self.max_positions = config.max_position_embeddings
        self._embedding_scale = _embedding_scale(inner.embed_tokens, family)
        self._rotary = inner.rotary_emb
        self._rope_key = getattr(config, "layer_types", None) if config.model_type == "gemma3_text" else None
        softcap = getattr(config, "final_logit_softcapping", None)
        heads, head_dim = config.num_attention_heads, inner.layers[0].self_attn.head_dim
        windows = layer_windows(config)
        self.layer_specs = [LayerSpec(config.num_key_value_heads, head_dim, window) for window in windows]
        kernels = choose_kernels(self.device, self.dtype)
        self._layers = []
        for index, layer in enumerate(inner.layers):
            rope_key = self._rope_key[index] if self._rope_key else None
            spec = self.layer_specs[index]
            self._layers.append(FusedLayer(layer, family, heads, spec, rope_key, kernels, consume))
        # the norm before every layer, and the one after the last
        norms = [layer.input_layernorm for layer in inner.layers] + [inner.norm]
        self._norms = [norm_weight(norm, family) for norm in norms]
        self._eps = config.rms_norm_eps
        linear = Linear([model.lm_head.weight], [model.lm_head.bias], pack=consume)
        self.linear_kind = main_kind([part for layer in self._layers for part in layer.linears])
        self._head = Head(linear, softcap)
        self._embedding = embedding.detach()
        if consume:
            # a copy of its own: the checkpoint's file mapping, all of it resident by now, goes with the model
            self._embedding = self._embedding.clone()
            tied = model.lm_head.weight is embedding
            if tied and linear.packed and softcap is None and model.lm_head.bias is None:
                self._head = choose_head(self._head, self._embedding)
            free_weight(model.lm_head)
        self.head_kind = self._head.kind
        self._tables: dict[str | None, tuple[Tensor, Tensor]] = {}

    def forward(self, step: StepInput, cache: KVCache, keep_rows: int | None = None) -> Tensor:
        normed = self.forward_batch([step], [cache])
        return normed if keep_rows is None else normed[-keep_rows:]

    def forward_batch(self, steps: Sequence[StepInput], caches: Sequence[KVCache]) -> Tensor:
        hidden = F.embedding(_joined([step.token_ids for step in steps]), self._embedding)
        if self._embedding_scale is not None:
            hidden = hidden * self._embedding_scale
        rotations = self._rotations(steps, max(cache.capacity for cache in caches))
        normed = F.rms_norm(hidden, self._norms[0].shape, self._norms[0], self._eps)
        for index, layer in enumerate(self._layers):
            stores = [cache.layer(index) for cache in caches]
            normed = layer(hidden, normed, rotations[layer.rope_key], steps, stores, self._norms[index + 1])
        return normed

    def logits(self, features: Tensor) -> Tensor:
        return self._head.logits(features)

    def top(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return self._head.top(features, count)

    def _rotations(
        self, steps: Sequence[StepInput], capacity: int
    ) -> dict[str | None, list[tuple[Tensor, Tensor]]]:
        """Cosine and signed sine rows ``[N, 1, head_dim]`` of every step's positions, per kind of layer."""
        positions = _joined([step.position_ids for step in steps])
        sizes = [step.num_rows for step in steps]
        rows = {}
        for key in set(self._rope_key or [None]):
            if key not in self._tables or self._tables[key][0].shape[0] < capacity:
                self._tables[key] = self._rotary_table(key, capacity)
            cos, sin = self._tables[key]
            parts = cos.index_select(0, positions).split(sizes), sin.index_select(0, positions).split(sizes)
            rows[key] = list(zip(*parts, strict=True))
        return rows

    def _rotary_table(self, key: str | None, capacity: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(capacity, device=self.device)[None]
        like = self._embedding[:1]
        cos, sin = self._rotary(like, positions) if key is None else self._rotary(like, positions, key)
        half = sin.shape[-1] // 2
        signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)  # times rolled halves = rotate_half
        return cos[0].unsqueeze(1).contiguous(), signed[0].unsqueeze(1).contiguous()


def _embedding_scale(embedding: nn.Module, family: Family) -> Tensor | None:
    return embedding.embed_scale.to(embedding.weight.dtype) if family.norm_offset else None  # type: ignore[union-attr]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))
