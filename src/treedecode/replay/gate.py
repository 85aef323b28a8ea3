"""Go or no-go: is some tree enough longer than a chain, and faster than everything without a tree?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treedecode.replay.results import Result, Verdict
from treedecode.replay.walk import Walk

_RESAMPLES = 1000
# Fewer recordings than this give no interval.
_MIN_RECORDINGS = 3


@dataclass(frozen=True)
class Cell:
    """One result, and the walks that gave it.

    Attributes:
        result: What is shown.
        walks: One per recording, in the order of the recordings.
        weighed: Whether it may be the tree of the verdict; not where a better estimate of the same trees is.
    """

    result: Result
    walks: tuple[Walk, ...]
    weighed: bool = True


def decide(cells: Sequence[Cell], gate: float) -> Verdict | None:
    """Weighs every tree against the chain of its budget, and against the fastest of all without a tree.

    Args:
        cells: All results, plain decoding among them.
        gate: Least gain in tokens per step over the chain.

    Returns:
        None if there is no tree.
    """
    trees = [cell for cell in cells if cell.result.kind == "tree" and cell.weighed]
    if not trees:
        return None
    others = [cell for cell in cells if cell.result.kind != "tree"]
    fastest_other = max(others, key=_speed).result
    passing = [
        cell
        for cell in trees
        if _gain(cell, _chain(cell, cells) or others[0]) >= gate and _speed(cell) > fastest_other.tokens_per_s
    ]
    tree = max(passing or trees, key=_speed)
    chain = _chain(tree, cells)
    gain = _gain(tree, chain or others[0])
    return Verdict(
        go=bool(passing),
        tree=tree.result,
        chain=None if chain is None else chain.result,
        fastest_other=fastest_other,
        gain=gain,
        interval=interval(tree.walks, (chain or others[0]).walks),
        gate=gate,
        margin=gain - gate,
        speed_ratio=_speed(tree) / fastest_other.tokens_per_s,
    )


def _speed(cell: Cell) -> float:
    return cell.result.tokens_per_s


def _gain(tree: Cell, other: Cell) -> float:
    return tree.result.mean_emitted - other.result.mean_emitted


def _chain(tree: Cell, cells: Sequence[Cell]) -> Cell | None:
    """The chain with the most tokens per step at the budget of a tree.

    Of all chains where none has this budget, or where the cost chose the size of the tree, and so not of the chain.
    """
    chains = [cell for cell in cells if cell.result.kind == "chain"]
    budget = tree.result.budget
    same = [cell for cell in chains if cell.result.budget == budget and isinstance(budget, int)]
    return max(same or chains, key=lambda cell: cell.result.mean_emitted, default=None)


def interval(walks: Sequence[Walk], less: Sequence[Walk] | None = None) -> tuple[float, float] | None:
    """95% bootstrap interval, over recordings, of E[L], or of its difference to other walks of the same recordings."""
    if len(walks) < _MIN_RECORDINGS:
        return None
    drawn = np.random.default_rng(0).integers(0, len(walks), (_RESAMPLES, len(walks)))
    values = _resampled(walks, drawn) - (0.0 if less is None else _resampled(less, drawn))
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _resampled(walks: Sequence[Walk], drawn: np.ndarray) -> np.ndarray:
    emitted = np.array([sum(one.num_emitted) for one in walks], float)
    steps = np.array([one.num_steps for one in walks], float)
    return emitted[drawn].sum(1) / np.maximum(1.0, steps[drawn].sum(1))
