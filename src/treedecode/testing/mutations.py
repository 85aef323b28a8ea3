"""Faults of sampled walks, planted on purpose: a suite that passes under one of them proves nothing.

Most have been in published code. ``MUTATIONS`` maps a name to a faulty sampler; every one differs from the core in
one place. Point your own suite at them, or wrap your own sampler in ``reread`` with the same changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from treedecode import accept_sampling, rejection, traversal
from treedecode.accept import Acceptance
from treedecode.testing.exact import BatchSampler, Case, Walk
from treedecode.testing.reference import Chance, Drafted, Row, UniformChance, one_draw, walk
from treedecode.testing.samplers import batched

SAMPLED = ("with_replacement", "without_replacement", "traversal", "traversal_with_replacement")
TOP_DOWN = SAMPLED[:2]
BOTTOM_UP = SAMPLED[2:]
EVERY = ("one_draw", *SAMPLED)


@dataclass(frozen=True)
class Mutation:
    """A faulty sampler.

    Attributes:
        sampler: the sampler, in the form of ``exactness_batched``.
        methods: the methods that have the fault.
        at_the_edge: whether it shows at the numbers 0 and 1 - 2**-53 alone (``support_faults``), not in the output
            distribution.
        stars_only: whether the sampler takes trees of depth 1 only.
    """

    sampler: BatchSampler
    methods: tuple[str, ...]
    at_the_edge: bool = False
    stars_only: bool = False


def patched(open_fault: Callable[[], AbstractContextManager[Any]]) -> BatchSampler:
    """The batched core while a fault is open."""

    def run(batch: list[Case], method: str) -> list[Acceptance]:
        with open_fault():
            return batched(batch, method)

    return run


def replaced(module: Any, name: str, change: Callable[..., Any]) -> BatchSampler:
    """The batched core with a function replaced."""
    return patched(lambda: mock.patch.object(module, name, change))


def reread(change: Callable[[Case], Case]) -> BatchSampler:
    """The batched core on cases that it misreads."""
    return lambda batch, method: batched([change(case) for case in batch], method)


def _scaled(row: Row) -> Row:
    return [value / sum(row) for value in row] if sum(row) else row


def _with_rows(case: Case, **rows: list[Row]) -> Case:
    return replace(case, drafted=replace(case.drafted, **rows))


# ---- top-down: one function of the core each


def _accept_or_equal(uniforms: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    return uniforms * draft <= target


def _inverted_ratio(uniforms: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    return uniforms * target < draft


def _residual_as_it_is(target: Tensor, draft: Tensor) -> Tensor:
    return (target - draft).clamp(min=0)


def _softmaxed_residual(target: Tensor, draft: Tensor) -> Tensor:
    return (target - draft).clamp(min=0).softmax(-1)


def _absolute_residual(target: Tensor, draft: Tensor) -> Tensor:
    return accept_sampling.normalised((target - draft).abs())


def _siblings_not_renormalised(draft: Tensor, token: Tensor) -> Tensor:
    return draft.scatter(1, token[:, None], 0.0)


@contextmanager
def _same_draft_for_all_siblings() -> Iterator[None]:
    def without(draft: Tensor, token: Tensor) -> Tensor:
        return draft

    with mock.patch.object(rejection, "without", without), mock.patch.object(traversal, "without", without):
        yield


@contextmanager
def _not_renormalised() -> Iterator[None]:
    with (
        mock.patch.object(rejection, "without", _siblings_not_renormalised),
        mock.patch.object(traversal, "without", _siblings_not_renormalised),
    ):
        yield


# ---- bottom-up


def _path_weight_forgotten(weight: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    return traversal_entry(torch.ones_like(weight), target, draft)


def _weight_not_updated(weight: Tensor, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    return traversal_remainder(weight, target, draft)[0], weight


def _residual_of_the_token(weight: Tensor, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    plain = traversal_remainder(torch.ones_like(weight), target, draft)[0]
    return plain, traversal_remainder(weight, target, draft)[1]


def _judged_or_equal(uniforms: Tensor, weight: Tensor) -> Tensor:
    return uniforms <= weight


traversal_entry, traversal_remainder = traversal.entry_weight, traversal.remainder


# ---- the last token


def _greedy_last_token(weights: Tensor, uniforms: Tensor) -> Tensor:
    return weights.argmax(-1)


def _first_reaching(weights: Tensor, uniforms: Tensor) -> Tensor:
    cumulative = weights.cumsum(-1)
    return torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:])[:, 0]


def _bonus_of_the_parent(case: Case) -> Case:
    """A leaf's row serves the bonus alone: here it is its parent's."""
    parents, rows = case.drafted.parents, list(case.drafted.target_probs)
    leaves = [node for node in range(1, len(parents)) if node not in parents]
    for node in leaves:
        rows[node] = case.drafted.target_probs[parents[node]]
    return _with_rows(case, target_probs=rows)


# ---- rows and numbers


def _parents_row_at_depth_two(case: Case) -> Case:
    """The nodes of depth 1 are read at the place of an earlier one, so depth 2 is judged by the wrong row."""
    parents, rows = case.drafted.parents, list(case.drafted.target_probs)
    for node, parent in enumerate(parents):
        if parent == 0:
            rows[node] = case.drafted.target_probs[0]
    return _with_rows(case, target_probs=rows)


def _one_row_off(case: Case) -> Case:
    rows = list(case.drafted.target_probs)
    return _with_rows(case, target_probs=[*rows[1:], rows[0]])


def _temperature_ignored(case: Case) -> Case:
    """The target was sharpened by temperature 0.5; the sampler reads it as it was before."""
    rows = [_scaled([value**0.5 for value in row]) for row in case.drafted.target_probs]
    return _with_rows(case, target_probs=rows)


def _other_draft_temperature(case: Case) -> Case:
    rows = [_scaled([value**2 for value in row]) for row in case.drafted.draft_probs]
    return _with_rows(case, draft_probs=rows)


def _one_number_for_all(case: Case) -> Case:
    return replace(case, uniforms=[case.uniforms[0]] * len(case.uniforms))


def _top_p_after(batch: list[Case], method: str) -> list[Acceptance]:
    """Drafts are judged by the whole distribution; only the last token's is cut to the nucleus."""
    blurred = [
        _with_rows(
            case,
            target_probs=[
                [0.8 * value + 0.2 / len(row) for value in row] for row in case.drafted.target_probs
            ],
        )
        for case in batch
    ]
    results = batched(blurred, method)
    cut = []
    for case, result in zip(batch, results, strict=True):
        row = case.drafted.target_probs[result.path[-1]]
        last = result.token_ids[-1]
        last = last if row[last] > 0 else max(range(len(row)), key=row.__getitem__)
        cut.append(replace(result, token_ids=[*result.token_ids[:-1], last]))
    return cut


