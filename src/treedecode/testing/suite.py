"""The proof suite in two calls: raise if a sampler is not exact.

``check_exact`` enumerates small problems, ``check_frequencies`` counts on larger vocabularies. Both must pass for every
method that a sampler offers, and each must raise under the faults that it can see
(``treedecode.testing.mutations``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treedecode.accept_batch import BatchAcceptance
from treedecode.testing.exact import BatchSampler, exactness_batched, support_faults
from treedecode.testing.problems import BRANCHED, STARS, Problem
from treedecode.testing.statistics import chi_squared, opposed_tables, simulate
from treedecode.tree import TreeShape

PROBLEMS = STARS + BRANCHED


class InexactError(AssertionError):
    """A sampler whose output is not distributed as the target's."""


def check_exact(sampler: BatchSampler, method: str, problems: Sequence[Problem] = PROBLEMS) -> None:
    """Run ``sampler`` on every draft and every decision of small problems, in float64.

    Args:
        sampler: ``(cases, method) -> [Acceptance]``; ``treedecode.testing.exact.one_by_one`` makes one of a sampler of
            single trees.
        method: as in ``treedecode.accept_sampled``; says how siblings are drawn, too.
        problems: pairs of models and tree shapes, simplest first.

    Raises:
        InexactError: total variation of 1e-12 or more, a path or tokens that contradict the tree, or, at the numbers
            0 and 1 - 2**-53, a token that the target never says.
    """
    for problem in problems:
        verdict = exactness_batched(sampler, problem, method)
        if not verdict.exact:
            faults = "".join(f"; {fault}" for fault in verdict.faults)
            raise InexactError(
                f"{method} on {problem.name}: total variation {verdict.total_variation:.3g}, expected < 1e-12{faults}"
            )
        faults = support_faults(sampler, problem, method)
        if faults:
            raise InexactError(f"{method} on {problem.name}: {faults[0]}")


def check_frequencies(
    sampler: Callable[..., BatchAcceptance],
    method: str,
    vocab_size: int = 16,
    trials: int = 200_000,
    seed: int = 0,
    shared_stream: bool = False,
) -> None:
    """Chi-squared of a batched sampler at every position, against a drafter with minus the target's logits.

    Args:
        sampler: called like ``treedecode.accept_sampling.accept_sampled_batch``.
        method: as there.
        vocab_size: up to 64 tokens, a tree of depth 2 where every path has rows of its own; above, two siblings.
        trials: independent steps.
        seed: same seed, same steps.
        shared_stream: draw the drafts with the numbers of the walk: a fault, to test this test.

    Raises:
        InexactError: a statistic of at least df + 10 sqrt(2 df).
    """
    small = vocab_size <= 64
    tables = opposed_tables(vocab_size, 2 if small else 1, seed, context=small, scale=1.0 if small else 2.0)
    shape = TreeShape.from_parents([-1, 0, 0, 1, 1]) if small else TreeShape.star(2)
    chunk = max(1, 2_000_000 // (vocab_size * shape.num_nodes))  # rows that stay in the processor's cache
    tokens = simulate(tables, shape, method, trials, seed + 1, shared_stream, sampler, chunk)
    for position in range(shape.max_depth + 1):
        result = chi_squared(tables, tokens, position)
        if not result.passed:
            raise InexactError(
                f"{method} at position {position} of {vocab_size} tokens: chi-squared {result.statistic:.1f}, "
                f"expected < {result.threshold:.1f} ({result.degrees} degrees of freedom)"
            )
