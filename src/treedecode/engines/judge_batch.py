"""Judging the rows of several requests: one vocabulary product for all of them, then each by its own rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from treedecode.engines.candidates import top_candidates
from treedecode.engines.judge import Verified, to_host
from treedecode.engines.state import RequestState, of_prompt
from treedecode.engines.target import Target
from treedecode.tree import DraftTree


class LogitRows:
    """A scorer of rows that have been scored: its features are their logits."""

    def __init__(self, target: Target) -> None:
        self.device, self.vocab_size = target.device, target.vocab_size

    def logits(self, features: Tensor) -> Tensor:
        """``features`` as they are."""
        return features

    def top(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Best ``count`` logits and ids of each row."""
        return top_candidates(features, count)


def judge_batch(
    target: Target, features: Tensor, states: Mapping[int, RequestState], trees: Sequence[DraftTree]
) -> list[Verified]:
    """What the target says after every node of every request's tree.

    The vocabulary head is the largest weight of a small model, so it is read once: by one screened product for all
    greedy requests without penalties, by one full product for those that need all their logits.

    Args:
        target: Whose rows they are.
        features: From its ``forward_batch``: the rows of all trees, one tree after the other.
        states: The requests by their place in the batch, which an exception of their own is noted with.
        trees: Of the step, one per request.
    """
    parts = features.split([tree.num_nodes for tree in trees])
    verified: dict[int, Verified] = {}
    greedy: dict[int, list[int]] = {}
    full: list[int] = []
    numbered = list(states.items())
    for place, (_, state) in enumerate(numbered):
        if state.judging.needs_logits:
            full.append(place)
        else:
            greedy.setdefault(state.judging.num_candidates, []).append(place)
    for count, places in greedy.items():
        values, ids = target.top(_joined(features, parts, places), count)
        table, logits = to_host([ids, values])
        first = 0
        for place in places:
            rows = slice(first, first + trees[place].num_nodes)
            verified[place] = Verified(table[rows, 0].tolist(), table[rows], logits[rows])
            first = rows.stop
    if full:
        scored = target.logits(_joined(features, parts, full))
        scorer = LogitRows(target)
        for place, rows in zip(full, scored.split([trees[p].num_nodes for p in full]), strict=True):
            index, state = numbered[place]
            with of_prompt(index):
                verified[place] = state.judge(rows, trees[place], scorer)
    return [verified[place] for place in range(len(states))]


def _joined(features: Tensor, parts: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    return features if len(places) == len(parts) else torch.cat([parts[place] for place in places])
