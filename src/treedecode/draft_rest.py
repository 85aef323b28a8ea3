"""Leaves drafting out for a few steps where nothing that was drafted was worth verifying."""

from __future__ import annotations

# Drafts in a row of which nothing was verified: before the first rest, and between two.
PATIENCE, _AGAIN = 16, 2
# Steps of the first rest and of the longest: every rest in vain is followed by one twice as long.
_FIRST, LONGEST = 4, 16


class DraftRest:
    """Counts the drafts of one batch size whose plan was to verify none of their nodes.

    Past break-even that is all of them: each costs the search and the target's best candidates of every row. A guard
    sees that as a loss, but it is patient, as losses usually are the price of gains. Here there can be no gain.
    """

    def __init__(self) -> None:
        self._num_vain = self._length = self._left = 0

    @property
    def rests(self) -> bool:
        """Whether the next step need not draft."""
        return self._left > 0

    def planned(self, num_drafted: int, num_verified: int) -> None:
        """A step was planned.

        Args:
            num_drafted: nodes that were drafted for it.
            num_verified: those that it verifies.
        """
        if num_verified:
            self._num_vain = self._length = self._left = 0
        elif self._left:
            self._left -= 1
        elif num_drafted:
            self._num_vain += 1
            if self._num_vain >= (_AGAIN if self._length else PATIENCE):
                self._num_vain = 0
                self._length = self._left = min(LONGEST, 2 * self._length or _FIRST)
