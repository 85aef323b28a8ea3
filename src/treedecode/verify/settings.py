"""What to verify with, checked before any work is done."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from treedecode.drafters import make_drafter
from treedecode.drafters.base import Drafter
from treedecode.engines.params import SamplingParams, check_count
from treedecode.engines.request import check_budget

# Logprobs of two ways to compute the same may be this far apart, in nats.
LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Settings:
    """How prompts are continued, and how closely the results are looked at.

    Attributes:
        max_new_tokens: Tokens per output, at least 1.
        budget: Drafted nodes per step, at least 1, or "auto".
        drafter: As for ``treedecode.stream``.
        temperature: Of the sampled checks; 0 leaves them out. The greedy checks are always made.
        top_k, top_p, min_p: Of the sampled checks.
        repetition_penalty: Of all checks.
        seed: First seed of the sampled checks.
        num_seeds: Sampled outputs per prompt that are compared token for token, at least 1.
        num_draws: Tokens that are counted per prompt, at least 50.
        logprob_tolerance: Largest difference of a logprob; None for 0.001, or in lower precision than float32 for what
            rounding was measured to do where that is more.
        gap_tolerance: Largest logit gap of a near tie; None for what rounding was measured to do.

    Raises:
        TypeError, ValueError: A value breaks the rules above, or those of ``treedecode.stream``.
    """

    max_new_tokens: int = 64
    budget: int | Literal["auto"] = 16
    drafter: str | Drafter = "merged"
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    num_seeds: int = 1
    num_draws: int = 400
    logprob_tolerance: float | None = None
    gap_tolerance: float | None = None

    def __post_init__(self) -> None:
        check_count("max_new_tokens", self.max_new_tokens, 1)
        if check_budget(self.budget) == 0:
            raise ValueError("budget 0 is plain decoding, which has no trees to verify: expected at least 1")
        make_drafter(self.drafter)
        check_count("num_seeds", self.num_seeds, 1)
        check_count("num_draws", self.num_draws, 50)
        for name in ("logprob_tolerance", "gap_tolerance"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be at least 0, got {value}")
        self.sampling(self.seed)

    @property
    def samples(self) -> bool:
        """Whether the sampled checks are made."""
        return self.temperature > 0

    def sampling(self, seed: int) -> SamplingParams:
        """Of the sampled checks, with a seed."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=seed,
        )
