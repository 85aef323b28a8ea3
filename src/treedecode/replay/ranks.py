"""How good the drafter's candidates are by rank, measured where the recorded trees were right so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treedecode.replay.recording import Recording, follow

# Ranks and depths that get probabilities of their own; deeper ones share the last.
NUM_RANKS = 16
MAX_DEPTH = 16
# Visits that the probabilities over all depths count for at each depth.
_PRIOR_VISITS = 8.0


class RankCounts:
    """Of the nodes that the output went through, how often it went on with the candidate of each rank.

    Every output position counts as a place to start, so every position of the output counts once per depth.
    """

    def __init__(self) -> None:
        self._visits = [0] * (MAX_DEPTH + 1)
        self._hits = [[0] * NUM_RANKS for _ in range(MAX_DEPTH + 1)]

    @classmethod
    def of(cls, recordings: Iterable[Recording], positions: range | None = None) -> RankCounts:
        """Counts of some dense recordings, of all positions or of some."""
        counts = cls()
        for recording in recordings:
            for position, tree in recording.trees.items():
                if positions is not None and position not in positions:
                    continue
                rest = recording.output_ids[position + 1 :]
                path = follow(tree, rest)
                # what comes after the end is not known
                for depth in range(1, min(len(path), len(rest), MAX_DEPTH) + 1):
                    counts._visits[depth] += 1
                    if depth < len(path):
                        rank = tree.shape.rank_tuple[path[depth]]
                        if rank < NUM_RANKS:
                            counts._hits[depth][rank] += 1
        return counts

    def without(self, other: RankCounts) -> RankCounts:
        """These counts less those of ``other``, which must be among them."""
        left = RankCounts()
        left._visits = [a - b for a, b in zip(self._visits, other._visits, strict=True)]
        left._hits = [
            [a - b for a, b in zip(mine, theirs, strict=True)]
            for mine, theirs in zip(self._hits, other._hits, strict=True)
        ]
        return left

    @property
    def num_visits(self) -> int:
        """Nodes counted, at all depths."""
        return sum(self._visits)

    def rank_probs(self) -> list[list[float]]:
        """Acceptance probability by depth and rank, for ``plan_tree``: what was seen at a depth, drawn a little to the
        mean over all depths."""
        visits = self.num_visits
        pooled = [sum(row[rank] for row in self._hits) / max(1, visits) for rank in range(NUM_RANKS)]
        return [
            [
                (hits + _PRIOR_VISITS * mean) / (self._visits[depth] + _PRIOR_VISITS)
                for hits, mean in zip(self._hits[depth], pooled, strict=True)
            ]
            for depth in range(1, MAX_DEPTH + 1)
        ]


@dataclass(frozen=True)
class Rescue:
    """Where the spine (the chain of best candidates) was wrong for the first time, how near the right token was.

    Attributes:
        num_steps: Chain steps that were looked at.
        num_rejected: Those in which a spine token was rejected.
        in_drafter_top: By width from 1: share of the rejections in which the target's token was among so many best
            candidates of the drafter. Width 1 is the spine itself: always 0. The gain of leaf siblings.
        in_target_top: By width from 1: share of the rejections in which the rejected token was among so many best
            tokens of the target.
    """

    num_steps: int
    num_rejected: int
    in_drafter_top: tuple[float, ...]
    in_target_top: tuple[float, ...]


def measure_rescue(recordings: Sequence[Recording], max_width: int = 8) -> Rescue:
    """Walks the recorded spines of dense recordings as a chain decoder would.

    Args:
        recordings: Dense ones.
        max_width: Largest width looked at.
    """
    num_steps = num_rejected = 0
    by_drafter, by_target = [0] * max_width, [0] * max_width
    for recording in recordings:
        position = 0
        while position < recording.num_positions:
            num_steps += 1
            tree, rest = recording.trees[position], recording.output_ids[position + 1 :]
            node = depth = 0
            while depth < len(rest) and (children := tree.shape.children(node)):
                tokens = [tree.token_tuple[child] for child in children]
                if tokens[0] == rest[depth]:
                    node, depth = children[0], depth + 1
                    continue
                num_rejected += 1
                if rest[depth] in tokens[:max_width]:
                    by_drafter[tokens.index(rest[depth])] += 1
                row = recording.rows.get((position + depth, ()))
                top = [] if row is None else list(row[0][:max_width])
                if tokens[0] in top:
                    by_target[top.index(tokens[0])] += 1
                break
            position += depth + 1
    return Rescue(
        num_steps, num_rejected, _shares(by_drafter, num_rejected), _shares(by_target, num_rejected)
    )


def _shares(counts: list[int], total: int) -> tuple[float, ...]:
    return tuple(sum(counts[:width]) / max(1, total) for width in range(1, len(counts) + 1))
