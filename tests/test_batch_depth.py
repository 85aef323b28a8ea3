"""How deep a batch drafts, by synthetic costs and walks."""

from __future__ import annotations

import pytest

from treedecode.accept import Acceptance
from treedecode.batch_depth import REST, DraftDepth
from treedecode.cost import CostCurve
from treedecode.shape import TreeShape
from treedecode.tree import DraftTree

FLAT = CostCurve([1, 4096], [10.0, 10.001])
STEEP = CostCurve([1, 4096], [10.0, 40960.0])
# rows are free up to 64, as under a roof
ROOF = CostCurve([1, 64, 4096], [10.0, 10.001, 640.0])
SPINE = TreeShape.leaf_siblings(4, 3)


def walked(depths, num_right):
    """A verified chain of ``depths`` nodes of which ``num_right`` were right."""
    tree = DraftTree.trusted(range(-1, depths), range(depths + 1))
    path = list(range(num_right + 1))
    return tree, Acceptance(path, [*range(1, num_right + 1), 99], num_right)


def test_free_drafts_are_whole_and_dear_steps_draft_nothing():
    depth = DraftDepth()
    assert depth.choose(1, 1, SPINE, FLAT) == 4
    assert depth.choose(1, 1, SPINE, STEEP) == 0


def test_drafting_counts_as_cost():
    depth = DraftDepth()
    depth.timed(1, 4, 8.0)
    assert depth.level_ms(1) == 2.0
    shallower = depth.choose(1, 1, SPINE, FLAT)
    assert 0 < shallower < 4
    for _ in range(9):
        depth.timed(1, 1, 10.0)
    assert depth.choose(1, 1, SPINE, FLAT) == 0


def test_depth_falls_as_the_batch_grows():
    depth = DraftDepth()
    depth.timed(1, 1, 0.5)
    depths = [depth.choose(requests.bit_length(), requests, SPINE, ROOF) for requests in (1, 8, 32, 64, 512)]
    assert depths == sorted(depths, reverse=True) and depths[0] >= 3 and depths[-1] == 0


def test_rows_that_do_not_fit_are_not_counted_on():
    depth = DraftDepth()
    depth.timed(3, 1, 0.5)
    assert depth.choose(3, 4, SPINE, FLAT) > 1
    # room for one draft each
    assert depth.choose(3, 4, SPINE, FLAT, max_rows=8) == 1
    assert depth.choose(3, 4, SPINE, FLAT, max_rows=4) == 0


def test_what_was_accepted_changes_the_depth():
    good, bad = DraftDepth(), DraftDepth()
    for _ in range(60):
        good.observe(*walked(4, 4))
        bad.observe(*walked(4, 0))
    for depth in (good, bad):
        depth.timed(1, 1, 2.0)
    assert good.choose(1, 1, SPINE, FLAT) == 4
    # for the runners-up, of which nothing is known
    assert bad.choose(1, 1, SPINE, FLAT) == 1


def test_where_nothing_pays_it_looks_again_from_time_to_time():
    depth = DraftDepth()
    depths = [depth.choose(1, 1, SPINE, STEEP) for _ in range(2 * (REST + 1))]
    assert depths == ([0] * REST + [1]) * 2


def test_times_are_those_of_the_nearest_kind():
    depth = DraftDepth()
    assert depth.level_ms(3) == 0.0
    depth.timed(1, 2, 4.0)
    depth.timed(5, 1, 9.0)
    assert (depth.level_ms(2), depth.level_ms(3), depth.level_ms(4)) == (2.0, 2.0, 9.0)
    with pytest.raises(ValueError, match="depth must be at least 1"):
        depth.timed(1, 0, 1.0)
    with pytest.raises(ValueError, match="num_requests must be at least 1"):
        depth.choose(1, 0, SPINE, FLAT)
