"""How far rounding can move a logit: measured, with a bound above which it is no rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Where computing the same logits in other numbers of rows moves them further than this, something is broken.
_MOST = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
# Two logits are compared, computed in two ways each.
_FACTOR = 4.0


def most_rounding(dtype: torch.dtype) -> float:
    """The largest tolerance that a measurement may justify."""
    return _MOST.get(dtype, _MOST[torch.float32])


@dataclass(frozen=True)
class Rounding:
    """What was measured at one position.

    Attributes:
        noise: Largest difference of a leading logit between passes in different numbers of rows.
        scale: Largest leading logit, absolute.
        dtype: Of the computation.
    """

    noise: float
    scale: float
    dtype: torch.dtype

    @property
    def tolerance(self) -> float:
        """Gap below which rounding can swap two tokens: 4 times the noise, at least one unit in the last place."""
        unit = torch.finfo(self.dtype).eps * self.scale
        return min(max(_FACTOR * self.noise, unit), most_rounding(self.dtype))
