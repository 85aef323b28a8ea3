"""Expected tokens per step of a tree whose edges are accepted by candidate rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from treedecode.shape import TreeShape

# room for the rounding of probabilities that were divided by a total
_SUM_TOLERANCE = 1e-9


class RankProbs:
    """Acceptance probability of a candidate by its rank, for every depth alike or depth by depth.

    Args:
        rank_probs: ``[ranks]`` numbers: the probability that the candidate of that rank is the target's next
            token, given that its parent was accepted. Or one such row per depth (rows may differ in length):
            row 0 holds the candidates at depth 1, and nothing below the last row is ever accepted. A rank
            beyond its row has probability 0.

    Raises:
        TypeError: an entry is not a number, or ``rank_probs`` mixes numbers and rows.
        ValueError: there is no entry, a probability is outside [0, 1] or NaN, or a row sums to more than 1.
    """

    def __init__(self, rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]]) -> None:
        rows = _as_list(rank_probs)
        nested = [isinstance(row, (list, tuple, np.ndarray)) for row in rows]
        if any(nested) and not all(nested):
            raise TypeError("rank probabilities must be numbers or rows of numbers, got a mix of both")
        self._by_depth = bool(nested) and nested[0]
        if self._by_depth:
            self._rows = [_check_row(_as_list(row), f" at depth {i}") for i, row in enumerate(rows, start=1)]
        else:
            self._rows = [_check_row(rows, "")]

    def at(self, depth: int) -> tuple[float, ...]:
        """Probabilities by rank of the candidates at ``depth`` (the root's children are at depth 1)."""
        if not self._by_depth:
            return self._rows[0]
        return self._rows[depth - 1] if depth <= len(self._rows) else ()

    def of(self, depth: int, rank: int) -> float:
        """Probability of the candidate of ``rank`` at ``depth``."""
        row = self.at(depth)
        return row[rank] if rank < len(row) else 0.0


def node_reach(
    shape: TreeShape, rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]]
) -> list[float]:
    """Probability that each node is accepted: the product of the acceptance probabilities on its path.

    The positional acceptance assumption of Sequoia (arXiv:2402.12374, section 3.1).

    Args:
        shape: the tree; its depths and ranks choose the probabilities.
        rank_probs: by rank ``[ranks]``, or one row per depth; see ``RankProbs``.

    Returns:
        ``[N]`` in node order, 1.0 for the root.

    Raises:
        TypeError: ``shape`` is no TreeShape, or a probability is not a number.
        ValueError: as ``RankProbs``.
    """
    if not isinstance(shape, TreeShape):
        raise TypeError(f"shape must be a TreeShape, got {type(shape).__name__}")
    probs = RankProbs(rank_probs)
    reach = [1.0] * shape.num_nodes
    for node in range(1, shape.num_nodes):
        edge = probs.of(shape.depth_tuple[node], shape.rank_tuple[node])
        reach[node] = reach[shape.parent_tuple[node]] * edge
    return reach


def expected_tokens(
    shape: TreeShape, rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]]
) -> float:
    """Expected emitted tokens per step, E[L]: 1 plus the reach of every drafted node.

    Args:
        shape: the tree.
        rank_probs: by rank ``[ranks]``, or one row per depth; see ``RankProbs``.

    Returns:
        The sum of ``node_reach``: 1.0 for the root alone, at most ``shape.max_depth + 1``.

    Raises:
        TypeError, ValueError: as ``node_reach``.
    """
    return math.fsum(node_reach(shape, rank_probs))


def _as_list(values: object) -> list:
    if isinstance(values, np.ndarray):
        return values.tolist() if values.ndim else [values.item()]
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"rank probabilities must be a sequence of numbers, got {type(values).__name__}")
    return list(values)


def _check_row(row: list, where: str) -> tuple[float, ...]:
    if not row:
        raise ValueError(f"rank probabilities{where} must have at least one entry, got none")
    for rank, value in enumerate(row):
        if isinstance(value, (bool, np.bool_)) or not isinstance(
            value, (int, float, np.integer, np.floating)
        ):
            raise TypeError(f"rank probabilities must be numbers: rank {rank}{where} is {value!r}")
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"rank probabilities must be in [0, 1]: rank {rank}{where} has {value}")
    probs = tuple(float(value) for value in row)
    total = math.fsum(probs)
    if total > 1.0 + _SUM_TOLERANCE:
        raise ValueError(
            f"rank probabilities{where} must sum to at most 1 (only one candidate is the next token), got {total:.6g}"
        )
    return probs
