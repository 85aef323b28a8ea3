"""Tokens to text as they come: no half characters, and stop strings found wherever they fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Tokens decoded again with every new one, so that spacing and byte sequences come out as in one whole decode.
_CONTEXT = 8


class TextStream:
    """Turns emitted token ids into text pieces.

    Args:
        tokenizer: A transformers tokenizer.
        stop: Strings that end the text; they are cut off. Text that may be the start of one is held back.
        min_tokens: A stop string that is complete after so many tokens or fewer ends nothing.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._tokenizer, self._stop, self._min_tokens = tokenizer, tuple(stop), min_tokens
        self._ids: list[int] = []
        self._start = 0  # first token that is decoded again
        self._done = ""  # text of _ids[_start:] that was handed on or is held
        self._held = ""
        self._exempt = 0  # characters of _held that came with the first min_tokens tokens
        self.text = ""

    def push(self, token_id: int) -> bool:
        """Takes one token; True when a stop string is now complete (the text ends before it)."""
        self._ids.append(token_id)
        window = self._decode()
        if not window.endswith("\ufffd"):
            self._held += window[len(self._done) :]
            self._done = window
            if len(self._ids) - self._start > 2 * _CONTEXT:
                self._forget()
        if len(self._ids) <= self._min_tokens:
            self._exempt = len(self._held)
            return False
        return self._cut_at_stop()

    def _forget(self) -> None:
        """Moves the start of the window up, but never into a character: that would spoil the whole run of its bytes."""
        old = self._start
        for start in range(len(self._ids) - _CONTEXT, len(self._ids)):
            self._start = start
            text = self._decode()
            if text and not text.startswith("\ufffd"):
                self._done = text
                return
        self._start = old

    def take(self) -> str:
        """Text that is sure, since the last call."""
        keep = self._partial_stop()
        piece, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self._exempt = max(0, self._exempt - len(piece))
        self.text += piece
        return piece

    def finish(self) -> str:
        """The rest: nothing more will come."""
        piece = self.rest()
        self._held, self._done = "", self._decode()
        self.text += piece
        return piece

    def rest(self) -> str:
        """What :meth:`finish` would return now; changes nothing."""
        return self._held + self._decode()[len(self._done) :]

    def _decode(self) -> str:
        # cleaning up takes back what was there before: text that was handed on could not follow
        return self._tokenizer.decode(
            self._ids[self._start :], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _cut_at_stop(self) -> bool:
        found = (self._held.find(stop, max(0, self._exempt - len(stop) + 1)) for stop in self._stop)
        places = [place for place in found if place >= 0]
        if not places:
            return False
        self._held = self._held[: min(places)]
        self._done = self._decode()
        return True

    def _partial_stop(self) -> int:
        """Length of the longest tail of the held text that could begin a stop string."""
        for size in range(min(len(self._held), max(map(len, self._stop), default=0)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0
