"""Walks over recordings made by hand, counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.replay.made import COST, MADE, OUTPUT, dense
from treedecode.cost import CostCurve
from treedecode.replay.ranks import RankCounts, measure_rescue
from treedecode.replay.strategies import Chain, Dynamic, LeafSiblings, Plain, Rerun, StaticOptimal
from treedecode.replay.walk import mean_emitted, walk
from treedecode.surface import CostSurface
from treedecode.tree import DraftTree, TreeShape


@pytest.mark.parametrize(
    ("strategy", "budget", "drafted", "accepted", "emitted"),
    [
        (Plain(), 0, (0,) * 5, (0,) * 5, (1,) * 5),
        # 2 right and 8 wrong; then 4 and 5 right, and no depth left for 6
        (Chain(), 3, (3, 2), (1, 2), (2, 3)),
        (Chain(), 1, (1, 1, 0), (1, 1, 0), (2, 2, 1)),
        # 2 on the spine, 3 beside it and nothing below; then nothing right; then no depth left
        (LeafSiblings(2), 4, (4, 2, 0), (2, 0, 0), (3, 1, 1)),
        (LeafSiblings(2), 2, (2, 1, 0), (1, 1, 0), (2, 2, 1)),
    ],
)
def test_counts(strategy: Any, budget: int, drafted: Any, accepted: Any, emitted: Any) -> None:
    found = walk(MADE, strategy, budget)
    assert (found.num_drafted, found.num_accepted, found.num_emitted) == (drafted, accepted, emitted)


def test_mean_emitted_pools_steps() -> None:
    walks = [walk(MADE, Plain(), 0), walk(MADE, Chain(), 3)]
    assert mean_emitted(walks) == 10 / 7
    assert mean_emitted([]) == 0.0


def test_cost_of_a_walk() -> None:
    found = walk(MADE, Chain(), 3)
    assert found.ms(COST) == 13.0 + 12.0
    assert found.ms(COST, draft_ms=1.5) == 28.0


def test_cost_grows_with_the_context() -> None:
    """The steps stand after 2 and 4 cached tokens."""
    surface = CostSurface([1, 4], [0, 100], [[10.0, 10.0], [110.0, 110.0]])
    assert walk(MADE, Chain(), 3).ms(surface) == pytest.approx(12.0 + 14.0)


def scored() -> Any:
    """At every position two scored candidates for the next token: the second is right, and one below the first."""
    trees = {
        p: DraftTree(
            TreeShape([-1, 0, 0, 1]), [token, 9, token + 1, 8], [0.0, math.log(0.6), math.log(0.3), -2.0]
        )
        for p, token in enumerate(OUTPUT[:-1])
    }
    return replace(dense(OUTPUT, []), trees=trees)


def test_dynamic_takes_the_best_scored() -> None:
    assert walk(scored(), Dynamic(), 1).num_emitted == (1,) * 5
    found = walk(scored(), Dynamic(), 2)
    assert (found.num_drafted, found.num_emitted) == ((2, 2, 0), (2, 2, 1))


def test_said_reach_against_what_happened() -> None:
    """Two steps with drafts; 0.6 never came true, 0.3 always."""
    reliability = walk(scored(), Dynamic(), 2).reliability
    assert reliability.count == 4
    assert reliability.error == pytest.approx((0.6 + 0.7) / 2)


def test_what_comes_after_the_end_is_neither_right_nor_wrong() -> None:
    """An interrupted run: the third step drafts two candidates for its last token, and one beyond."""
    found = walk(replace(scored(), max_emitted=99), Dynamic(), 3)
    assert found.num_drafted == (3, 3, 3)
    assert found.reliability.count == 3 + 3 + 2


def test_auto_sizes_trees_by_cost() -> None:
    """1.6 tokens for 1.1 times the time pay; at twice the time only plain decoding does."""
    steep = CostCurve([1, 2], [10.0, 20.0])
    assert set(walk(scored(), Dynamic(), None, steep).num_drafted) == {0}
    assert walk(scored(), Dynamic(), None, COST).num_drafted[0] > 0
    with pytest.raises(ValueError, match='budget "auto" needs a cost curve'):
        walk(scored(), Dynamic(), None)


def test_rank_counts() -> None:
    """Visits at depths 1 to 3: 5, 3, 2; best candidates right 3, 1, 1 times, second ones 1, 1, 0 times."""
    probs = RankCounts.of([MADE]).rank_probs()
    assert probs[0][:3] == pytest.approx([(3 + 8 * 0.5) / 13, (1 + 8 * 0.2) / 13, 0.0])
    assert probs[1][:2] == pytest.approx([(1 + 8 * 0.5) / 11, (1 + 8 * 0.2) / 11])
    assert probs[2][:2] == pytest.approx([(1 + 8 * 0.5) / 10, 8 * 0.2 / 10])
    assert probs[3][:2] == pytest.approx([0.5, 0.2])


def test_static_trees_are_not_fitted_to_what_they_are_tried_on() -> None:
    """The second candidate is right in one recording, the first in the other: each is tried with the other's tree."""
    first = dense(list(range(1, 30)), [[[token + 1, 60], [token + 2, 61]] for token in range(1, 29)])
    second = dense(list(range(1, 30)), [[[60, token + 1]] for token in range(1, 29)])
    static = StaticOptimal([first, second])
    assert walk(first, static, 1).num_accepted[:5] == (0,) * 5
    assert walk(second, static, 1).num_accepted[:5] == (0,) * 5
    alone = StaticOptimal([first])
    assert walk(first, alone, 1).num_accepted[:5] == (1,) * 5


