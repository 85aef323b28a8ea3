"""What a generation took, for people and for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import treedecode as td

if TYPE_CHECKING:
    from treedecode.engines.stats import GenerationStats
    from treedecode.guard import ModeChange


@dataclass(frozen=True)
class Comparison:
    """One prompt decoded with trees and plainly."""

    trees: td.Generation
    plain: td.Generation

    @property
    def identical(self) -> bool:
        """Whether both emitted the same tokens."""
        return self.trees.token_ids == self.plain.token_ids

    @property
    def first_difference(self) -> int | None:
        """Output position of the first token that differs."""
        if self.identical:
            return None
        # here, not above: other commands need not load it
        from treedecode.verify.results import first_difference

        return first_difference(self.trees.token_ids, self.plain.token_ids)

    @property
    def speed_ratio(self) -> float | None:
        """Decode tokens per second, trees over plain; None where the output is too short to tell."""
        speeds = self.trees.stats.tokens_per_s, self.plain.stats.tokens_per_s
        return speeds[0] / speeds[1] if all(speeds) else None


def closing_line(generation: td.Generation) -> str:
    """Counts, speed and tree sizes of one generation, on one line."""
    stats = generation.stats
    return (
        f"{stats.num_emitted} tokens ({generation.finish_reason}), {stats.tokens_per_s:.1f} tokens/s, "
        f"E[L] {stats.mean_emitted_per_step:.2f}, {stats.num_drafted} drafted and {stats.num_accepted} accepted nodes, "
        f"{stats.num_forward_passes} forward passes{_sizes(stats)}"
    )


def batch_line(generations: Sequence[td.Generation], seconds: float) -> str:
    """What several generations took together: those that were begun."""
    begun = [one for one in generations if one.token_ids or one.finish_reason != "interrupted"]
    num_tokens = sum(len(one.token_ids) for one in begun)
    num_steps = sum(one.stats.num_steps for one in begun)
    after_prompt = sum(sum(one.stats.emitted_per_step) for one in begun)
    reasons = Counter(one.finish_reason for one in begun)
    ends = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    line = f"{len(begun)} of {len(generations)} outputs{f' ({ends})' if ends else ''}"
    line += f", {num_tokens} tokens in {seconds:.1f} s"
    if seconds > 0:
        line += f", {num_tokens / seconds:.1f} tokens/s together, prompts included"
    return line + (f", E[L] {after_prompt / num_steps:.2f}" if num_steps else "")


def _sizes(stats: GenerationStats) -> str:
    """The chosen sizes and what the guard did; nothing for plain decoding."""
    if not stats.num_drafted and not stats.guard_changes:
        return ""
    low, high = min(stats.nodes_per_step), max(stats.nodes_per_step)
    text = f"; {stats.median_drafted:g} nodes a step ({low} to {high})"
    if stats.num_steps_without_tree:
        text += f", {stats.num_steps_without_tree} of {stats.num_steps} steps without a tree"
    modes = [f"{change.mode} from step {change.step}: {change.reason}" for change in _lasting(stats)]
    return text + (f"; guard: {', '.join(modes)}" if modes else "")


def _lasting(stats: GenerationStats) -> list[ModeChange]:
    """Changes of the guard, without the few plain steps that it measures now and then."""
    changes, mode = [], "tree"
    for change in stats.guard_changes:
        if not change.measures and change.mode != mode:
            changes.append(change)
            mode = change.mode
    return changes


def comparison_lines(comparison: Comparison) -> list[str]:
    """Both generations and the verdict."""
    if comparison.identical:
        verdict = "identical output"
    else:
        verdict = f"NOT identical: output token {comparison.first_difference} is the first that differs"
    ratio = comparison.speed_ratio
    speed = "too short to compare speeds" if ratio is None else f"{ratio:.2f}x the speed of plain decoding"
    return [
        f"trees: {closing_line(comparison.trees)}",
        f"plain: {closing_line(comparison.plain)}",
        f"{verdict}, {speed}",
    ]


def to_json(
    model: td.LoadedModel,
    prompt: str,
    options: dict[str, Any],
    generation: td.Generation,
    comparison: Comparison | None,
) -> dict[str, Any]:
    """All of it as plain data; ``comparison`` is null without --compare."""
    return {
        "treedecode_version": td.__version__,
        "model": str(model.path),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "implementation": model.implementation,
        "linear": model.linear,
        "cost_source": model.cost_source,
        "prompt": prompt,
        "options": options,
        **_generation_json(generation),
        "comparison": comparison
        and {
            "identical": comparison.identical,
            "first_difference": comparison.first_difference,
            "speed_ratio": comparison.speed_ratio,
            "plain": _generation_json(comparison.plain),
        },
    }


def _generation_json(generation: td.Generation) -> dict[str, Any]:
    stats = generation.stats
    return {
        "text": generation.text,
        "token_ids": generation.token_ids,
        "finish_reason": generation.finish_reason,
        "logprobs": generation.logprobs and [asdict(token) for token in generation.logprobs],
        "stats": {
            **asdict(stats),
            "total_ms": stats.total_ms,
            "mean_emitted_per_step": stats.mean_emitted_per_step,
            "tokens_per_s": stats.tokens_per_s,
            "median_drafted": stats.median_drafted,
            "steps_by_size": stats.steps_by_size,
            "num_steps_without_tree": stats.num_steps_without_tree,
        },
    }
