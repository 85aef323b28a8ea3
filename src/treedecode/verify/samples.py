"""Chi-squared of sampled continuations: two servers against each other, or one against a model's distributions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from torch import Tensor

from treedecode.engines.params import SamplingParams
from treedecode.testing.statistics import ChiSquared
from treedecode.verify.completion import Token
from treedecode.verify.counts import Counted, count_tokens
from treedecode.verify.settings import LOGPROB_TOLERANCE

# Continuations after the same tokens are compared where there are so many of both.
_FEWEST = 20
# Tokens that occur less often are counted together.
_RARE = 10
# Contexts per prompt for which a model is asked.
_MOST_CONTEXTS = 4

Continuation = tuple[Token, ...]
# No server's token: the output ended here.
_END = -1


def by_context(samples: Sequence[Continuation]) -> dict[Continuation, Counter[Token]]:
    """Counts of the token after every beginning."""
    counts: dict[Continuation, Counter[Token]] = defaultdict(Counter)
    for sample in samples:
        for place, token in enumerate(sample):
            counts[sample[:place]][token] += 1
    return counts


def _with_ends(samples: Sequence[Continuation], length: int) -> list[Continuation]:
    """An output that ends early says so: what follows it is counted like a token."""
    return [sample if len(sample) == length else (*sample, _END) for sample in samples]


def two_samples(mine: Sequence[Continuation], other: Sequence[Continuation]) -> Counted:
    """Whether both may come from one distribution, token by token given those before, ends before the last included.

    The statistic for two counts a, b of each token out of A, B is the sum of (a sqrt(B/A) - b sqrt(A/B))^2 / (a + b)
    (Numerical Recipes, 3rd ed., section 14.3.3), with one degree of freedom less than tokens.
    """
    length = max(map(len, [*mine, *other]), default=0)
    left, right = (by_context(_with_ends(samples, length)) for samples in (mine, other))
    statistic, degrees, counted = 0.0, 0, 0
    for context in left.keys() & right.keys():
        a, b = left[context], right[context]
        total_a, total_b = a.total(), b.total()
        if min(total_a, total_b) < _FEWEST:
            continue
        cells: dict[Token | None, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for token in a.keys() | b.keys():
            cell = token if a[token] + b[token] >= _RARE else None
            cells[cell] = (cells[cell][0] + a[token], cells[cell][1] + b[token])
        ratio = math.sqrt(total_b / total_a)
        statistic += sum((x * ratio - y / ratio) ** 2 / (x + y) for x, y in cells.values())
        degrees += len(cells) - 1
        counted += total_a
    return Counted(ChiSquared(statistic, degrees), counted)


def against_model(
    samples: Sequence[Continuation], row_after: Callable[[Continuation], Tensor], params: SamplingParams
) -> Counted:
    """Whether they come from a model's distributions, after the most frequent beginnings.

    Args:
        samples: Token ids.
        row_after: Logits ``[vocab]`` after a beginning.
        params: How they were sampled.
    """
    counts = by_context(samples)
    frequent = sorted(counts, key=lambda context: -counts[context].total())[:_MOST_CONTEXTS]
    places = [
        (row_after(context), [int(token) for token in counts[context].elements()])
        for context in frequent
        if counts[context].total() >= _FEWEST
    ]
    return count_tokens(places, params, LOGPROB_TOLERANCE)
