"""Faults in the functions of the core, one each; signatures as of what they replace."""

from __future__ import annotations

import torch
from torch import Tensor

from treedecode import traversal
from treedecode.drawing import normalised

_entry_weight, _remainder = traversal.entry_weight, traversal.remainder

# ---- rejection: accepts(uniforms, target, draft), residual(target, draft), without(draft, token)


def accept_or_equal(uniforms: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    return uniforms * draft <= target


def inverted_ratio(uniforms: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    return uniforms * target < draft


def accept_undrawn(uniforms: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    return uniforms * draft < target


def residual_as_it_is(target: Tensor, draft: Tensor) -> Tensor:
    return (target - draft).clamp(min=0)


def softmaxed_residual(target: Tensor, draft: Tensor) -> Tensor:
    return (target - draft).clamp(min=0).softmax(-1)


def absolute_residual(target: Tensor, draft: Tensor) -> Tensor:
    return normalised((target - draft).abs())


def no_residual(target: Tensor, draft: Tensor) -> Tensor:
    return target


def not_renormalised(draft: Tensor, token: Tensor) -> Tensor:
    return draft.scatter(1, token[:, None], 0.0)


def unchanged(draft: Tensor, token: Tensor) -> Tensor:
    return draft


# ---- traversal: accepts(uniforms, weight), entry_weight and remainder(weight, target, draft)


def judged_or_equal(uniforms: Tensor, weight: Tensor) -> Tensor:
    return uniforms <= weight


def path_weight_forgotten(weight: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    return _entry_weight(torch.ones_like(weight), target, draft)


def weight_not_updated(weight: Tensor, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    return _remainder(weight, target, draft)[0], weight


def residual_of_the_token(weight: Tensor, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    plain = _remainder(torch.ones_like(weight), target, draft)[0]
    return plain, _remainder(weight, target, draft)[1]


# ---- the last token: draw(weights, uniforms)


def greedy_draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    return weights.argmax(-1)


def first_reaching(weights: Tensor, uniforms: Tensor) -> Tensor:
    cumulative = weights.cumsum(-1)
    return torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:])[:, 0]