def test_halves_of_one_recording() -> None:
    """Best candidates are right in the first half alone; each half gets the other's tree."""
    output = list(range(1, 62))
    drafts = [[[token + 1, 70]] if token <= 30 else [[70, token + 1]] for token in range(1, 61)]
    recording = dense(output, drafts)
    found = walk(recording, StaticOptimal([recording]), 1)
    assert set(found.num_accepted[:20]) == {0}
    assert set(found.num_accepted[-20:]) == {0}


def test_rescue() -> None:
    rows = dict(MADE.rows) | {(1, ()): ((3, 5, 8), (-0.1, -2.0, -3.0))}
    found = measure_rescue([replace(MADE, rows=rows)])
    assert (found.num_steps, found.num_rejected) == (2, 1)
    assert found.in_drafter_top[:3] == (0.0, 1.0, 1.0)
    assert found.in_target_top[:4] == (0.0, 0.0, 1.0, 1.0)


def test_rescue_without_a_rejection() -> None:
    found = measure_rescue([dense([1, 2, 3], [[[2]], [[3]]])])
    assert (found.num_rejected, set(found.in_drafter_top)) == (0, {0.0})


def test_unknown_rows_give_way_to_recorded_ones() -> None:
    """Never to those that tell what follows output still to come."""
    rows = {
        (0, ()): ((2,), (0.0,)),
        (0, (7,)): ((70,), (0.0,)),
        (1, ()): ((3,), (0.0,)),
        (1, (8,)): ((80,), (0.0,)),
        (2, ()): ((4,), (0.0,)),
    }
    recording = replace(MADE, rows=rows)
    # nothing accepted: 2 and all below it is output to come
    missed = recording.verified(0, DraftTree(TreeShape.star(3), [1, 50, 51, 52]), [0])
    assert missed.num_known == 1 and missed.rows is not None
    assert missed.rows.tree.token_tuple == (1, 7)
    assert missed.rows.top_ids.tolist() == [[2], [70]]
    # 2 accepted: its row is known, and that of 8 below it; 3 is to come
    hit = recording.verified(0, DraftTree(TreeShape([-1, 0, 1, 0]), [1, 2, 50, 51]), [0, 1])
    assert hit.num_known == 2 and hit.rows is not None
    assert hit.rows.path == (0, 1)
    assert hit.rows.tree.token_tuple == (1, 2, 7, 8)
    assert hit.rows.tree.shape.parent_tuple == (-1, 0, 0, 1)
    assert hit.rows.root_index == 2
    # the row of 2 is not known, so none below it can be told
    rows.pop((1, ()))
    orphans = replace(MADE, rows=rows).verified(0, DraftTree(TreeShape.star(3), [1, 2, 50, 51]), [0, 1])
    assert orphans.rows is not None
    assert (orphans.rows.tree.token_tuple, orphans.rows.path) == ((1, 7), (0,))
    assert replace(MADE, rows={}).verified(0, DraftTree.root_only(1), [0]).rows is None


def test_a_strategy_without_its_trees_says_so() -> None:
    with pytest.raises(ValueError, match="made has no tree at output position 0: expected a dense recording"):
        walk(replace(MADE, trees={}), Chain(), 3)


def test_drafters_run_without_any_row() -> None:
    found = walk(replace(MADE, rows={}, trees={}), Rerun("merged"), 8)
    assert sum(found.num_emitted) == 5
