"""Drafting rests where nothing that is drafted is worth verifying."""

from treedecode.accept import Acceptance
from treedecode.batch_budget import BatchPlanner
from treedecode.cost import CostCurve
from treedecode.draft_rest import LONGEST, PATIENCE, DraftRest
from treedecode.gains import PlainReference
from treedecode.tree import DraftTree

PAST_BREAK_EVEN = CostCurve([1, 4096], [10.0, 40960.0])
FREE = CostCurve([1, 4096], [10.0, 10.1])
SURE = DraftTree.trusted([-1, 0], [1, 2], [0.0, -0.01])


def asked(rest, num_steps, num_verified=0):
    """Whether each step drafts."""
    steps = []
    for _ in range(num_steps):
        drafts = not rest.rests
        rest.planned(3 * drafts, num_verified * drafts)
        steps.append(drafts)
    return steps


def test_rests_begin_after_patience_and_grow_up_to_the_longest():
    rest = DraftRest()
    assert all(asked(rest, PATIENCE))
    assert asked(rest, 4 + 2 + 8 + 2 + LONGEST + 2 + LONGEST) == (
        4 * [False] + 2 * [True] + 8 * [False] + 2 * (2 * [True] + LONGEST * [False])
    )


def test_a_draft_that_is_verified_ends_all_rests():
    rest = DraftRest()
    asked(rest, PATIENCE + 4)
    assert all(asked(rest, 3, num_verified=1)) and all(asked(rest, PATIENCE - 1))


def test_drafters_that_find_nothing_are_asked_again():
    rest = DraftRest()
    for _ in range(4 * PATIENCE):
        rest.planned(0, 0)
    assert not rest.rests


def run(cost, num_steps):
    """Whether each step drafts, of sixteen requests whose drafts are sure to be right."""
    planner = BatchPlanner(cost, 4096, reference=lambda _: known())
    names, steps = [str(number) for number in range(16)], []
    for _ in range(num_steps):
        steps.append(planner.drafts(16))
        if steps[-1]:
            trees = planner.cut(dict.fromkeys(names, SURE), [100] * 16)
        else:
            planner.plan_plain([100] * 16)
            trees = dict.fromkeys(names, SURE.prefix(0))
        walks = {
            name: (tree, Acceptance(range(tree.num_nodes), range(2, 2 + tree.num_nodes), tree.num_drafted))
            for name, tree in trees.items()
        }
        planner.record(walks, cost.ms(sum(tree.num_nodes for tree in trees.values())), 0.0)
    return steps


def known():
    reference = PlainReference()
    for _ in range(5):
        reference.add(1.0)
    reference.settle(5, 1.0)
    return reference


def test_past_break_even_a_batch_seldom_drafts():
    steps = run(PAST_BREAK_EVEN, 300)
    assert 2 < sum(steps[100:]) < 30


def test_where_rows_are_free_a_batch_always_drafts():
    assert all(run(FREE, 100))
