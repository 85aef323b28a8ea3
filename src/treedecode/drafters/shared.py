"""What ended requests leave to later ones: bounded, oldest forgotten first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from treedecode import topology
from treedecode.drafters.recycling import MAX_ORDER, RecycleStore, Row
from treedecode.drafters.suffix import NUM_FOLLOWERS, Successors, SuffixIndex

# The latest contexts of each kind that one request leaves, so that its end takes milliseconds.
MAX_LEFT = 4096

T = TypeVar("T")


class SharedStore:
    """Contexts that the outputs of ended requests have taught: recycled rows and followers.

    A running request keeps what it learns for itself and looks here where it knows nothing (``RecycleStore`` and
    ``SuffixIndex`` take a store as their second source). Only ``leave`` adds to it, and what it adds is copied, so that
    no request in flight changes what another one has. Same calls, same content.

    Args:
        max_contexts: most contexts kept, at least 1; about half a kilobyte each.

    Raises:
        TypeError, ValueError: ``max_contexts`` is no integer or below 1.
    """

    def __init__(self, max_contexts: int) -> None:
        self._max_contexts = topology.count(max_contexts, "max_contexts", minimum=1)
        # oldest first; a context that is left again counts as new
        self._rows: dict[tuple[int, ...], Row] = {}
        self._followers: dict[tuple[int, ...], Successors] = {}

    def __len__(self) -> int:
        return len(self._rows) + len(self._followers)

    def row(self, context: tuple[int, ...]) -> Row | None:
        """What the target last said after ``context`` in an ended request; not to be modified."""
        return self._rows.get(context)

    def followers(self, context: tuple[int, ...]) -> Successors | None:
        """What followed ``context`` in ended requests' outputs, the latest last; not to be modified."""
        return self._followers.get(context)

    def leave(self, rows: RecycleStore | None, token_ids: list[int], prompt_len: int) -> None:
        """A request has ended.

        Args:
            rows: what it recycled; None for nothing. Only what was said after a token of the output, or after the last
                one of the prompt, is left: other rows may have been asked in the prompt, or for drafts copied from it.
            token_ids: prompt and output.
            prompt_len: number of prompt tokens. The prompt itself is not indexed.
        """
        first = max(prompt_len, len(token_ids) - MAX_LEFT)
        if rows is not None:
            contexts = dict.fromkeys(
                tuple(token_ids[max(0, end - length) : end])
                for end in range(first, len(token_ids) + 1)
                for length in range(MAX_ORDER, 0, -1)
            )
            for context in _latest(context for context in contexts if context in rows.rows):
                self._rows.pop(context, None)
                self._rows[context] = rows.rows[context]
        matches = SuffixIndex()
        matches.extend(token_ids[first:])
        for context, followers in _latest(matches.successors.items()):
            merged = self._followers.pop(context, {})
            for token, count in followers.items():
                merged[token] = merged.pop(token, 0) + count
            for token in list(islice(merged, max(0, len(merged) - NUM_FOLLOWERS))):
                del merged[token]
            self._followers[context] = merged
        self._forget_oldest()

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self._followers.clear()

    def _forget_oldest(self) -> None:
        """Rows and followers have half of the room each, or what the other leaves."""
        half = self._max_contexts // 2
        for kind, other in ((self._rows, self._followers), (self._followers, self._rows)):
            room = max(half, self._max_contexts - len(other))
            for context in list(islice(kind, max(0, len(kind) - room))):
                del kind[context]


def _latest(items: Iterable[T]) -> list[T]:
    """The last ``MAX_LEFT`` items, in their order."""
    listed = list(items)
    return listed[-MAX_LEFT:]