def _draw_per_path(batch: list[Case], method: str) -> list[Acceptance]:
    """Every child of the root gets a draw of its own."""
    results = []
    for case in batch:
        numbers = list(case.uniforms)
        for child in case.drafted.children(0):
            path, emitted = one_draw(case.drafted, UniformChance(numbers))
            if path[1:2] == [child]:
                break
            numbers = numbers[1:]
        results.append(Acceptance(path, emitted, len(path) - 1))
    return results


# ---- drawn siblings handled as if they were a list (CASES 20b-20d); depth 1 only


def relisted(choose: Callable[[Drafted, list[int]], list[int]], recount: bool = False) -> Walk:
    """The reference walk over the root's children as ``choose`` lists them; nodes keep their numbers.

    With ``recount``, the draft probability of a token is multiplied by the number of its nodes.
    """

    def faulty(drafted: Drafted, method: str, chance: Chance) -> tuple[list[int], list[int]]:
        kept = choose(drafted, drafted.children(0))
        order = [0, *kept]
        draft = list(drafted.draft_probs[0])
        if recount:
            for token in {drafted.token_ids[node] for node in kept}:
                draft[token] *= sum(drafted.token_ids[n] == token for n in drafted.children(0))
        rows = [drafted.target_probs[node] for node in order]
        tokens = [drafted.token_ids[node] for node in order]
        small = Drafted([-1] + [0] * len(kept), tokens, rows, [draft] * len(order))
        path, emitted = walk(small, method, chance)
        return [order[node] for node in path], emitted

    return faulty


def driven(faulty: Walk) -> BatchSampler:
    """A walk against ``Chance`` as a sampler of batches."""

    def run(batch: list[Case], method: str) -> list[Acceptance]:
        results = [faulty(case.drafted, method, UniformChance(case.uniforms)) for case in batch]
        return [Acceptance(path, emitted, len(path) - 1) for path, emitted in results]

    return run


