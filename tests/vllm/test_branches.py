"""The shape of trees with branches, and what becomes of nodes that a drafter cannot say."""

from __future__ import annotations

import math

import pytest

from treedecode.acceptance import PRIOR
from treedecode.families import plan_branches
from treedecode.shape import TreeShape
from treedecode.vllm.config import TreeOptions

pytestmark = pytest.mark.vllm


def test_the_shape_is_planned_for_branches_width_and_depth():
    from treedecode.vllm.drafters.branches import BranchTrees

    trees = BranchTrees.__new__(BranchTrees)
    trees.start_trees(TreeOptions(branches=3, width=2, max_depth=4))
    shape = trees.shape(16)
    assert shape == plan_branches(PRIOR, 16, 3, max_depth=4, max_width=2)
    inner = [shape.depth_tuple[node] for node in range(shape.num_nodes) if shape.children(node)]
    assert max(inner.count(depth) for depth in inner) == 3 and shape.max_depth == 4
    assert trees.shape(16) is shape


def test_what_a_drafter_cannot_say_is_left_out_with_what_is_below():
    from treedecode.vllm.drafters.branches import branch_tree

    shape = TreeShape.from_parents([-1, 0, 0, 1, 2, 4])
    whole = branch_tree(shape, [9, 1, 2, 3, 4, 5], [0.0, -1.0, -2.0, -3.0, -4.0, -5.0])
    assert whole.shape == shape and whole.token_tuple == (9, 1, 2, 3, 4, 5)
    cut = branch_tree(shape, [9, 1, 2, 3, 4, 5], [0.0, -1.0, -2.0, -math.inf, -math.inf, -math.inf])
    assert cut.shape.parent_tuple == (-1, 0, 0) and cut.token_tuple == (9, 1, 2)


def test_one_branch_stays_with_vllms_own_loop():
    from vllm.v1.spec_decode.eagle import EagleProposer

    from treedecode.vllm.drafters.branches import BranchTrees
    from treedecode.vllm.drafters.grow import grow_trees

    for branches, branching in ((1, False), (2, True)):
        drafter = object.__new__(EagleProposer)
        grow_trees(drafter, TreeOptions(branches=branches))
        assert isinstance(drafter, BranchTrees) == branching
        kind = type(drafter)
        grow_trees(drafter, TreeOptions(branches=branches))
        assert type(drafter) is kind
