from __future__ import annotations

import math

import pytest

from treedecode.budget import BudgetPlanner, PendingLook
from treedecode.cost import CostCurve
from treedecode.gains import PlainReference
from treedecode.guard import NUM_LOOKS, Guard, Look, Mode
from treedecode.tree import DraftTree, TreeShape

FLAT = CostCurve(rows=[1, 64], ms=[10.0, 10.001])
STEEP = CostCurve(rows=[1, 64], ms=[1.0, 64.0])


def tree_of(reach: list[float], parents: list[int] | None = None) -> DraftTree:
    """A chain, or any tree, with this reach of its drafted nodes."""
    parents = list(range(-1, len(reach))) if parents is None else parents
    scores = [0.0, *(math.log(value) for value in reach)]
    return DraftTree(TreeShape.from_parents(parents), list(range(len(parents))), scores)


def test_nodes_that_cost_nothing_are_all_taken() -> None:
    assert BudgetPlanner(FLAT).cut(tree_of([0.9, 0.5, 0.1])).num_drafted == 3


def test_nodes_that_cost_a_step_each_are_not_taken() -> None:
    assert BudgetPlanner(STEEP).cut(tree_of([0.9, 0.5, 0.1])).num_drafted == 0


def test_the_cut_is_the_best_prefix() -> None:
    """Every n is looked at: the second step of a staircase pays although the row before it does not."""
    cost = CostCurve(rows=[1, 2, 3, 4, 5], ms=[10.0, 14.0, 14.0, 14.0, 30.0])
    tree = tree_of([0.3, 0.3, 0.3, 0.3], [-1, 0, 0, 0, 0])
    cut = BudgetPlanner(cost).cut(tree)
    assert cut.num_drafted == 3
    assert cut.token_tuple == tree.token_tuple[:4]


def test_the_same_tree_is_cut_alike_whatever_came_before() -> None:
    """A scored tree is judged by its own reach alone, not by how well earlier steps went."""
    cost = CostCurve(rows=[1, 8], ms=[10.0, 17.0])
    poor, good = tree_of([0.15]), tree_of([0.9] * 7)
    planner = BudgetPlanner(cost)
    for _ in range(60):
        planner.record(good, range(8))
    assert planner.cut(poor).num_drafted == BudgetPlanner(cost).cut(poor).num_drafted == 1


def test_unscored_trees_are_judged_by_what_was_seen() -> None:
    cost = CostCurve(rows=[1, 8], ms=[10.0, 17.0])
    tree = DraftTree(TreeShape.star(3), [0, 1, 2, 3])
    planner = BudgetPlanner(cost)
    assert planner.cut(tree).num_drafted > 0
    for _ in range(60):
        planner.record(tree, [0])
    assert planner.cut(tree).num_drafted == 0
    for _ in range(200):
        planner.record(tree, [0, 1])
    assert planner.cut(tree).num_drafted == 1


def test_unscored_edges_are_told_apart_by_rank() -> None:
    """The second child is right every time, and a node under the first one is worth nothing."""
    cost = CostCurve(rows=[1, 2, 3, 4], ms=[10.0, 10.0, 10.0, 11.5])
    planner = BudgetPlanner(cost)
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 1]), [0, 1, 2, 3])
    assert planner.cut(tree).num_drafted == 3
    for _ in range(50):
        planner.record(tree, [0, 2])
    assert planner.cut(tree).num_drafted == 2


@pytest.mark.parametrize("scored", [True, False])
def test_nothing_drafted_is_nothing_to_cut(scored: bool) -> None:
    tree = tree_of([]) if scored else DraftTree.root_only(5)
    planner = BudgetPlanner(FLAT)
    planner.record(tree, [0])
    assert planner.cut(tree).num_drafted == 0


def guarded(reference: PlainReference | None = None) -> tuple[BudgetPlanner, Guard]:
    """A planner whose guard knows what plain steps take: 10 ms, as the curve says."""
    reference = reference or PlainReference()
    reference.add(1.0)
    guard = Guard(reference)
    return BudgetPlanner(WIDE, guard), guard


WIDE = CostCurve(rows=[1, 8], ms=[10.0, 17.0])
# a chain of two under the root, and a sibling of each
BUSHY = [-1, 0, 1, 0, 1]
REACH = [0.9, 0.8, 0.08, 0.05]


def step(planner: BudgetPlanner, text: list[int], position: int, step_ms: float) -> int:
    """One step of an engine whose drafts are 1, 2 and 3, 4 after any root; the text decides. Tokens emitted."""
    root = text[position]
    if planner.drafts:
        scores = [0.0, *(math.log(value) for value in REACH)]
        tree = DraftTree(TreeShape.from_parents(BUSHY), [root, 1, 2, 3, 4], scores)
        tree = planner.cut(tree, position)
    else:
        tree = DraftTree.root_only(root)
    path = [0]
    for token in text[position + 1 :]:
        found = [c for c in tree.shape.children(path[-1]) if tree.token_tuple[c] == token]
        if not found:
            break
        path.append(found[0])
    planner.record(
        tree, path, position, step_ms if tree.num_drafted else 10.0, 0.1 if planner.drafts else 0.0
    )
    return len(path)


