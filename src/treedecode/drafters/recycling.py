"""Token recycling: what the target said the last time it was asked in a similar context."""

from __future__ import annotations

import numpy as np

from treedecode.drafters.base import VerifiedRows

MAX_ORDER = 3
NUM_KEPT = 8

# A candidate is binned by its share of the probability of the row's kept candidates; these are the bins'
# upper edges.
_BIN_EDGES = np.array([0.003, 0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.75, 0.9, 0.98])
NUM_BINS = len(_BIN_EDGES) + 1
# Features per context length: one per bin, and one for "a row is known and the token is not in it".
FEATURES_PER_ORDER = NUM_BINS + 1
NUM_ROW_FEATURES = 1 + MAX_ORDER * FEATURES_PER_ORDER

# token ids, best first, and the feature of each
Row = tuple[list[int], list[int]]


class RecycleStore:
    """The target's latest best candidates after every context of one to ``MAX_ORDER`` tokens.

    All verified rows are kept, those of rejected nodes too. Token Recycling (arXiv:2408.08696) keeps one list
    per token; here longer contexts are kept as well and looked up first, and every candidate has its
    confidence.

    Args:
        num_kept: candidates kept per context.
    """

    def __init__(self, num_kept: int = NUM_KEPT) -> None:
        self.num_kept = num_kept
        self._rows: dict[tuple[int, ...], Row] = {}

    def update(self, rows: VerifiedRows, token_ids: list[int]) -> None:
        """Store what the target said after every node of ``rows``; ``token_ids`` is the prompt and the output."""
        kept = self.num_kept
        ids = rows.top_ids[:, :kept].tolist()
        bins = _confidence_bins(rows.top_logits[:, :kept])
        features = [(bins + first_feature(order)).tolist() for order in range(1, MAX_ORDER + 1)]
        root = rows.root_index
        parents, tokens = rows.tree.shape.parent_tuple, rows.tree.token_tuple
        tails = [tuple(token_ids[max(0, root + 1 - MAX_ORDER) : root + 1])]
        for node in range(1, len(parents)):
            tails.append((*tails[parents[node]], tokens[node])[-MAX_ORDER:])
        store = self._rows
        for node, tail in enumerate(tails):
            for order in range(1, len(tail) + 1):
                store[tail[-order:]] = (ids[node], features[order - 1][node])

    def find(self, tail: tuple[int, ...]) -> tuple[int, Row] | None:
        """The row of the longest known context at the end of ``tail``, and that context's length."""
        get = self._rows.get
        for order in range(min(MAX_ORDER, len(tail)), 0, -1):
            row = get(tail[-order:])
            if row is not None:
                return order, row
        return None


def first_feature(order: int) -> int:
    """Feature of the least likely bin in rows of contexts of ``order`` tokens; feature 0 is "no row is known"."""
    return 1 + (order - 1) * FEATURES_PER_ORDER


def absent_feature(order: int) -> int:
    """Feature of a token that is not in a row of a context of ``order`` tokens; order 0 is "no row is known"."""
    return first_feature(order) + NUM_BINS if order else 0


def _confidence_bins(top_logits: np.ndarray) -> np.ndarray:
    weights = np.exp(top_logits - top_logits[:, :1])
    weights /= weights.sum(axis=1, keepdims=True)
    return np.searchsorted(_BIN_EDGES, weights)
