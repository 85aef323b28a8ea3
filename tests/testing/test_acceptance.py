"""Mean accepted nodes by one pass, against the enumeration of every decision."""

from __future__ import annotations

import pytest
import torch

from treedecode.accept_inputs import METHODS
from treedecode.testing import reference
from treedecode.testing.acceptance import mean_accepted
from treedecode.testing.exact import exactness_of_walk
from treedecode.testing.problems import random_problem
from treedecode.tree import DraftTree, TreeShape


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parents", [(-1,), (-1, 0, 0), (-1, 0, 1), (-1, 0, 0, 1, 3)])
def test_the_mean_is_that_of_the_enumeration(method, parents):
    for seed, kind in enumerate(("any", "zeros", "opposed", "narrow")):
        problem = random_problem(parents, 3, seed, kind)
        mean = 0.0
        for drafted, mass in problem.drafts(replacement=method.endswith("with_replacement")):
            tree = DraftTree.sampled(problem.shape, drafted.token_ids)
            target, draft = (
                torch.tensor(rows, dtype=torch.float64)
                for rows in (drafted.target_probs, drafted.draft_probs)
            )
            mean += mass * mean_accepted(tree, target, draft, method)
        expected = exactness_of_walk(reference.walk, problem, method).expected_accepted
        assert mean == pytest.approx(expected, abs=1e-12), kind


def test_bad_methods_are_refused():
    tree, rows = DraftTree.sampled(TreeShape.chain(1), [0, 1]), torch.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="method must be one of"):
        mean_accepted(tree, rows, rows, "greedy")
    with pytest.raises(ValueError, match="needs draft_probs"):
        mean_accepted(tree, rows, None, "traversal")
