"""What a generation cost and what it gave, step by step."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from treedecode.guard import ModeChange


@dataclass(frozen=True)
class GenerationStats:
    """Counts and times of one generation.

    Attributes:
        num_prompt_tokens: Tokens of the prompt.
        num_emitted: Tokens emitted; always ``len(token_ids)``.
        num_forward_passes: Target forward passes, prefill chunks included.
        num_steps: Forward passes after prefill.
        num_drafted: Drafted nodes verified over all steps.
        num_accepted: Drafted nodes whose token was emitted.
        nodes_per_step: Drafted nodes of every step.
        emitted_per_step: Tokens of every step.
        prefill_ms: Until the first token; in a batch from when the request's turn came.
        decode_ms: From the first token to the last; in a batch the steps that the request was part of, each whole.
        draft_ms: Part of ``decode_ms`` spent drafting and choosing the tree size.
        prepare_ms: ... spent on positions and masks.
        forward_ms: ... spent in the layers of the target.
        head_ms: ... spent on the vocabulary head, the target's choices and its top candidates.
        commit_ms: ... spent walking the tree and compacting the cache.
        guard_changes: When the guard took another mode (trees, chains, nothing drafted), and why; empty without one,
            and in a batch, whose guards are those of batch sizes.
    """

    num_prompt_tokens: int
    num_emitted: int
    num_forward_passes: int
    num_steps: int
    num_drafted: int
    num_accepted: int
    nodes_per_step: tuple[int, ...]
    emitted_per_step: tuple[int, ...]
    prefill_ms: float
    decode_ms: float
    draft_ms: float
    prepare_ms: float
    forward_ms: float
    head_ms: float
    commit_ms: float
    guard_changes: tuple[ModeChange, ...] = ()

    @property
    def total_ms(self) -> float:
        """Prefill and decode."""
        return self.prefill_ms + self.decode_ms

    @property
    def mean_emitted_per_step(self) -> float:
        """E[L]: tokens emitted per target forward pass after prefill (0.0 without one)."""
        return sum(self.emitted_per_step) / self.num_steps if self.num_steps else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Decode speed: tokens after the first, per second of ``decode_ms`` (0.0 where no step was needed)."""
        return 1e3 * sum(self.emitted_per_step) / self.decode_ms if self.decode_ms and self.num_steps else 0.0

    @property
    def steps_by_size(self) -> dict[int, int]:
        """Number of steps by their drafted nodes, smallest size first."""
        return dict(sorted(Counter(self.nodes_per_step).items()))

    @property
    def num_steps_without_tree(self) -> int:
        """Steps in which nothing drafted was verified."""
        return self.nodes_per_step.count(0)

    @property
    def median_drafted(self) -> float:
        """Drafted nodes of the median step (0.0 without one)."""
        return float(median(self.nodes_per_step)) if self.nodes_per_step else 0.0


PHASES = ("draft", "prepare", "forward", "head", "commit")


class StepClock:
    """Times the phases of one step."""

    step_ms: dict[str, float]

    def begin_step(self) -> None:
        """Starts the clock of a step."""
        self.step_ms = {}
        self._mark = time.perf_counter()

    def end_phase(self, phase: str) -> None:
        """Books the time since the last mark under ``phase``."""
        now = time.perf_counter()
        self.step_ms[phase] = self.step_ms.get(phase, 0.0) + 1e3 * (now - self._mark)
        self._mark = now


@dataclass
class StatsBuilder(StepClock):
    """Collects the numbers while a generation runs; steps of a batch are timed by a clock that its requests share."""

    num_prompt_tokens: int
    num_emitted: int = 0
    num_prefill_passes: int = 0
    num_accepted: int = 0
    nodes_per_step: list[int] = field(default_factory=list)
    emitted_per_step: list[int] = field(default_factory=list)
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    phase_ms: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    step_ms: dict[str, float] = field(default_factory=dict)
    guard_changes: tuple[ModeChange, ...] = ()

    def end_step(self, num_drafted: int, num_accepted: int, num_emitted: int) -> None:
        """Books a whole step."""
        for phase, ms in self.step_ms.items():
            self.phase_ms[phase] += ms
        self.decode_ms += sum(self.step_ms.values())
        self.nodes_per_step.append(num_drafted)
        self.emitted_per_step.append(num_emitted)
        self.num_accepted += num_accepted
        self.num_emitted += num_emitted

    def build(self, num_emitted: int) -> GenerationStats:
        """The record for the ``num_emitted`` tokens that the caller took: a stop string cuts the last step short.

        Changes nothing: it may be asked for between steps, too.
        """
        extra = max(0, self.num_emitted - num_emitted) if self.emitted_per_step else 0
        emitted_per_step = self.emitted_per_step[:-1] + [n - extra for n in self.emitted_per_step[-1:]]
        return GenerationStats(
            num_prompt_tokens=self.num_prompt_tokens,
            num_emitted=self.num_emitted - extra,
            num_forward_passes=self.num_prefill_passes + len(self.nodes_per_step),
            num_steps=len(self.nodes_per_step),
            num_drafted=sum(self.nodes_per_step),
            num_accepted=self.num_accepted - min(extra, self.num_accepted),
            nodes_per_step=tuple(self.nodes_per_step),
            emitted_per_step=tuple(emitted_per_step),
            prefill_ms=self.prefill_ms,
            decode_ms=self.decode_ms,
            guard_changes=self.guard_changes,
            **{f"{phase}_ms": self.phase_ms[phase] for phase in PHASES},
        )
