"""Faults in what a walk is handed: rows of the wrong node, the wrong distribution, the wrong numbers."""

from __future__ import annotations

from dataclasses import replace

from treedecode.accept import Acceptance
from treedecode.testing.enumeration import Case
from treedecode.testing.reference import Row, UniformChance, one_draw
from treedecode.testing.samplers import batched


def _scaled(row: Row) -> Row:
    return [value / sum(row) for value in row] if sum(row) else row


def _blurred(row: Row) -> Row:
    return [0.8 * value + 0.2 / len(row) for value in row]


def _with_rows(case: Case, **rows: list[Row]) -> Case:
    return replace(case, drafted=replace(case.drafted, **rows))


# ---- rows of another node


def bonus_of_the_parent(case: Case) -> Case:
    """A leaf's row serves the bonus alone: here it is its parent's."""
    parents, rows = case.drafted.parents, list(case.drafted.target_probs)
    leaves = [node for node in range(1, len(parents)) if node not in parents]
    for node in leaves:
        rows[node] = case.drafted.target_probs[parents[node]]
    return _with_rows(case, target_probs=rows)


def wrong_row_at_depth_two(case: Case) -> Case:
    """Nodes of depth 1 are read at the place of the root, so depth 2 is judged by the wrong row."""
    rows = [
        case.drafted.target_probs[0] if parent == 0 else row
        for parent, row in zip(case.drafted.parents, case.drafted.target_probs, strict=True)
    ]
    return _with_rows(case, target_probs=rows)


def one_row_off(case: Case) -> Case:
    """Every node is judged by the row of the next."""
    rows = list(case.drafted.target_probs)
    return _with_rows(case, target_probs=[*rows[1:], rows[0]])


# ---- another distribution


def temperature_ignored(case: Case) -> Case:
    """The target was sharpened by temperature 0.5; the sampler reads it as it was before."""
    rows = [_scaled([value**0.5 for value in row]) for row in case.drafted.target_probs]
    return _with_rows(case, target_probs=rows)


def temperature_of_a_batch_mate(batch: list[Case], method: str) -> list[Acceptance]:
    """Every other request is read at the temperature of the one before it (CASES.md 22)."""
    misread = [temperature_ignored(case) if row % 2 else case for row, case in enumerate(batch)]
    return batched(misread, method)


def other_draft_temperature(case: Case) -> Case:
    """Drafts were drawn at another temperature than ``draft_probs`` says."""
    rows = [_scaled([value**2 for value in row]) for row in case.drafted.draft_probs]
    return _with_rows(case, draft_probs=rows)


def list_read_as_a_draw(case: Case) -> Case:
    """Drafts were the likeliest token, and ``draft_probs`` is the softmax they were listed from (CASES.md 18)."""
    return _with_rows(case, draft_probs=[_blurred(row) for row in case.drafted.draft_probs])


def top_p_after(batch: list[Case], method: str) -> list[Acceptance]:
    """Drafts are judged by the whole distribution; only the last token's is cut to the nucleus."""
    blurred = [
        _with_rows(case, target_probs=[_blurred(row) for row in case.drafted.target_probs]) for case in batch
    ]
    results = batched(blurred, method)
    cut = []
    for case, result in zip(batch, results, strict=True):
        row = case.drafted.target_probs[result.path[-1]]
        last = result.token_ids[-1]
        last = last if row[last] > 0 else max(range(len(row)), key=row.__getitem__)
        cut.append(replace(result, token_ids=[*result.token_ids[:-1], last]))
    return cut


# ---- other numbers


def one_number_for_all(case: Case) -> Case:
    """Every decision of a step takes the same number."""
    return replace(case, uniforms=[case.uniforms[0]] * len(case.uniforms))


def numbers_of_the_drafts(case: Case) -> Case:
    """Verification starts its stream where drafting did: its k-th number is the one that drew node k + 1.

    Given the token that it drew by inverse CDF, that number is uniform on the token's interval.
    """
    drafted, numbers = case.drafted, list(case.uniforms)
    for node in range(1, len(drafted.parents)):
        row, token = drafted.draft_probs[drafted.parents[node]], drafted.token_ids[node]
        numbers[node - 1] = sum(row[:token]) + row[token] * numbers[node - 1]
    return replace(case, uniforms=numbers)


def draw_per_path(batch: list[Case], method: str) -> list[Acceptance]:
    """Every child of the root gets a draw of its own, until one comes true."""
    results = []
    for case in batch:
        numbers = list(case.uniforms)
        path, emitted = one_draw(case.drafted, UniformChance(numbers))
        for child in case.drafted.children(0):
            path, emitted = one_draw(case.drafted, UniformChance(numbers))
            if path[1:2] == [child]:
                break
            numbers = numbers[1:]
        results.append(Acceptance(path, emitted, len(path) - 1))
    return results