def by_draft_probability(drafted: Drafted, children: list[int]) -> list[int]:
    """Likeliest first."""
    return sorted(children, key=lambda node: -drafted.draft_probs[0][drafted.token_ids[node]])


def merged(drafted: Drafted, children: list[int]) -> list[int]:
    """The first of every token."""
    tokens = [drafted.token_ids[node] for node in children]
    return [node for place, node in enumerate(children) if tokens[place] not in tokens[:place]]


def confident(drafted: Drafted, children: list[int]) -> list[int]:
    """Those with a draft probability of at least 1/4."""
    return [node for node in children if drafted.draft_probs[0][drafted.token_ids[node]] >= 0.25]


def legal(drafted: Drafted, children: list[int]) -> list[int]:
    """Those that the target's mask allows."""
    return [node for node in children if drafted.target_probs[0][drafted.token_ids[node]] > 0]


def backwards(drafted: Drafted, children: list[int]) -> list[int]:
    """Last first."""
    return children[::-1]


MUTATIONS: dict[str, Mutation] = {
    "accept with <=": Mutation(replaced(rejection, "accepts", _accept_or_equal), TOP_DOWN, at_the_edge=True),
    "judge with <=": Mutation(replaced(traversal, "accepts", _judged_or_equal), BOTTOM_UP, at_the_edge=True),
    "draw the first that reaches u": Mutation(
        replaced(accept_sampling, "draw", _first_reaching), EVERY, at_the_edge=True
    ),
    "ratio upside down": Mutation(replaced(rejection, "accepts", _inverted_ratio), TOP_DOWN),
    "residual not normalised": Mutation(replaced(rejection, "residual", _residual_as_it_is), TOP_DOWN),
    "residual softmaxed": Mutation(replaced(rejection, "residual", _softmaxed_residual), TOP_DOWN),
    "residual of absolute differences": Mutation(
        replaced(rejection, "residual", _absolute_residual), TOP_DOWN
    ),
    "no residual": Mutation(replaced(rejection, "residual", lambda target, draft: target), TOP_DOWN),
    "siblings not renormalised": Mutation(patched(_not_renormalised), ("without_replacement", "traversal")),
    "draft unchanged between siblings": Mutation(
        patched(_same_draft_for_all_siblings), ("without_replacement", "traversal")
    ),
    "path weight forgotten": Mutation(replaced(traversal, "entry_weight", _path_weight_forgotten), BOTTOM_UP),
    "weight not updated": Mutation(replaced(traversal, "remainder", _weight_not_updated), BOTTOM_UP),
    "residual of the token, not of the path": Mutation(
        replaced(traversal, "remainder", _residual_of_the_token), BOTTOM_UP
    ),
    "greedy last token": Mutation(replaced(accept_sampling, "draw", _greedy_last_token), SAMPLED),
    "bonus from the wrong node": Mutation(reread(_bonus_of_the_parent), EVERY),
    "wrong row of logits at depth 2": Mutation(reread(_parents_row_at_depth_two), EVERY),
    "rows one off": Mutation(reread(_one_row_off), EVERY),
    "temperature ignored": Mutation(reread(_temperature_ignored), EVERY),
    "draft probabilities of another temperature": Mutation(reread(_other_draft_temperature), SAMPLED),
    "one number for all decisions": Mutation(reread(_one_number_for_all), EVERY),
    "top-p applied after": Mutation(_top_p_after, EVERY),
    "draw per path": Mutation(_draw_per_path, ("one_draw",)),
    "siblings sorted by draft probability": Mutation(
        driven(relisted(by_draft_probability)), ("without_replacement", "traversal"), stars_only=True
    ),
    "siblings in reverse": Mutation(
        driven(relisted(backwards)), ("without_replacement", "traversal"), stars_only=True
    ),
    "duplicate siblings merged": Mutation(
        driven(relisted(merged)), ("with_replacement", "traversal_with_replacement"), stars_only=True
    ),
    "duplicate siblings counted twice": Mutation(
        driven(relisted(merged, recount=True)),
        ("with_replacement", "traversal_with_replacement"),
        stars_only=True,
    ),
    "drawn siblings pruned by confidence": Mutation(driven(relisted(confident)), SAMPLED, stars_only=True),
    "drawn siblings pruned by a grammar": Mutation(driven(relisted(legal)), SAMPLED, stars_only=True),
}
