"""What traversal verification accepts, against recursive rejection on the same drafts, exactly."""

from __future__ import annotations

import pytest

from treedecode.testing import reference
from treedecode.testing.exact import exactness_of_walk
from treedecode.testing.problems import Problem, random_problem

PAIRS = (("traversal", "without_replacement"), ("traversal_with_replacement", "with_replacement"))
LEAF_FIRST = (-1, 0, 1, 1, 3)  # below node 1, the leaf 2 stands before node 3, which has a child


def accepted(problem, method):
    return exactness_of_walk(reference.walk, problem, method).expected_accepted


def same_everywhere(parents, target, draft):
    return Problem(parents, len(target), lambda path: target, lambda path: draft)


@pytest.mark.parametrize(("kind", "least_gained"), [("any", 20), ("opposed", 20), ("zeros", 3)])
def test_traversal_never_accepts_less_on_a_chain(kind, least_gained):
    gained = 0
    for seed in range(12):
        for depth in (1, 2, 3):
            problem = random_problem((-1, *range(depth)), 3, seed, kind)
            one, other = accepted(problem, "traversal"), accepted(problem, "without_replacement")
            assert one >= other - 1e-12
            gained += one > other + 1e-6
    assert gained >= least_gained


def test_the_example_of_block_verification():
    """arXiv:2403.10444, section 3: target (1/3, 2/3), draft (2/3, 1/3), a chain of 2: 11/9 against 10/9 tokens."""
    problem = same_everywhere((-1, 0, 1), [1 / 3, 2 / 3], [2 / 3, 1 / 3])
    assert accepted(problem, "without_replacement") == pytest.approx(10 / 9, abs=1e-12)
    assert accepted(problem, "traversal") == pytest.approx(11 / 9, abs=1e-12)


@pytest.mark.parametrize(("bottom_up", "top_down"), PAIRS)
def test_stars_are_walked_alike(bottom_up, top_down):
    for seed, kind in enumerate(("any", "opposed", "zeros")):
        problem = random_problem((-1, 0, 0), 3, seed, kind)
        assert accepted(problem, bottom_up) == pytest.approx(accepted(problem, top_down), abs=1e-12)


@pytest.mark.parametrize("parents", [(-1, 0, 0, 1, 2), (-1, 0, 1, 1, 2), (-1, 0, 0, 1, 3), (-1, 0, 1, 2, 0)])
@pytest.mark.parametrize(("bottom_up", "top_down"), PAIRS)
def test_more_is_accepted_where_elder_siblings_have_the_larger_subtrees(parents, bottom_up, top_down):
    """No theorem: what these trees gave."""
    for seed in range(4):
        for kind in ("any", "opposed"):
            problem = random_problem(parents, 2, seed, kind)
            assert accepted(problem, bottom_up) >= accepted(problem, top_down) - 1e-12


@pytest.mark.parametrize(
    ("methods", "target", "draft", "fewer", "more"),
    [(PAIRS[0], [0.7, 0.3], [0.3, 0.7], 1.272, 1.344), (PAIRS[1], [0.2, 0.8], [0.3, 0.7], 1.8231, 1.8297)],
)
def test_less_is_accepted_where_a_leaf_stands_before_a_subtree(methods, target, draft, fewer, more):
    problem = same_everywhere(LEAF_FIRST, target, draft)
    bottom_up, top_down = (accepted(problem, method) for method in methods)
    assert bottom_up == pytest.approx(fewer, abs=1e-12)
    assert top_down == pytest.approx(more, abs=1e-12)


def test_the_same_tree_may_gain_as_well():
    problem = same_everywhere(LEAF_FIRST, [0.7, 0.3], [0.1, 0.9])
    assert accepted(problem, "traversal") == pytest.approx(0.932, abs=1e-12)
    assert accepted(problem, "without_replacement") == pytest.approx(0.896, abs=1e-12)
