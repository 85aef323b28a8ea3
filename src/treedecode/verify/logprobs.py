"""Logprobs of the rows of tree steps against those of the model alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from treedecode.accept import Acceptance
from treedecode.engines.judge import Verified
from treedecode.tree import DraftTree
from treedecode.verify.plain import PlainModel
from treedecode.verify.results import Finding, Status
from treedecode.verify.settings import LOGPROB_TOLERANCE


class StepLogprobs:
    """An observer: the logprob of every token that a step emitted, read from the row of the node before it."""

    def __init__(self) -> None:
        self.logprobs: list[float] = []

    def __call__(
        self,
        tree: DraftTree,
        verified: Verified,
        acceptance: Acceptance,
        prefix_len: int,
        step_ms: dict[str, float],
    ) -> None:
        if verified.log_norm is None:
            raise ValueError("logprobs need the softmax denominators of a step, got none")
        for node, token in zip(acceptance.path, acceptance.token_ids, strict=False):
            (places,) = np.nonzero(verified.top_ids[node] == token)
            logit = verified.top_logits[node][places[0]] if len(places) else np.nan
            self.logprobs.append(float(logit - verified.log_norm[node]))


def compare_logprobs(
    prompt: str,
    plain: PlainModel,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    logprobs: Sequence[float],
    tolerance: float | None,
) -> Finding:
    """Logprobs of the last tokens of an output, those that steps emitted, against one plain pass."""
    count = len(logprobs)
    if not count:
        return Finding(prompt, "logprobs", Status.SKIPPED, "the output is too short for a step")
    first = len(output_ids) - count
    worst, place = 0.0, first
    for position, row in enumerate(plain.rows(prompt_ids, output_ids)):
        if position < first:
            continue
        wide = row.double()
        expected = float(wide[output_ids[position]] - wide.logsumexp(-1))
        difference = abs(logprobs[position - first] - expected)
        if not difference <= worst:  # not a number is the worst
            worst, place = difference, position

    def measured() -> float:
        return max(LOGPROB_TOLERANCE, plain.rounding([*prompt_ids, *output_ids[:place]]).tolerance)

    return worst_finding(prompt, count, worst, f"token {place} of {len(output_ids)}", tolerance, measured)


def worst_finding(
    prompt: str,
    count: int,
    worst: float,
    place: str,
    tolerance: float | None,
    measured: Callable[[], float],
) -> Finding:
    """Is the largest difference of a logprob allowed?

    Args:
        prompt: Name of the prompt.
        count: Tokens that were compared.
        worst: The difference; not a number is never allowed.
        place: Its token, in words.
        tolerance: What is allowed; None for 0.001, or ``measured`` where that does not do.
        measured: What rounding can do at the token, 0.001 at least; costs forward passes.
    """
    limit = LOGPROB_TOLERANCE if tolerance is None else tolerance
    if tolerance is None and not worst <= limit:
        limit = measured()
    passed = worst <= limit
    detail = f"{count} tokens, differ by {worst:.2g} at most; {limit:.2g} is allowed"
    if not passed:
        detail = f"{place} is off by {worst:.3g}; {limit:.2g} is allowed"
    status = Status.EXACT if passed else Status.DIFFERENT
    numbers = {"worst_difference": worst, "tolerance": limit}
    return Finding(prompt, "logprobs", status, detail, count, 0, numbers)
