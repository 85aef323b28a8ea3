"""Prompt lookup: the chain that followed the latest occurrence of the last tokens; the baseline without a tree."""

from __future__ import annotations

import math

from treedecode import topology
from treedecode.drafters.base import DraftContext
from treedecode.tree import DraftTree

# Match lengths, counted on along the chain, whose acceptance is told apart.
_MAX_LENGTH = 24
# Beta prior of a link's acceptance: accepted and seen, by match length (0 unused); longer matches hold
# longer.
_PRIOR_SEEN = 2.0


class PromptLookupDrafter:
    """Drafts what followed the latest occurrence of the longest suffix of up to ``max_ngram`` tokens.

    A chain of exact copies (prompt lookup decoding, as in transformers' ``prompt_lookup_num_tokens``), tuned:
    longest match first, then latest, and acceptance by match length estimated online, so that a budget rule
    can cut it.

    Args:
        max_ngram: longest match to look for.
        min_ngram: shortest match to draft from.

    Raises:
        TypeError, ValueError: a length is not an integer, below 1, or ``min_ngram`` above ``max_ngram``.
    """

    name = "prompt-lookup"

    def __init__(self, max_ngram: int = 12, min_ngram: int = 1) -> None:
        self.min_ngram = topology.count(min_ngram, "min_ngram", minimum=1)
        self.max_ngram = topology.count(max_ngram, "max_ngram", minimum=self.min_ngram)
        self.begin([])

    def begin(self, prompt_ids: list[int]) -> None:
        """Forget the last request."""
        self._next: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0
        self._accepted = [_PRIOR_SEEN * length / (length + 1.5) for length in range(_MAX_LENGTH + 1)]
        self._seen = [_PRIOR_SEEN] * (_MAX_LENGTH + 1)
        self._last: tuple[int, int, list[int]] = (0, 0, [])

    def propose(self, context: DraftContext) -> DraftTree:
        """A chain, or the root alone if nothing matches; scores are log reach."""
        token_ids = context.token_ids
        self._calibrate(token_ids)
        self._extend(token_ids)
        room = min(context.max_drafted, context.max_depth)
        length, start = self._find(token_ids)
        drafts: list[int] = []
        while start and len(drafts) < room:
            # a copy that reaches the end of the text goes on with its own first tokens: a loop
            position = start + len(drafts)
            drafts.append(
                token_ids[position] if position < len(token_ids) else drafts[position - len(token_ids)]
            )
        self._last = (len(token_ids), length, drafts)
        scores = [0.0]
        for depth in range(len(drafts)):
            link = min(length + depth, _MAX_LENGTH)
            scores.append(scores[-1] + math.log(self._accepted[link] / self._seen[link]))
        sources = ["root"] + [self.name] * len(drafts)
        return DraftTree.trusted(range(-1, len(drafts)), [token_ids[-1], *drafts], scores, sources)

    def _find(self, token_ids: list[int]) -> tuple[int, int]:
        """Length of the longest match and the position after its latest occurrence; ``(0, 0)`` without one."""
        for length in range(min(self.max_ngram, len(token_ids)), self.min_ngram - 1, -1):
            start = self._next.get(tuple(token_ids[-length:]))
            if start is not None:
                return length, start
        return 0, 0

    def _extend(self, token_ids: list[int]) -> None:
        for position in range(max(1, self._num_indexed), len(token_ids)):
            for length in range(self.min_ngram, min(self.max_ngram, position) + 1):
                self._next[tuple(token_ids[position - length : position])] = position
        self._num_indexed = len(token_ids)

    def _calibrate(self, token_ids: list[int]) -> None:
        """Count which links of the last chain the text has followed, up to the first that it did not."""
        start, length, drafts = self._last
        for depth, (draft, token) in enumerate(zip(drafts, token_ids[start:], strict=False)):
            link = min(length + depth, _MAX_LENGTH)
            self._seen[link] += 1
            if draft != token:
                break
            self._accepted[link] += 1
