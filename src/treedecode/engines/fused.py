"""Decoder layers of the common families with the eager overhead taken out.

The same arithmetic as transformers' modelling code with fewer and larger operations: query, key and value are one
product, gate and up another; query and key are normalised and rotated together; keys and values go straight to
their cache rows. ``probe.check_against`` compares it with the model it was made from before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treedecode.attention.grouped import grouped_attention
from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.head import Head, choose_head
from treedecode.engines.kernels import Kernels, choose_kernels
from treedecode.engines.linear import Linear, main_kind
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target

# Rotary types whose angles depend on the current length: no table can be made ahead for those.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


@dataclass(frozen=True)
class Family:
    """How a model family differs from Llama."""

    norm_offset: float = 0.0  # RMSNorm multiplies by offset + weight
    qk_norm: bool = False  # RMSNorm on every query and key head
    sandwich_norm: bool = False  # norms after attention and after the MLP, before the residual is added


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
            self._layers.append(_FusedLayer(layer, family, heads, spec, rope_key, kernels, consume))
        # the norm before every layer, and the one after the last
        norms = [layer.input_layernorm for layer in inner.layers] + [inner.norm]
        self._norms = [_norm_weight(norm, family) for norm in norms]
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
            _free(model.lm_head)
        self.head_kind = self._head.kind
        self._tables: dict[str | None, tuple[Tensor, Tensor]] = {}

    def forward(self, step: StepInput, cache: KVCache, keep_rows: int | None = None) -> Tensor:
        hidden = F.embedding(step.token_ids, self._embedding)
        if self._embedding_scale is not None:
            hidden = hidden * self._embedding_scale
        rotations = self._rotations(step, cache.capacity)
        normed = F.rms_norm(hidden, self._norms[0].shape, self._norms[0], self._eps)
        for index, layer in enumerate(self._layers):
            rotation = rotations[layer.rope_key]
            normed = layer(hidden, normed, rotation, step, *cache.layer(index), self._norms[index + 1])
        return normed if keep_rows is None else normed[-keep_rows:]

    def logits(self, features: Tensor) -> Tensor:
        return self._head.logits(features)

    def top(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return self._head.top(features, count)

    def _rotations(self, step: StepInput, capacity: int) -> dict[str | None, tuple[Tensor, Tensor]]:
        """Cosine and signed sine rows ``[N, 1, head_dim]`` of the step's positions, per kind of layer."""
        rows = {}
        for key in set(self._rope_key or [None]):
            if key not in self._tables or self._tables[key][0].shape[0] < capacity:
                self._tables[key] = self._rotary_table(key, capacity)
            cos, sin = self._tables[key]
            rows[key] = (cos.index_select(0, step.position_ids), sin.index_select(0, step.position_ids))
        return rows

    def _rotary_table(self, key: str | None, capacity: int) -> tuple[Tensor, Tensor]:
        positions = torch.arange(capacity, device=self.device)[None]
        like = self._embedding[:1]
        cos, sin = self._rotary(like, positions) if key is None else self._rotary(like, positions, key)
        half = sin.shape[-1] // 2
        signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)  # times rolled halves = rotate_half
        return cos[0].unsqueeze(1).contiguous(), signed[0].unsqueeze(1).contiguous()


class _FusedLayer:
    """One decoder layer on ``[N, hidden]`` rows."""

    def __init__(
        self,
        layer: Any,
        family: Family,
        heads: int,
        spec: LayerSpec,
        rope_key: str | None,
        kernels: Kernels,
        consume: bool,
    ) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.rope_key = rope_key
        self._spec, self._heads, self._scale, self._kernels = spec, heads, attention.scaling, kernels
        self._qkv = _join([attention.q_proj, attention.k_proj, attention.v_proj], consume)
        self._out = _join([attention.o_proj], consume)
        self._gate_up = _join([mlp.gate_proj, mlp.up_proj], consume)
        self._down = _join([mlp.down_proj], consume)
        self.linears = [self._qkv, self._out, self._gate_up, self._down]
        self._activation: Callable[[Tensor], Tensor] = mlp.act_fn
        self._eps = (
            layer.input_layernorm.eps if family.norm_offset else layer.input_layernorm.variance_epsilon
        )
        after = layer.post_attention_layernorm
        self._attention_norm = _norm_weight(after, family) if family.sandwich_norm else None
        before_mlp = layer.pre_feedforward_layernorm if family.sandwich_norm else after
        self._mlp_norm = _norm_weight(before_mlp, family)
        self._output_norm = (
            _norm_weight(layer.post_feedforward_layernorm, family) if family.sandwich_norm else None
        )
        self._qk_weight: Tensor | None = None
        if family.qk_norm:  # one row per query and key head, so both are scaled in one product
            query, key = _norm_weight(attention.q_norm, family), _norm_weight(attention.k_norm, family)
            self._qk_weight = torch.stack([query] * heads + [key] * spec.num_kv_heads)

    def __call__(
        self,
        hidden: Tensor,
        normed: Tensor,
        rotation: tuple[Tensor, Tensor],
        step: StepInput,
        keys: Tensor,
        values: Tensor,
        next_norm: Tensor,
    ) -> Tensor:
        """Adds this layer to ``hidden`` in place; ``normed`` is its norm, and so is what is returned for the next."""
        spec, kernels = self._spec, self._kernels
        heads = self._qkv(normed).view(step.num_rows, -1, spec.head_dim)
        query = kernels.rotate_and_store(
            heads, self._qk_weight, *rotation, self._eps, self._heads, keys, values, step.prefix_len
        )
        group = self._heads // spec.num_kv_heads
        start, mask = step.view(spec.window, group)
        seen = slice(start, step.prefix_len + step.num_rows)
        mixed = grouped_attention(query, keys[:, seen], values[:, seen], mask, self._scale, group)
        mixed = self._out(mixed)
        normed = kernels.add_norm(hidden, mixed, self._attention_norm, self._mlp_norm, self._eps)
        gate, up = self._gate_up(normed).chunk(2, dim=-1)
        mixed = self._down(self._activation(gate) * up)
        return kernels.add_norm(hidden, mixed, self._output_norm, next_norm, self._eps)


def _norm_weight(norm: Any, family: Family) -> Tensor:
    return (
        norm.weight.detach() + family.norm_offset
    )  # always a new tensor: it must not hold the checkpoint's file


def _embedding_scale(embedding: nn.Module, family: Family) -> Tensor | None:
    return embedding.embed_scale.to(embedding.weight.dtype) if family.norm_offset else None  # type: ignore[union-attr]


def _join(linears: list[Any], consume: bool) -> Linear:
    joined = Linear([linear.weight for linear in linears], [linear.bias for linear in linears], pack=consume)
    if consume:
        for linear in linears:
            _free(linear)
    return joined


def _free(linear: Any) -> None:
    linear.weight = nn.Parameter(torch.empty(0, device="meta"), requires_grad=False)
