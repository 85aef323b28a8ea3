"""Recordings written by hand."""

from __future__ import annotations

from typing import Any

from treedecode.cost import CostCurve
from treedecode.replay.recording import Recording
from treedecode.tree import DraftTree, TreeShape

COST = CostCurve([1, 2, 4, 8], [10.0, 11.0, 13.0, 20.0])


def spine_and_runner_ups(root: int, rows: list[list[int]]) -> DraftTree:
    """A spine of the first of every row, with the others beside it."""
    parents, ranks, tokens, spine = [-1], [0], [root], 0
    for row in rows:
        first = len(parents)
        parents += [spine] * len(row)
        ranks += range(len(row))
        tokens += row
        spine = first
    return DraftTree(TreeShape(parents, ranks), tokens)


def dense(output: list[int], drafts: list[list[list[int]]], **changes: Any) -> Recording:
    """``drafts[p]``: candidates by depth and rank of the step at position p."""
    trees = {p: spine_and_runner_ups(output[p], rows) for p, rows in enumerate(drafts)}
    known: dict[str, Any] = {
        "name": "made",
        "prompt_ids": (90, 91),
        "output_ids": tuple(output),
        "max_emitted": len(output),
        "trees": trees,
        "dense": True,
        "rows": {(p, ()): ((token,), (0.0,)) for p, token in enumerate(output[1:])},
    }
    return Recording(**known | changes)


# Right at once, runner-up right at position 1, nothing right at position 3.
OUTPUT = [1, 2, 3, 4, 5, 6]
DRAFTS = [
    [[2, 7], [8, 3], [4, 9]],  # the second spine token is wrong, its runner-up right
    [[8, 3], [4, 9]],
    [[4], [5], [6]],
    [[9, 8]],
    [[6, 7]],
]
MADE = dense(OUTPUT, DRAFTS)
