"""From a transformers model to a checked target."""

from __future__ import annotations

from typing import Any, Literal

from treedecode.engines.fused import FusedDecoder, unfused_reason
from treedecode.engines.hf_forward import TransformersDecoder, refuse_unsupported
from treedecode.engines.probe import check_against, check_trees, reference_logits
from treedecode.engines.target import Target, UnsupportedModelError, check_autocast

Implementation = Literal["auto", "fused", "transformers"]


def build_target(model: Any, consume: bool, implementation: Implementation = "auto") -> Target:
    """A checked :class:`Target` for a transformers model.

    Args:
        model: A transformers ``*ForCausalLM`` in eval mode.
        consume: The target may take the model's weights apart (packing frees them); the model must not be used after.
        implementation: "fused" and "transformers" insist on one; "auto" takes fused where the family has it and it
            gives the model's own logits.

    Raises:
        UnsupportedModelError: The model cannot verify trees, or not with the implementation asked for.
        ValueError: Unknown implementation; inside ``torch.autocast``.
    """
    if implementation not in ("auto", "fused", "transformers"):
        raise ValueError(f'implementation must be "auto", "fused" or "transformers", got {implementation!r}')
    check_autocast(model.device)
    refuse_unsupported(model)
    model_type = model.config.model_type
    target: Target | None = None
    if implementation != "transformers":
        reason = unfused_reason(model.config)
        if not reason:
            expected = reference_logits(model)
            reason = check_against(FusedDecoder(model, consume=False), expected)
            if not reason:
                target = FusedDecoder(model, consume=consume)
                if consume and (wrong := check_against(target, expected)):
                    raise UnsupportedModelError(
                        f"packing the linear layers of {model_type!r} went wrong: {wrong}"
                    )
        if target is None and implementation == "fused":
            raise UnsupportedModelError(f"no fused implementation for this model: {reason}")
    if target is None:
        target = TransformersDecoder(model, consume=consume)
        target.check_forward()
    check_trees(target, model_type)
    return target
