"""Walks a recording as the decode loop would: draft, cut, accept what the output says, go on after it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from treedecode.budget import AUTO_MAX_DRAFTED, BudgetPlanner
from treedecode.reliability import Reliability
from treedecode.replay.recording import Recording, follow
from treedecode.replay.strategies import Strategy
from treedecode.surface import Cost
from treedecode.tree import DraftTree

# A budget that cuts nothing.
WHOLE = 1 << 30


@dataclass(frozen=True)
class Walk:
    """One recording, walked with one strategy.

    Attributes:
        recording: Its name.
        prompt_len: Its prompt tokens.
        num_drafted: Drafted nodes of every step.
        num_accepted: Accepted nodes of every step.
        num_emitted: Emitted tokens of every step.
        reliability: Said reach of the drafted nodes against what happened; empty where trees have no scores.
    """

    recording: str
    prompt_len: int
    num_drafted: tuple[int, ...]
    num_accepted: tuple[int, ...]
    num_emitted: tuple[int, ...]
    reliability: Reliability = field(default_factory=Reliability, compare=False)

    @property
    def num_steps(self) -> int:
        """Forward passes after the prompt's."""
        return len(self.num_emitted)

    def ms(self, cost: Cost, draft_ms: float = 0.0) -> float:
        """Milliseconds of all steps.

        Args:
            cost: Of a forward pass.
            draft_ms: Added to every step.
        """
        total, prefix_len = 0.0, self.prompt_len
        for drafted, emitted in zip(self.num_drafted, self.num_emitted, strict=True):
            total += cost.at(prefix_len).ms(1 + drafted) + draft_ms
            prefix_len += emitted
        return total


def walk(recording: Recording, strategy: Strategy, budget: int | None, cost: Cost | None = None) -> Walk:
    """Replays one recording without a model.

    The output is the recorded one whatever is drafted, so its tokens say what is accepted, greedy and sampled alike.
    Trees are cut as live: to the budget, to the depth that can still be emitted, and with ``budget=None`` to the size
    that pays. At a stop token a walk ends as live.

    Args:
        recording: What was recorded.
        strategy: Who drafts.
        budget: Drafted nodes per step, or None for as many as pay.
        cost: Milliseconds of a forward pass; for ``budget=None``.

    Raises:
        ValueError: No budget and no cost, or the recording has no tree where the strategy needs one.
    """
    if budget is None and cost is None:
        raise ValueError('budget "auto" needs a cost curve, got None')
    planner = BudgetPlanner(cost) if budget is None and cost is not None else None
    widest = AUTO_MAX_DRAFTED if budget is None else budget
    strategy.begin(recording)
    output, prompt_len = recording.output_ids, len(recording.prompt_ids)
    drafted, accepted, emitted = [], [], []
    reliability = Reliability()
    position = 0
    while position < recording.num_positions:
        max_depth = recording.max_emitted - position - 2
        if widest and max_depth > 0:
            tree = strategy.propose(position, widest, max_depth).prefix(widest).within_depth(max_depth)
            tree = tree if planner is None else planner.cut(tree, prompt_len + position)
        else:
            tree = DraftTree.root_only(output[position])
        rest = output[position + 1 :]
        path = follow(tree, rest)
        strategy.observe(position, tree, path)
        if planner is not None:
            planner.record(tree, path)
        _record_reach(reliability, tree, path, len(rest))
        drafted.append(tree.num_drafted)
        accepted.append(len(path) - 1)
        emitted.append(min(len(path), len(rest)))
        position += emitted[-1]
    return Walk(
        recording.name,
        prompt_len,
        tuple(drafted),
        tuple(accepted),
        tuple(emitted),
        reliability,
    )


def _record_reach(reliability: Reliability, tree: DraftTree, path: list[int], num_known: int) -> None:
    scores = tree.scores
    if scores is None:
        return
    on_path = set(path)
    for node in range(1, tree.num_nodes):
        if tree.shape.depth_tuple[node] <= num_known:  # beyond the end nothing is known
            reliability.add(math.exp(min(0.0, scores[node])), node in on_path)


def mean_emitted(walks: Iterable[Walk]) -> float:
    """E[L]: emitted tokens per step over all walks (0.0 without a step)."""
    walks = list(walks)
    num_steps = sum(one.num_steps for one in walks)
    return sum(sum(one.num_emitted) for one in walks) / num_steps if num_steps else 0.0
