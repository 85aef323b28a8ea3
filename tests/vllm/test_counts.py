"""The counters, by hand."""

from __future__ import annotations

from treedecode.accept import accept_greedy
from treedecode.tree import DraftTree
from treedecode.vllm.counts import TreeCounts


def test_counters_of_two_steps():
    tree = DraftTree.build([-1, 0, 0, 2], [9, 1, 2, 3])[0]
    bare = DraftTree.root_only(9)
    counts = TreeCounts()
    counts.add_step([(tree, accept_greedy(tree, [2, 0, 3, 7])), (bare, accept_greedy(bare, [4]))])
    counts.add_step([(tree, accept_greedy(tree, [8, 0, 0, 0]))])
    assert counts.to_dict() == {
        "num_request_steps": 3,
        "num_bare": 1,
        "num_emitted": 5,
        "num_drafted": 0,
        "num_verified": 6,
        "num_accepted": 2,
        "num_wasted": 4,
        "num_rescued": 1,
        "num_failed_drafts": 0,
        "num_moved_bytes": 0,
        "last_budget": 3,
        # the root twice, and the second child once; the leaf that was accepted has no child to try
        "tried_by_depth": {1: 2, 2: 1},
        "accepted_by_depth": {1: 1, 2: 1},
        "tried_by_rank": {0: 3, 1: 2},
        "accepted_by_rank": {1: 1, 0: 1},
        "emitted_per_step": 5 / 3,
        "rescue_rate": 1 / 2,
    }
    assert TreeCounts().emitted_per_step == TreeCounts().rescue_rate == 0.0


def test_a_walk_that_was_cut_tried_nothing_at_its_last_node():
    chain = DraftTree.build([-1, 0, 1], [9, 1, 2])[0]
    counts = TreeCounts()
    counts.add_step([(chain, accept_greedy(chain, [1, 2, 3]).cut(1))])
    assert (counts.num_emitted, counts.num_accepted, counts.num_wasted) == (1, 1, 1)
    assert counts.tried_by_depth == counts.accepted_by_depth == {1: 1}


def test_what_was_counted_since():
    chain = DraftTree.build([-1, 0], [9, 1])[0]
    counts = TreeCounts()
    counts.add_step([(chain, accept_greedy(chain, [1, 2]))])
    before = counts.copy()
    counts.add_step([(chain, accept_greedy(chain, [1, 2])), (chain, accept_greedy(chain, [5, 2]))])
    since = counts.since(before)
    assert (since.num_request_steps, since.num_emitted, since.last_budget) == (2, 3, 2)
    assert since.tried_by_depth == {1: 2} and since.accepted_by_depth == {1: 1}
    assert counts.since(TreeCounts()) == counts
