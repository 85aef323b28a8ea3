"""Token recycling: what the target said the last time it was asked in a similar context."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from treedecode.drafters.base import VerifiedRows

MAX_ORDER = 3
# Candidates kept per row; more were worth nothing on the tuning prompts.
NUM_KEPT = 6
# Candidates taken from the second row of a context.
_NUM_SECOND = 3

# A candidate is binned by its share of the probability of the row's kept candidates; these are the upper edges.
_BIN_EDGES = np.array([0.003, 0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.75, 0.9, 0.98])
NUM_BINS = len(_BIN_EDGES) + 1
# Features per context length: one per bin, and one for "a row is known and the token is not in it". Feature 0 is "no
# row is known".
_PER_ORDER = NUM_BINS + 1
NUM_ROW_FEATURES = 1 + MAX_ORDER * _PER_ORDER
# Kinds of second rows: 1 and 2 are of that many last tokens; these two leave the last token out. Feature 0 is "not in
# the second row".
_SKIP_1, _SKIP_2 = 3, 4
NUM_SECOND_FEATURES = 1 + 4 * NUM_BINS

# token ids, best first, and the confidence bin of each
Row = tuple[list[int], list[int]]


class RowSource(Protocol):
    """Rows of other requests."""

    def row(self, context: tuple[int, ...]) -> Row | None:
        """The row of a context, not to be modified; None if there is none."""
        ...


class RecycleStore:
    """The target's latest best candidates by context.

    All verified rows are kept, those of rejected nodes too. Token Recycling (arXiv:2408.08696) keeps one list per
    token. Here contexts of the last one to three tokens are kept, the longest known one is looked up first, and every
    candidate has its confidence. A second, weaker row backs it up: that of a shorter context or, where only the last
    token is known or nothing at all, that of the context without its last token: what the target said one token after
    the same words when another word stood here, be it a rejected sibling in the last step.

    Args:
        others: asked for a context that is not known here.
    """

    def __init__(self, others: RowSource | None = None) -> None:
        # rows are shared between contexts and never modified
        self.rows: dict[tuple[int, ...], Row] = {}
        self._others = others
        self._skipped: dict[tuple[int, ...], Row] = {}

    def update(self, rows: VerifiedRows, token_ids: list[int]) -> None:
        """Store what the target said after every node of ``rows``; ``token_ids`` is the prompt and the output."""
        ids = rows.top_ids[:, :NUM_KEPT].tolist()
        bins = _confidence_bins(rows.top_logits[:, :NUM_KEPT]).tolist()
        root = rows.root_index
        parents, tokens = rows.tree.shape.parent_tuple, rows.tree.token_tuple
        tails = [tuple(token_ids[max(0, root + 1 - MAX_ORDER) : root + 1])]
        for node in range(1, len(parents)):
            tails.append((*tails[parents[node]], tokens[node])[-MAX_ORDER:])
        store, skipped = self.rows, self._skipped
        for tail, row in zip(tails, zip(ids, bins, strict=True), strict=True):
            store[tail] = store[tail[-2:]] = store[tail[-1:]] = row
            if len(tail) > 1:
                skipped[tail[-3:-1]] = skipped[tail[-2:-1]] = row

    def find(self, tail: tuple[int, ...]) -> tuple[int, list[int], list[int], list[int]]:
        """What the target may say after ``tail``.

        Returns:
            Length of the longest known context (0 if none is), candidate tokens, and the features of each by the row
            of that context and by the second row. All three lists are fresh.
        """
        order, row = 0, None
        for length in range(min(MAX_ORDER, len(tail)), 0, -1):
            row = self._row(tail[-length:])
            if row is not None:
                order = length
                break
        kind, second = self._second(tail, order, row)
        if row is None:
            tokens, row_features, second_features = [], [], []
        else:
            first = 1 + (order - 1) * _PER_ORDER
            tokens, row_features = row[0].copy(), [first + bin_ for bin_ in row[1]]
            second_features = [0] * len(tokens)
        if second is not None:
            first, absent = 1 + (kind - 1) * NUM_BINS, absent_feature(order)
            for token, bin_ in zip(second[0][:_NUM_SECOND], second[1], strict=False):
                if token in tokens:
                    second_features[tokens.index(token)] = first + bin_
                else:
                    tokens.append(token)
                    row_features.append(absent)
                    second_features.append(first + bin_)
        return order, tokens, row_features, second_features

    def _row(self, context: tuple[int, ...]) -> Row | None:
        row = self.rows.get(context)
        return self._others.row(context) if row is None and self._others is not None else row

    def _second(self, tail: tuple[int, ...], order: int, row: Row | None) -> tuple[int, Row | None]:
        """A row that differs from ``row``, which belongs to the last ``order`` tokens, and its kind."""
        for length in range(order - 1, 0, -1):
            second = self._row(tail[-length:])
            if second is not None and second is not row:
                return length, second
        if order > 1:
            return 0, None
        second = self._skipped.get(tail[-3:-1])
        if second is not None:
            return _SKIP_2, second
        return _SKIP_1, self._skipped.get(tail[-2:-1])


def absent_feature(order: int) -> int:
    """Feature of a token that is not in a row of a context of ``order`` tokens; order 0 is "no row is known"."""
    return order * _PER_ORDER


def _confidence_bins(top_logits: np.ndarray) -> np.ndarray:
    weights = np.exp(top_logits - top_logits[:, :1])
    weights /= weights.sum(axis=1, keepdims=True)
    return np.searchsorted(_BIN_EDGES, weights)
