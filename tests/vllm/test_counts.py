"""The counters, by hand."""

from __future__ import annotations

from treedecode.accept import accept_greedy
from treedecode.tree import DraftTree
from treedecode.vllm.counts import TreeCounts


def test_counters_of_two_steps():
    tree = DraftTree.build([-1, 0, 0, 2], [9, 1, 2, 3])[0]
    bare = DraftTree.root_only(9)
    counts = TreeCounts()
    counts.add_step([tree, bare], [accept_greedy(tree, [2, 0, 3, 7]), accept_greedy(bare, [4])])
    counts.add_step([tree], [accept_greedy(tree, [8, 0, 0, 0])])
    assert counts.to_dict() == {
        "num_request_steps": 3,
        "num_bare": 1,
        "num_emitted": 5,
        "num_drafted": 6,
        "num_accepted": 2,
        "num_moved_bytes": 0,
        "accepted_by_depth": {1: 1, 2: 1},
        "accepted_by_rank": {1: 1, 0: 1},
    }
    assert counts.emitted_per_step == 5 / 3
    assert counts.reset() is counts and counts == TreeCounts() and counts.emitted_per_step == 0.0
