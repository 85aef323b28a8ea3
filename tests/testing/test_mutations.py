"""The suite passes the samplers of the package, and raises under every planted fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from treedecode.accept_inputs import METHODS
from treedecode.accept_sampling import accept_sampled_batch
from treedecode.testing.exact import one_by_one
from treedecode.testing.mutations import EVERY, MUTATIONS, NOT_REPLACED, SAMPLED
from treedecode.testing.samplers import batched, reference
from treedecode.testing.suite import InexactError, check_exact, check_frequencies

PLANTED = [(name, method) for name, mutation in MUTATIONS.items() for method in mutation.methods]
# seen by counting: those in a function of the core that change the distribution
COUNTED = [
    ("residual softmaxed", "with_replacement"),
    ("residual softmaxed", "without_replacement"),
    ("residual not normalised", "with_replacement"),
    ("no residual", "with_replacement"),
    ("siblings not renormalised", "without_replacement"),
    ("draft unchanged between siblings", "without_replacement"),
    ("draft unchanged between siblings", "traversal"),
    ("path weight forgotten", "traversal"),
    ("weight not updated", "traversal_with_replacement"),
    ("greedy last token", "one_draw"),
]


@pytest.mark.parametrize("method", METHODS)
def test_the_batched_walks_pass(method):
    check_exact(batched, method)


@pytest.mark.parametrize("method", METHODS)
def test_the_reference_passes(method):
    check_exact(one_by_one(reference), method)


@pytest.mark.parametrize(("name", "method"), PLANTED)
def test_every_mutation_is_caught(name, method):
    with pytest.raises(InexactError, match=f"^{method} on parents"):
        check_exact(MUTATIONS[name].sampler, method)


def test_every_method_has_its_mutations():
    assert EVERY == METHODS
    for method in METHODS:
        assert sum(method in mutation.methods for mutation in MUTATIONS.values()) >= 9


@pytest.mark.parametrize(("name", "method"), COUNTED)
def test_mutations_are_caught_by_counting(name, method):
    plant = MUTATIONS[name].plant
    assert plant is not None
    with plant(), pytest.raises(InexactError, match="chi-squared"):
        check_frequencies(accept_sampled_batch, method)


@pytest.mark.parametrize("method", SAMPLED)
def test_a_stream_shared_by_drafting_and_verification_is_caught_by_counting(method):
    with pytest.raises(InexactError, match="chi-squared"):
        check_frequencies(accept_sampled_batch, method, trials=100_000, shared_stream=True)


def test_a_failed_check_says_on_which_problem_and_how_far_off():
    with pytest.raises(InexactError, match=r"total variation 0\.\d+, expected < 1e-12"):
        check_exact(MUTATIONS["siblings in reverse"].sampler, NOT_REPLACED[0])


def test_the_example_of_the_docs_runs():
    page = (Path(__file__).parents[2] / "docs" / "exactness.md").read_text()
    exec(page.split("```python\n")[1].split("```")[0], {})
