"""Every sampler against its target, exactly."""

from __future__ import annotations

import pytest

from treedecode.accept_inputs import METHODS
from treedecode.testing import reference
from treedecode.testing.enumeration import cases
from treedecode.testing.exact import (
    exactness,
    exactness_batched,
    exactness_of_walk,
    one_by_one,
    support_faults,
)
from treedecode.testing.problems import random_problem
from treedecode.testing.samplers import batched, public
from treedecode.testing.samplers import reference as reference_sampler

TREES = {
    "root": (-1,),
    "one": (-1, 0),
    "star of 2": (-1, 0, 0),
    "chain of 3": (-1, 0, 1, 2),
    "branches": (-1, 0, 0, 1, 1),
    "late branch": (-1, 0, 1, 0, 3),
    "depth 3": (-1, 0, 0, 1, 3),
    "two by two by one": (-1, 0, 0, 1, 1, 2, 3),
}
KINDS = ("any", "zeros", "certain", "equal", "opposed", "narrow")


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("method", METHODS)
def test_batched_walks_have_the_targets_distribution(tree, method):
    for seed, kind in enumerate(KINDS):
        problem = random_problem(TREES[tree], 3, seed, kind)
        verdict = exactness_batched(batched, problem, method)
        assert verdict.exact, (kind, verdict)
        assert support_faults(batched, problem, method) == [], kind


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("method", METHODS)
def test_the_reference_has_the_targets_distribution(tree, method):
    for seed, kind in enumerate(KINDS):
        problem = random_problem(TREES[tree], 3, seed, kind)
        verdict = exactness_of_walk(reference.walk, problem, method)
        assert verdict.exact, (kind, verdict)
        assert support_faults(one_by_one(reference_sampler), problem, method) == [], kind


@pytest.mark.parametrize("method", METHODS)
def test_the_public_function_has_the_targets_distribution(method):
    for parents, kind in (((-1, 0, 0), "zeros"), ((-1, 0, 1), "any"), ((-1, 0, 0), "certain")):
        problem = random_problem(parents, 3, 7, kind)
        assert exactness(public, problem, method).exact
        assert support_faults(one_by_one(public), problem, method) == []


@pytest.mark.parametrize("method", METHODS)
def test_cases_are_everything_that_can_happen(method):
    problem = random_problem((-1, 0, 0, 1), 3, 0)
    found = cases(problem, method)
    assert sum(case.mass for case in found) == pytest.approx(1, abs=1e-12)
    drafts = {case.tree.token_tuple for case in found}
    assert len(drafts) == (27 if method.endswith("with_replacement") else 18)


def test_the_suite_measures_a_known_distance():
    """A walk that emits token 0 whatever the target says is off by the mass of the others."""
    problem = random_problem((-1, 0), 3, 0)
    verdict = exactness_of_walk(lambda drafted, method, chance: ([0], [0]), problem, "one_draw")
    assert verdict.total_variation == pytest.approx(1 - problem.target(())[0], abs=1e-12)


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        (lambda tokens: ([0, 2], [tokens[2], 0]), "is no path"),
        (lambda tokens: ([0, 1], [1 - tokens[1], 0]), "not those of the path"),
        (lambda tokens: ([0, 1], [tokens[1]]), "not accepted nodes"),
    ],
)
def test_a_step_that_contradicts_itself_is_a_fault(step, fault):
    problem = random_problem((-1, 0, 1), 2, 0)
    verdict = exactness_of_walk(lambda drafted, method, chance: step(drafted.token_ids), problem, "one_draw")
    assert any(fault in found for found in verdict.faults) and not verdict.exact