def test_without_a_guard_trees_are_cut_by_promise_alone() -> None:
    planner = BudgetPlanner(WIDE)
    for position in range(100):
        assert planner.drafts
        step(planner, [9] * 200, position, 1000.0)
    assert planner.guard_changes == ()


def test_a_lying_drafter_is_not_asked_any_more_and_looked_at_now_and_then() -> None:
    planner, guard = guarded()
    text = [9] * 2000
    asked, verified = [], []
    for position in range(1000):
        asked.append(planner.drafts)
        before = guard.mode
        step(planner, text, position, 13.0)
        verified.append(before is not Mode.NONE)
    assert sum(verified) < 40
    assert sum(asked[100:]) < 0.4 * 900
    # every look lasts NUM_LOOKS steps, in none of which anything was verified
    looks = [asked[i] and not asked[i - 1] for i in range(100, 1000)]
    assert sum(asked[100:]) == pytest.approx(sum(looks) * NUM_LOOKS, abs=NUM_LOOKS)
    assert guard.mode is Mode.NONE


def test_looks_see_what_trees_and_chains_would_have_given() -> None:
    """What follows the roots of looks: nothing right, the chain in part and in full, and siblings."""
    seen: list[Look] = []

    class Spy(Guard):
        def looked(self, look: Look) -> None:
            seen.append(look)
            super().looked(look)

    reference = PlainReference()
    reference.add(1.0)
    guard = Spy(reference)
    planner = BudgetPlanner(CostCurve(rows=[1, 8], ms=[10.0, 10.0]), guard)
    position = 0
    while guard.mode is not Mode.NONE or guard.changes[-1].measures:  # nothing is right at first
        position += step(planner, [9] * 3000, position, 15.0)
    text = [9] * 3000
    for start, tokens in enumerate(([9], [1, 9], [1, 2, 9], [1, 4, 9], [3, 9])):
        text[position + 3 * start : position + 3 * start + 1 + len(tokens)] = [7, *tokens]
    for _ in range(NUM_LOOKS + 3):
        position += step(planner, text, position, 15.0)
    found = {(look.tree_accepted, look.chain_accepted) for look in seen}
    assert {(0, 0), (1, 1), (2, 2), (2, 1), (1, 0)} == found
    assert all((look.tree_ms, look.plain_ms) == (10.0, 10.0) for look in seen)
    assert len(seen) == NUM_LOOKS


def test_drafts_that_become_right_are_verified_again() -> None:
    planner, guard = guarded()
    text = [9] * 300 + [1, 2] * 500
    position = 0
    while position < 300:
        position += step(planner, text, position, 13.0)
    assert guard.mode is Mode.NONE
    steps = 0
    while position < 1200:
        position += step(planner, text, position, 13.0)
        steps += 1
    assert guard.mode is not Mode.NONE
    assert steps < 700
    assert {change.mode for change in planner.guard_changes} >= {Mode.NONE, guard.mode}


def test_in_chain_mode_the_best_chain_is_verified() -> None:
    planner, guard = guarded()
    guard._try(Mode.CHAIN, "for the test")
    scores = [0.0, *(math.log(value) for value in REACH)]
    tree = DraftTree(TreeShape.from_parents(BUSHY), [5, 1, 2, 3, 4], scores, ["root", "a", "b", "c", "d"])
    cut = planner.cut(tree, 0)
    assert cut == DraftTree(TreeShape.chain(2), [5, 1, 2], scores[:3], ["root", "a", "b"])
    # the likeliest child, wherever it stands: reach of unscored trees is learnt
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 2]), [5, 1, 2, 3])
    for _ in range(50):
        planner.record(tree, [0, 2, 3])
    assert planner.cut(tree, 0).token_tuple == (5, 2, 3)


def test_a_look_verifies_nothing() -> None:
    planner, guard = guarded()
    guard._fall()
    assert planner.drafts
    scores = [0.0, *(math.log(value) for value in REACH)]
    tree = DraftTree(TreeShape.from_parents(BUSHY), [5, 1, 2, 3, 4], scores)
    assert planner.cut(tree, 0).num_drafted == 0


def test_a_look_follows_what_a_chain_had_accepted() -> None:
    """In one step the text goes down the chain and, with what is emitted after it, off the tree."""
    planner, guard = guarded()
    guard._try(Mode.CHAIN, "for the test")
    seen: list[Look] = []
    guard.looked = seen.append  # type: ignore[method-assign]
    text = [7, 1, 2, 9, 1, 9, 9, 9, 9]
    position = step(planner, text, 0, 13.0)
    assert position == 3
    while position < 8:
        position += step(planner, text, position, 13.0)
    found = [(look.tree_accepted, look.chain_accepted) for look in seen]
    assert found[:2] == [(2, 2), (1, 1)]


def test_a_look_ends_with_its_requests() -> None:
    """One request leaves its drafts; the other, still on them, is not heard of again."""
    drafts = {name: DraftTree(TreeShape.chain(3), [5, 1, 2, 3]) for name in ("left", "ended")}
    look = PendingLook(drafts, 2.0, drafts, 1.5, 1.0)
    look.follow({"left": [1, 9], "ended": [1, 2]})
    assert not look.done
    look.follow({"left": [4]})
    assert look.done and look.result == Look(1.5, 2.0, 1.5, 1.5, 1.0)
