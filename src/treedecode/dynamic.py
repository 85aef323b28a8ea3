"""Dynamic trees: nodes chosen by the drafter's confidence, as in EAGLE-2 (arXiv:2406.16858, section 4).

For deterministic drafts only: choosing among drawn tokens by their probability biases a sampled output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike

from treedecode import topology
from treedecode.tree import DraftTree


class DynamicPlan:
    """Candidates with confidences, collected level by level; gives what to draft on, then the best tree.

    The value of a node is the product of the confidences on its path, which estimates its reach. A drafter
    repeats ``add`` and ``frontier`` for every level and ends with ``tree``::

        plan, nodes = DynamicPlan(root_token_id), [0]
        for _ in range(max_depth):
            token_ids, confidences = draft(nodes)  # [len(nodes), k] each
            plan.add(nodes, token_ids, confidences)
            nodes = plan.frontier(10)
        tree = plan.tree(budget)

    A candidate that its parent has already is merged: it keeps its number and the higher confidence, and what
    is below either of them is below both.

    Args:
        root_token_id: the last committed token, node 0.

    Raises:
        TypeError, ValueError: the token is not an integer or negative.
    """

    def __init__(self, root_token_id: int) -> None:
        self._parents = [-1]
        self._tokens = [topology.count(root_token_id, "root_token_id")]
        self._edges = [0.0]  # log confidence
        self._scores = [0.0]  # log value
        self._stale = False  # a merge has raised an edge: values are out of date
        self._depths = [0]
        self._sources = ["root"]
        self._node_of: dict[tuple[int, int], int] = {}
        self._deepest = [0]

    @property
    def num_candidates(self) -> int:
        """Number of different candidates, root excluded."""
        return len(self._parents) - 1

    def add(
        self,
        nodes: Sequence[int],
        token_ids: ArrayLike | Sequence[Sequence[int]],
        confidences: ArrayLike | Sequence[Sequence[float]],
        source: str = "draft",
    ) -> list[list[int]]:
        """Add candidates below ``nodes``.

        Args:
            nodes: ``[R]`` parents: 0 for the root, or numbers from an earlier ``add`` or ``frontier``.
            token_ids: ``[R, k]`` integers.
            confidences: ``[R, k]`` probabilities in [0, 1], as a softmax gives them.
            source: who drafted them.

        Returns:
            ``[R, k]`` numbers of the candidates, for later calls.

        Raises:
            TypeError: a token is not an integer or a confidence not a number.
            ValueError: the shapes differ, a parent is unknown, a token negative or a confidence outside [0, 1].
        """
        tokens, values = np.asarray(token_ids), np.asarray(confidences)
        num_rows = len(nodes)
        if tokens.ndim != 2 or tokens.shape != values.shape or len(tokens) != num_rows:
            raise ValueError(
                f"expected token_ids and confidences of shape [{num_rows}, k], one row per node, "
                f"got {list(tokens.shape)} and {list(values.shape)}"
            )
        _check_candidates(tokens, values)
        for node in nodes:
            if not 0 <= node < len(self._parents):
                raise ValueError(
                    f"candidates hang below known nodes, 0 to {len(self._parents) - 1}, got {node}"
                )
        rows = zip(nodes, tokens.tolist(), _logs(values), strict=True)
        return [self._add(node, row, logs, source) for node, row, logs in rows]

    def frontier(self, limit: int) -> list[int]:
        """The nodes to draft on: of the deepest level the ``limit`` of highest value, best first; none left is the end.

        Ties go to the earlier candidate, and what has no chance is left out (EAGLE-2, section 4.1).
        """
        limit = topology.count(limit, "limit")
        scores = self._values()
        level = [node for node in self._deepest if scores[node] > -math.inf]
        return sorted(level, key=lambda node: -scores[node])[:limit]

    def tree(self, budget: int, max_depth: int | None = None) -> DraftTree:
        """The ``budget`` candidates of highest value as a tree (EAGLE-2, section 4.2).

        A child's value is never higher than its parent's and ties go to the smaller depth, so the tree is
        connected.

        Args:
            budget: number of drafted nodes, at least 0.
            max_depth: deeper candidates are left out; ``None`` for no limit.

        Returns:
            Nodes in descending value (ties: smaller depth, then the earlier candidate), ``scores`` are its
            logarithm. Smaller than the budget if the other candidates are fewer or have no chance.

        Raises:
            TypeError, ValueError: the budget or the limit is not an integer or negative.
        """
        budget = topology.count(budget, "budget")
        scores = self._values()
        order = np.lexsort(np.array([self._depths, np.negative(scores)]))
        if max_depth is not None:
            order = order[np.take(self._depths, order) <= topology.count(max_depth, "max_depth")]
        chosen = [node for node in order[: budget + 1].tolist() if scores[node] > -math.inf]
        new_of = {node: new for new, node in enumerate(chosen)}
        return DraftTree.trusted(
            [-1, *(new_of[self._parents[node]] for node in chosen[1:])],
            [self._tokens[node] for node in chosen],
            [scores[node] for node in chosen],
            [self._sources[node] for node in chosen],
        )

    def _add(self, parent: int, tokens: Sequence[int], edges: Sequence[float], source: str) -> list[int]:
        """Add siblings with their log confidences; returns their numbers."""
        parents, scores, node_of = self._parents, self._scores, self._node_of
        depth = self._depths[parent] + 1
        deepest = self._depths[self._deepest[0]]
        base, start = scores[parent], len(parents)
        numbers = []
        for token, edge in zip(tokens, edges, strict=True):
            new = len(parents)
            node = node_of.setdefault((parent, token), new)
            numbers.append(node)
            if node == new:
                parents.append(parent)
                scores.append(base + edge)
                self._tokens.append(token)
                self._edges.append(edge)
            elif edge > self._edges[node]:
                self._edges[node] = edge
                self._stale = True
                if node < start:
                    self._sources[node] = source
        num_added = len(parents) - start
        self._depths += [depth] * num_added
        self._sources += [source] * num_added
        if num_added and depth >= deepest:
            if depth > deepest:
                self._deepest = []
            self._deepest += range(start, len(parents))
        return numbers

    def _values(self) -> list[float]:
        """Log value of every node; all anew once a merged candidate, which may have children, has risen."""
        scores = self._scores
        if self._stale:
            for node in range(1, len(scores)):
                scores[node] = scores[self._parents[node]] + self._edges[node]
            self._stale = False
        return scores


def plan_dynamic(
    parents: ArrayLike | Sequence[int],
    token_ids: ArrayLike | Sequence[int],
    confidences: ArrayLike | Sequence[float],
    budget: int,
    max_depth: int | None = None,
    sources: Sequence[str] | None = None,
) -> DraftTree:
    """The best tree of at most ``budget`` drafted nodes from candidates that are all known: see ``DynamicPlan``.

    Args:
        parents: ``[C]`` as for ``TreeShape``: the root first, parents before children.
        token_ids: ``[C]``, the root's token first; repeated siblings are merged.
        confidences: ``[C]`` probability of every edge in [0, 1]; the root's is ignored.
        budget: number of drafted nodes, at least 0.
        max_depth: deeper candidates are left out; ``None`` for no limit.
        sources: ``[C]`` names; ``None`` names every candidate ``"draft"``.

    Returns:
        As ``DynamicPlan.tree``.

    Raises:
        TypeError, ValueError: as ``TreeShape``, ``DynamicPlan.add`` and ``DynamicPlan.tree``; lengths differ.
    """
    given = topology.check_parents(topology.int_tuple(parents, "parent"))
    tokens, values = np.asarray(token_ids), np.asarray(confidences)
    names = ["draft"] * len(given) if sources is None else sources
    if tokens.shape != (len(given),) or values.shape != (len(given),) or len(names) != len(given):
        raise ValueError(
            f"expected one token, confidence and source per candidate: {len(given)} candidates, "
            f"got shapes {list(tokens.shape)}, {list(values.shape)} and {len(names)} sources"
        )
    _check_candidates(tokens, values[1:])
    plan = DynamicPlan(int(tokens[0]))
    kept = [0]
    candidates = zip(given[1:], names[1:], tokens[1:].tolist(), _logs(values[1:]), strict=True)
    # candidates come row by row as a rule: siblings in a run are added together
    for (parent, source), run in groupby(candidates, key=itemgetter(0, 1)):
        _, _, row, logs = zip(*run, strict=True)
        kept += plan._add(kept[parent], row, logs, source)
    return plan.tree(budget, max_depth)


def _logs(confidences: np.ndarray) -> list:
    with np.errstate(divide="ignore"):
        return np.log(confidences.astype(np.float64)).tolist()


def _check_candidates(tokens: np.ndarray, confidences: np.ndarray) -> None:
    if tokens.size and tokens.dtype.kind not in "iu":
        raise TypeError(f"token ids must be integers, got dtype {tokens.dtype}")
    if tokens.size and tokens.min() < 0:
        raise ValueError(f"token ids must be at least 0, got {tokens.min()}")
    if confidences.size and confidences.dtype.kind not in "fiu":
        raise TypeError(f"confidences must be numbers, got dtype {confidences.dtype}")
    wrong = confidences[~((confidences >= 0) & (confidences <= 1))]
    if wrong.size:
        raise ValueError(f"confidences must be probabilities in [0, 1], got {wrong.flat[0]}")
