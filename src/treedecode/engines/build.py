"""From a transformers model to a checked target, and the cost of its steps on this machine."""

from __future__ import annotations

import statistics
import time
from typing import Any, Literal

import torch

from treedecode.cost import CostCurve
from treedecode.engines.fused import FusedDecoder, unfused_reason
from treedecode.engines.hf_forward import TransformersDecoder, refuse_unsupported
from treedecode.engines.loop import NUM_CANDIDATES
from treedecode.engines.probe import check_against, check_trees, reference_logits
from treedecode.engines.request import AUTO_MAX_DRAFTED
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target, UnsupportedModelError

Implementation = Literal["auto", "fused", "transformers"]
_COST_ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 1 + AUTO_MAX_DRAFTED)
_COST_PREFIX = 64
_COST_REPEATS = 3


def build_target(model: Any, consume: bool, implementation: Implementation = "auto") -> Target:
    """A checked :class:`Target` for a transformers model.

    Args:
        model: A transformers ``*ForCausalLM`` in eval mode.
        consume: The target may take the model's weights apart (packing frees them); the model must not be used after.
        implementation: "fused" and "transformers" insist on one; "auto" takes fused where the family has it and it
            gives the model's own logits.

    Raises:
        UnsupportedModelError: The model cannot verify trees, or not with the implementation asked for.
        ValueError: Unknown implementation.
    """
    if implementation not in ("auto", "fused", "transformers"):
        raise ValueError(f'implementation must be "auto", "fused" or "transformers", got {implementation!r}')
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


@torch.inference_mode()
def measure_cost(target: Target) -> CostCurve:
    """Milliseconds of a step by number of rows, on this machine as it is now: medians of a few runs of each.

    About two seconds for the default model on two cores. Vocabulary head and candidate search included.
    """
    cache = target.new_cache(_COST_PREFIX + max(_COST_ROWS))
    cache.length = _COST_PREFIX
    times: dict[int, list[float]] = {rows: [] for rows in _COST_ROWS}
    for repeat in range(_COST_REPEATS + 1):
        for rows in _COST_ROWS:
            began = time.perf_counter()
            tokens = [token % target.vocab_size for token in range(1, rows + 1)]
            step = StepInput.of_chain(tokens, _COST_PREFIX, target.device, target.dtype)
            target.top(target.forward(step, cache), min(NUM_CANDIDATES, target.vocab_size))[1].cpu()
            if repeat:  # the first round warms up
                times[rows].append(1e3 * (time.perf_counter() - began))
    return CostCurve.fit(_COST_ROWS, [statistics.median(times[rows]) for rows in _COST_ROWS])
