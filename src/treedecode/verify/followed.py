"""A completion beside what the model says without trees, from near tie to near tie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from treedecode.verify.completion import Completion, Token
from treedecode.verify.logprobs import worst_finding
from treedecode.verify.reference import Reference
from treedecode.verify.results import Finding, Status, first_difference
from treedecode.verify.settings import LOGPROB_TOLERANCE, Settings

# Rounding of a server's numbers, whatever their type, moves logprobs no further than this.
_MOST = 0.5


@dataclass
class Followed:
    """How far a completion is what the model says without trees.

    Attributes:
        ties: Positions of near ties.
        fault: What is wrong at the first token that is no near tie, or empty.
        end: Tokens that were compared.
        worst: Largest difference of a logprob; below 0 where there are none.
        worst_at: Its position.
        worst_top: The likeliest tokens there, without trees.
    """

    ties: list[int]
    fault: str = ""
    end: int = 0
    worst: float = -1.0
    worst_at: int = 0
    worst_top: dict[Token, float] | None = None

    def add_logprobs(self, mine: Completion, other: Completion, done: int) -> None:
        """Those of the tokens in common; ``other`` begins after ``done`` tokens."""
        if mine.logprobs is None or other.logprobs is None:
            return
        for position in range(done, self.end):
            difference = abs(mine.logprobs[position] - other.logprobs[position - done])
            if not difference <= self.worst:  # not a number is the worst
                self.worst, self.worst_at = difference, position
                self.worst_top = other.top[position - done] if other.top else None


def follow(mine: Completion, plain: Reference, prompt: str | Sequence[int], settings: Settings) -> Followed:
    """Compares to the end; after a near tie the side without trees continues the text of the other."""
    found, tokens, done = Followed([]), mine.tokens, 0
    other = plain.complete(prompt, settings.max_new_tokens)
    while True:
        place = first_difference(tokens[done:], other.tokens)
        found.end = done + place
        found.add_logprobs(mine, other, done)
        if found.end == len(tokens) or place == len(other.tokens):
            if len(tokens) != done + len(other.tokens):
                ends = f"ended after {len(tokens)} tokens, without trees after {done + len(other.tokens)}"
                found.fault = ends
            return found
        text = mine.before(found.end)
        gap, limit = gap_of(other, place, tokens[found.end]), _tolerance(plain, other, place, text, settings)
        if gap is None or gap > limit:
            far = "not known to be among its likeliest" if gap is None else f"{gap:.3g} below it in logprobs"
            found.fault = (
                f"token {found.end} is {tokens[found.end]!r}, without trees {other.tokens[place]!r}: {far}; "
                f"a near tie is within {limit:.2g}"
            )
            return found
        found.ties.append(found.end)
        done = found.end + 1
        text = mine.before(done)
        if done == len(tokens) or text is None:
            return found
        other = plain.complete(text, len(tokens) - done)


def gap_of(other: Completion, place: int, token: Token) -> float | None:
    """How far below the best logprob a token is; None if that is not known, as of logprobs that are no numbers."""
    if other.top is None or token not in other.top[place]:
        return None
    gap = max(other.top[place].values()) - other.top[place][token]
    return None if math.isnan(gap) else gap


def _tolerance(
    plain: Reference, other: Completion, place: int, text: list[int] | None, settings: Settings
) -> float:
    """Largest gap of a near tie."""
    if settings.gap_tolerance is not None:
        return settings.gap_tolerance
    return _measured(plain, text, other.top[place] if other.top else None)


def _measured(plain: Reference, text: list[int] | None, top: dict[Token, float] | None) -> float:
    """Four times what computing logprobs in another way does to them, 0.001 at least."""
    if text is None or top is None:
        return LOGPROB_TOLERANCE
    noise = plain.noise(text, top)
    # logprobs that are not finite measure nothing
    return min(max(4 * noise, LOGPROB_TOLERANCE), _MOST) if math.isfinite(noise) else LOGPROB_TOLERANCE


def greedy_finding(name: str, mine: Completion, found: Followed) -> Finding:
    """Are the tokens those of the model without trees?"""
    count, ties = len(mine.tokens), len(found.ties)
    unit = "tokens" if mine.tells_tokens else "characters"
    if found.fault:
        return Finding(name, "greedy", Status.DIFFERENT, found.fault, found.end, ties)
    if not ties:
        return Finding(name, "greedy", Status.EXACT, f"{count} {unit} identical", count)
    detail = f"{count} {unit}, but for a near tie at {', '.join(map(str, found.ties[:5]))}"
    if mine.before(count) is None:
        detail += "; not compared after it, as the server gives no token ids"
    return Finding(name, "greedy", Status.NEAR_TIE, detail, found.end, ties)


def logprob_finding(
    name: str, mine: Completion, found: Followed, plain: Reference, settings: Settings
) -> Finding:
    """Are the logprobs of the tokens in common the same?"""
    if found.worst < 0:
        return Finding(name, "logprobs", Status.SKIPPED, "there are none to compare")

    def measured() -> float:
        return _measured(plain, mine.before(found.worst_at), found.worst_top)

    place = f"token {found.worst_at}"
    return worst_finding(name, found.end, found.worst, place, settings.logprob_tolerance, measured)
