"""Acceptance estimated as decoding goes: how likely a drafted edge is the target's choice, by kind of edge."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from numpy.typing import ArrayLike

from treedecode import topology
from treedecode.expect import RankProbs
from treedecode.tree import DraftTree

# Edges of a kind that was never seen: the first guess is right more often than not, each later one half as often.
PRIOR = (0.6, *(0.3 * 0.5**rank for rank in range(1, 16)))
# Said probabilities that count as alike. Finer at both ends: there a small difference is a large ratio.
CONFIDENCE_BOUNDS = (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
MATCH_BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16)
# Deeper nodes and later ranks share a class, so that the number of classes is bounded.
_LAST_DEPTH = 16
_LAST_RANK = 16
# Evidence is weighed against a growing unit; far above 1 everything is divided by it.
_MAX_UNIT = 1e100
# A class that is left with less evidence than this, in observations, is dropped then.
_MIN_SEEN = 1e-3

# Source, depth, rank, bin of the confidence, bin of the match length.
_EdgeClass = tuple[str, int, int, int | None, int | None]
_Cell = list[float]  # evidence of one class: [accepted, seen], in units


class EdgeEstimates:
    """Probability that a drafted child of an accepted node is accepted, learnt online by class of edge.

    An edge is described by its source, depth, rank and, where known, the confidence that its drafter said and
    the length of the match that it continues. Its classes run from coarse to fine: by confidence (by rank where
    none is said), then also by source, match length, rank and depth. Every class holds a Beta estimate whose
    prior mean is the posterior mean of the class before it, so a class with little evidence says what the
    coarser one says (empirical Bayes shrinkage). The prior of the coarsest is the said confidence, or
    ``prior`` by rank. Old evidence fades by half every ``half_life`` observed trees.

    Siblings exclude each other, so ``edges`` and ``reach`` scale down estimates that sum to more than 1 under
    one parent.

    Args:
        prior: acceptance probability by rank or one row per depth, as for ``RankProbs``; used where no
            confidence is said.
        strength: how many observations the coarser class counts for; above 0.
        half_life: observed trees after which evidence counts half; ``math.inf`` never forgets.

    Raises:
        TypeError, ValueError: as ``RankProbs``; strength is not above 0 or half-life under 1.
    """

    def __init__(
        self,
        prior: ArrayLike | Sequence[float] | Sequence[Sequence[float]] = PRIOR,
        strength: float = 4.0,
        half_life: float = 200.0,
    ) -> None:
        if not 0.0 < strength < math.inf:
            raise ValueError(f"strength must be a number of observations above 0, got {strength!r}")
        if not half_life >= 1.0:
            raise ValueError(f"half_life must be at least 1 tree, got {half_life!r}")
        self._prior = RankProbs(prior)
        self._strength = strength
        self._growth = 2.0 ** (1.0 / half_life)
        self._unit = 1.0
        self._cells: dict[tuple, _Cell] = {}
        self._ladders: dict[_EdgeClass, tuple[_Cell, ...]] = {}
        self._lines: dict[_EdgeClass, tuple[float, float]] = {}

    def probability(
        self,
        source: str,
        depth: int,
        rank: int,
        confidence: float | None = None,
        match_length: int | None = None,
    ) -> float:
        """Estimate for one edge by itself, its siblings left aside.

        Args:
            source: who drafted it; any name.
            depth: of the child, at least 1.
            rank: of the child among the candidates, 0 = best.
            confidence: what the drafter says this probability is, in [0, 1]; ``None`` if it says nothing.
            match_length: tokens of the match that the child continues; ``None`` if there is no such thing.

        Raises:
            TypeError, ValueError: depth, rank or match length is no integer or too small; the confidence is
                outside [0, 1].
        """
        depth = topology.count(depth, "depth", minimum=1)
        rank = topology.count(rank, "rank")
        if confidence is not None and not 0.0 <= confidence <= 1.0:
            raise ValueError(f"confidence must be a probability in [0, 1], got {confidence!r}")
        if match_length is not None:
            match_length = topology.count(match_length, "match_length")
        return self._estimate(source, depth, rank, confidence, match_length)

    def rank_probs(self, source: str, max_depth: int, num_ranks: int) -> list[list[float]]:
        """Estimates for the candidates without confidence of ``source``, a row per depth: see ``plan_tree``."""
        rows = []
        for depth in range(1, topology.count(max_depth, "max_depth", minimum=1) + 1):
            row = [self.probability(source, depth, rank) for rank in range(num_ranks)]
            total = max(1.0, math.fsum(row))
            rows.append([value / total for value in row])
        return rows

    def edges(self, tree: DraftTree, match_lengths: Sequence[int | None] | None = None) -> list[float]:
        """Acceptance probability of every node, given that its parent is accepted.

        Args:
            tree: its scores, if there are any, say the confidence of every edge: ``exp(score - parent's)``.
            match_lengths: ``[N]``, see ``probability``; the root's is ignored.

        Returns:
            ``[N]``, 1.0 for the root; the children of one node sum to at most 1.

        Raises:
            ValueError: ``match_lengths`` does not have one entry per node.
        """
        parents, ranks = tree.shape.parent_tuple, tree.shape.rank_tuple
        edges = [1.0] * len(parents)
        totals = [0.0] * len(parents)
        for node, edge in enumerate(self._described(tree, match_lengths), 1):
            edges[node] = value = self._estimate(edge[0], edge[1], ranks[node], edge[2], edge[3])
            totals[parents[node]] += value
        for node in range(1, len(parents)):
            if totals[parents[node]] > 1.0:
                edges[node] /= totals[parents[node]]
        return edges

    def reach(self, tree: DraftTree, match_lengths: Sequence[int | None] | None = None) -> list[float]:
        """Reach probability of every node, ``[N]``, 1.0 for the root: the product of ``edges`` on its path."""
        parents = tree.shape.parent_tuple
        reach = self.edges(tree, match_lengths)
        for node in range(1, len(parents)):
            reach[node] *= reach[parents[node]]
        return reach

    def expected_tokens(self, tree: DraftTree, match_lengths: Sequence[int | None] | None = None) -> float:
        """Expected emitted tokens of a step with ``tree``: 1.0 to ``max_depth + 1``."""
        return math.fsum(self.reach(tree, match_lengths))

    def observe(
        self,
        tree: DraftTree,
        path: Sequence[int],
        match_lengths: Sequence[int | None] | None = None,
    ) -> None:
        """Learn from one verified tree.

        Every child of an accepted node was judged: the one on the path was accepted, the others were not. The
        children of rejected nodes teach nothing.

        Args:
            tree: as verified.
            path: accepted nodes, root first: the whole walk, not one that was cut at a stop condition.
            match_lengths: as given to ``reach``.

        Raises:
            ValueError: the path does not start at the root or leaves the tree's edges.
        """
        parents, ranks = tree.shape.parent_tuple, tree.shape.rank_tuple
        nodes = list(path)
        if nodes[:1] != [0] or any(
            not 0 < node < len(parents) or parents[node] != before for before, node in pairwise(nodes)
        ):
            raise ValueError(f"an accepted path runs from the root (0) down the tree's edges, got {nodes}")
        on_path = set(nodes)
        self._advance()
        for node, edge in enumerate(self._described(tree, match_lengths), 1):
            if parents[node] in on_path:
                key = _edge_class(edge[0], edge[1], ranks[node], edge[2], edge[3])
                for cell in self._ladder(key):
                    cell[1] += self._unit
                    if node in on_path:
                        cell[0] += self._unit

    def _described(
        self, tree: DraftTree, match_lengths: Sequence[int | None] | None
    ) -> list[tuple[str, int, float | None, int | None]]:
        """Source, depth, confidence and match length of every drafted node."""
        shape = tree.shape
        sources = [""] * tree.num_drafted if tree.sources is None else tree.sources[1:]
        confidences: list[float | None] = [None] * tree.num_drafted
        scores = tree.score_tuple
        if scores is not None:
            confidences = [
                _edge_confidence(score, scores[parent])
                for score, parent in zip(scores[1:], shape.parent_tuple[1:], strict=True)
            ]
        if match_lengths is None:
            lengths: Sequence[int | None] = [None] * tree.num_drafted
        elif len(match_lengths) != tree.num_nodes:
            raise ValueError(
                f"expected one match length per node: {tree.num_nodes} nodes, got {len(match_lengths)}"
            )
        else:
            lengths = match_lengths[1:]
        return list(zip(sources, shape.depth_tuple[1:], confidences, lengths, strict=True))

    def _estimate(
        self, source: str, depth: int, rank: int, confidence: float | None, match_length: int | None
    ) -> float:
        key = _edge_class(source, depth, rank, confidence, match_length)
        line = self._lines.get(key)
        if line is None:
            # shrinkage is affine in the prior mean, so all classes together are one line until the next tree
            shift, slope = 0.0, 1.0
            weight = self._strength * self._unit
            for accepted, seen in self._ladder(key):
                shift = (accepted + weight * shift) / (seen + weight)
                slope *= weight / (seen + weight)
            line = self._lines[key] = shift, slope
        prior = self._prior.of(depth, rank) if confidence is None else confidence
        return min(1.0, line[0] + line[1] * prior)

    def _ladder(self, key: _EdgeClass) -> tuple[_Cell, ...]:
        """The classes of an edge, coarse to fine."""
        ladder = self._ladders.get(key)
        if ladder is None:
            source, depth, rank, confidence_bin, match_bin = key
            features: list[tuple[str, str | int]] = [("source", source)]
            if match_bin is not None:
                features.append(("match", match_bin))
            if confidence_bin is None:
                features.insert(0, ("rank", rank))
            else:
                features.insert(0, ("confidence", confidence_bin))
                features.append(("rank", rank))
            features.append(("depth", depth))
            ladder = tuple(
                self._cells.setdefault(tuple(features[:length]), [0.0, 0.0])
                for length in range(1, len(features) + 1)
            )
            self._ladders[key] = ladder
        return ladder

    def _advance(self) -> None:
        """Make what was seen count for less, by letting the unit of what will be seen grow."""
        self._lines = {}
        self._unit *= self._growth
        if self._unit > _MAX_UNIT:
            self._cells = {
                name: [accepted / self._unit, seen / self._unit]
                for name, (accepted, seen) in self._cells.items()
                if seen > _MIN_SEEN * self._unit
            }
            self._ladders = {}
            self._unit = 1.0


def _edge_confidence(score: float, parent_score: float) -> float:
    if parent_score == -math.inf:
        return 0.0
    return math.exp(min(0.0, score - parent_score))


def _edge_class(
    source: str, depth: int, rank: int, confidence: float | None, match_length: int | None
) -> _EdgeClass:
    return (
        source,
        depth if depth < _LAST_DEPTH else _LAST_DEPTH,
        rank if rank < _LAST_RANK else _LAST_RANK,
        None if confidence is None else bisect_right(CONFIDENCE_BOUNDS, confidence),
        None if match_length is None else bisect_right(MATCH_BOUNDS, match_length),
    )
