"""What traversal verification accepts, against recursive rejection on the same drafts, exactly."""

from __future__ import annotations

import pytest

from treedecode.testing import reference
from treedecode.testing.exact import exactness_of_walk
from treedecode.testing.problems import Problem, random_problem


def accepted(problem, method):
    return exactness_of_walk(reference.walk, problem, method).expected_accepted


@pytest.mark.parametrize("kind", ["any", "zeros", "opposed"])
def test_traversal_never_accepts_less_on_a_chain(kind):
    gained = 0
    for seed in range(12):
        for depth in (1, 2, 3):
            problem = random_problem((-1, *range(depth)), 3, seed, kind)
            one, other = accepted(problem, "traversal"), accepted(problem, "without_replacement")
            assert one >= other - 1e-12
            gained += one > other + 1e-6
    assert gained > 8


def test_the_example_of_block_verification():
    """arXiv:2403.10444, section 3: target (1/3, 2/3), draft (2/3, 1/3), a chain of 2: 11/9 against 10/9 tokens."""
    problem = Problem((-1, 0, 1), 2, lambda path: [1 / 3, 2 / 3], lambda path: [2 / 3, 1 / 3])
    assert accepted(problem, "without_replacement") == pytest.approx(10 / 9, abs=1e-12)
    assert accepted(problem, "traversal") == pytest.approx(11 / 9, abs=1e-12)


def test_traversal_may_accept_less_where_a_leaf_stands_before_a_subtree():
    """Node 2, a leaf, is judged before node 3, which has a child: depth is lost for breadth."""
    leaf_first = [
        accepted(random_problem((-1, 0, 1, 1, 3), 2, seed, "opposed"), "traversal")
        - accepted(random_problem((-1, 0, 1, 1, 3), 2, seed, "opposed"), "without_replacement")
        for seed in range(40)
    ]
    assert min(leaf_first) < -1e-3 and max(leaf_first) > 1e-3
