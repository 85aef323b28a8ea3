"""One decoder layer with the eager overhead taken out, on the rows of one step or of several requests' steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from treedecode.attention.grouped import grouped_attention
from treedecode.engines.cache import LayerSpec
from treedecode.engines.kernels import Kernels
from treedecode.engines.linear import Linear
from treedecode.engines.step import StepInput


@dataclass(frozen=True)
class Family:
    """How a model family differs from Llama."""

    norm_offset: float = 0.0  # RMSNorm multiplies by offset + weight
    qk_norm: bool = False  # RMSNorm on every query and key head
    sandwich_norm: bool = False  # norms after attention and after the MLP, before the residual is added


class FusedLayer:
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
        self._attention_norm = norm_weight(after, family) if family.sandwich_norm else None
        before_mlp = layer.pre_feedforward_layernorm if family.sandwich_norm else after
        self._mlp_norm = norm_weight(before_mlp, family)
        self._output_norm = (
            norm_weight(layer.post_feedforward_layernorm, family) if family.sandwich_norm else None
        )
        self._qk_weight: Tensor | None = None
        if family.qk_norm:  # one row per query and key head, so both are scaled in one product
            query, key = norm_weight(attention.q_norm, family), norm_weight(attention.k_norm, family)
            self._qk_weight = torch.stack([query] * heads + [key] * spec.num_kv_heads)

    def __call__(
        self,
        hidden: Tensor,
        normed: Tensor,
        rotations: Sequence[tuple[Tensor, Tensor]],
        steps: Sequence[StepInput],
        stores: Sequence[tuple[Tensor, Tensor]],
        next_norm: Tensor,
    ) -> Tensor:
        """Adds this layer to ``hidden`` in place; ``normed`` is its norm, and so is what is returned for the next.

        The rows of all steps stand one after the other. Only attention tells the steps apart: each has its cosines and
        sines in ``rotations`` and reads and writes its own keys and values in ``stores``.
        """
        kernels = self._kernels
        heads = self._qkv(normed).view(len(normed), -1, self._spec.head_dim)
        if len(steps) == 1:
            mixed = self._attend(heads, rotations[0], steps[0], *stores[0])
        else:
            parts = heads.split([step.num_rows for step in steps])
            of_steps = zip(parts, rotations, steps, stores, strict=True)
            mixed = torch.cat(
                [self._attend(part, turn, step, *store) for part, turn, step, store in of_steps]
            )
        mixed = self._out(mixed)
        normed = kernels.add_norm(hidden, mixed, self._attention_norm, self._mlp_norm, self._eps)
        gate, up = self._gate_up(normed).chunk(2, dim=-1)
        mixed = self._down(self._activation(gate) * up)
        return kernels.add_norm(hidden, mixed, self._output_norm, next_norm, self._eps)

    def _attend(
        self, heads: Tensor, rotation: tuple[Tensor, Tensor], step: StepInput, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Attention of one step from its joint projection, ``[N, heads, head_dim]``; stores its keys and values."""
        spec = self._spec
        query = self._kernels.rotate_and_store(
            heads, self._qk_weight, *rotation, self._eps, self._heads, keys, values, step.prefix_len
        )
        group = self._heads // spec.num_kv_heads
        start, mask = step.view(spec.window, group)
        seen = slice(start, step.prefix_len + step.num_rows)
        return grouped_attention(query, keys[:, seen], values[:, seen], mask, self._scale, group)


def norm_weight(norm: Any, family: Family) -> Tensor:
    """What RMSNorm multiplies by; always a new tensor: it must not hold the checkpoint's file."""
    return norm.weight.detach() + family.norm_offset


def _join(linears: list[Any], consume: bool) -> Linear:
    joined = Linear([linear.weight for linear in linears], [linear.bias for linear in linears], pack=consume)
    if consume:
        for linear in linears:
            free_weight(linear)
    return joined


def free_weight(linear: Any) -> None:
    """Lets go of the weight of a linear layer, which cannot be used after that."""
    linear.weight = nn.Parameter(torch.empty(0, device="meta"), requires_grad=False)
