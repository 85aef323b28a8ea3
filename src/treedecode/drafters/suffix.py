"""Suffix matching: what followed earlier occurrences of the last few tokens in prompt and output."""

from __future__ import annotations

from typing import Protocol

ORDERS = (8, 6, 4, 3, 2, 1)
MAX_ORDER = ORDERS[0]
# Longest match that is told apart from longer ones.
MAX_MATCH = 24
# Only so many of a prompt's last tokens are indexed, at about 2 KB each.
MAX_INDEXED = 32768

# Followers kept of each context, and looked at: of the longest match, and of each shorter one.
NUM_FOLLOWERS, _NUM_LATEST, _NUM_LOWER = 32, 6, 4

# by match length: its bin
_LENGTH_BIN = [0, 0, 1, 2, 3, 3, 4, 4] + [5] * 4 + [6] * 4 + [7] * 8 + [8]
_NUM_STATES = 10
_FIRST_LOWER = 1 + (_LENGTH_BIN[-1] + 1) * _NUM_STATES
NUM_SUFFIX_FEATURES = _FIRST_LOWER + 2 * (MAX_ORDER + 1)
NUM_LENGTH_BINS = _LENGTH_BIN[-1] + 2

Successors = dict[int, int]


class FollowerSource(Protocol):
    """Followers in the texts of other requests."""

    def followers(self, context: tuple[int, ...]) -> Successors | None:
        """Of a context, the latest last, not to be modified; None if there are none."""
        ...


class SuffixIndex:
    """Counts of the tokens that followed every context of 1, 2, 3, 4, 6 and 8 tokens, the latest follower last.

    Grows with the text; a token costs a few microseconds to add.

    Args:
        others: asked for a context that is not known here.
    """

    def __init__(self, others: FollowerSource | None = None) -> None:
        self.successors: dict[tuple[int, ...], Successors] = {}
        self._others = others
        self._latest: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def extend(self, token_ids: list[int]) -> None:
        """Index the tokens of ``token_ids`` beyond those of the last call; it must continue the same text."""
        if not self._num_indexed:
            self._num_indexed = max(0, len(token_ids) - MAX_INDEXED)
        index = self.successors
        start = self._num_indexed
        for position in range(max(1, start), len(token_ids)):
            token = token_ids[position]
            tail = tuple(token_ids[max(0, position - MAX_ORDER) : position])
            size = len(tail)
            for order in ORDERS:
                if order > size:
                    continue
                key = tail[-order:]
                followers = index.get(key)
                if followers is None:
                    index[key] = {token: 1}
                else:
                    # put it last: the order of a dict is the order of arrival
                    followers[token] = followers.pop(token, 0) + 1
                    if len(followers) > NUM_FOLLOWERS:
                        del followers[next(iter(followers))]
            if size == MAX_ORDER:
                self._latest[tail] = position
        self._num_indexed = len(token_ids)

    def match_length(self, token_ids: list[int]) -> int:
        """Length of the match at the end of the text where the longest context last occurred, up to ``MAX_MATCH``.

        0 if there is no match of ``MAX_ORDER`` tokens.
        """
        earlier = self._latest.get(tuple(token_ids[-MAX_ORDER:]))
        if earlier is None:
            return 0
        length, end = MAX_ORDER, len(token_ids)
        while (
            length < MAX_MATCH
            and length < earlier
            and token_ids[earlier - length - 1] == token_ids[end - length - 1]
        ):
            length += 1
        return length

    def add_candidates(
        self,
        tail: tuple[int, ...],
        match_length: int,
        tokens: list[int],
        features: list[int],
        max_candidates: int,
    ) -> int:
        """Add what followed the end of ``tail`` before, longest match first, and give every token its feature.

        Args:
            tail: the last ``MAX_ORDER`` tokens (fewer at the start of a text).
            match_length: length of the match that the last token of ``tail`` continued, 0 if unknown.
            tokens: candidates so far; new ones are appended.
            features: one per candidate, 0 for those so far; changed in place.
            max_candidates: add no more once there are so many.

        Returns:
            The length of the longest match, 0 if there is none.
        """
        get, others = self.successors.get, self._others
        size, longest = len(tail), 0
        for order in ORDERS:
            if order > size:
                continue
            followers = get(tail[-order:])
            if followers is None and others is not None:
                followers = others.followers(tail[-order:])
            if followers is None:
                continue
            if not longest:
                longest = min(max(order, match_length + 1), MAX_MATCH) if order == MAX_ORDER else order
                first = 1 + _LENGTH_BIN[longest] * _NUM_STATES
                for token, state in _states(followers):
                    _note(tokens, features, token, first + state)
            elif len(tokens) >= max_candidates:
                break
            else:
                for place, token in enumerate(reversed(followers)):
                    if token not in tokens or not features[tokens.index(token)]:
                        _note(tokens, features, token, _FIRST_LOWER + 2 * order + (place > 0))
                    if place == _NUM_LOWER - 1:
                        break
        return longest


def length_bin(match_length: int) -> int:
    """Bin of a match length; 0 for no match."""
    return _LENGTH_BIN[match_length] + 1 if match_length else 0


def _states(followers: Successors) -> list[tuple[int, int]]:
    """The latest followers and the state of each, by how lately and in how many cases it followed."""
    if len(followers) == 1:
        [(token, count)] = followers.items()
        return [(token, min(count, 4) - 1)]
    total = sum(followers.values())
    states = []
    for place, token in zip(range(_NUM_LATEST), reversed(followers), strict=False):
        often = followers[token] * (4 if place > 1 else 2) > total
        states.append((token, (4, 6, 8)[min(place, 2)] + (not often)))
    return states


def _note(tokens: list[int], features: list[int], token: int, feature: int) -> None:
    if token in tokens:
        features[tokens.index(token)] = feature
    else:
        tokens.append(token)
        features.append(feature)
