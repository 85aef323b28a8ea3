"""Which trees a batch gets, by synthetic costs: an engine whose steps take what a curve says."""

from __future__ import annotations

import random

import pytest

from treedecode.accept import Acceptance
from treedecode.batch_budget import BatchPlanner, least_reach, siblings_in_order
from treedecode.cost import CostCurve
from treedecode.gains import PlainReference
from treedecode.guard import Mode
from treedecode.surface import CostSurface
from treedecode.tree import DraftTree

FLAT = CostCurve([1, 4096], [10.0, 10.001])
STEEP = CostCurve([1, 4096], [10.0, 40960.0])
# rows are free up to 64, as under a roof
ROOF = CostCurve([1, 64, 4096], [10.0, 10.001, 640.0])
FIRST, SECOND = 0.7, 0.2


def drafted(root, first=FIRST, second=SECOND, depth=6):
    """A spine with a second leaf at every depth, best first, 12 drafted nodes: 70% and 20% by default."""
    nodes = []
    for level in range(depth):
        spine_above = first**level
        nodes.append((spine_above * first, level, True))
        nodes.append((spine_above * second, level, False))
    nodes.sort(key=lambda node: (-node[0], node[1]))
    parents, tokens, reach, spine = [-1], [root], [1.0], {-1: 0}
    for probability, level, on_spine in nodes:
        parents.append(spine[level - 1])
        tokens.append(2 * level + (0 if on_spine else 1))
        reach.append(probability)
        if on_spine:
            spine[level] = len(tokens) - 1
    return DraftTree.trusted(parents, tokens, [0.0, *map(_log, reach[1:])])


def _log(value):
    from math import log

    return log(value)


class Engine:
    """Texts that follow the first draft with one probability and the second with another; time is a curve's."""

    def __init__(self, planner, truth, first=FIRST, second=SECOND, scored=True, draft_ms=0.1):
        self.planner, self.truth, self.draft_ms = planner, truth, draft_ms
        self.first, self.second, self.scored = first, second, scored
        self.random = random.Random(0)
        self.trees, self.first_name = {}, 0

    def walk(self, tree):
        """The text goes along the spine's token, the leaf's, or another one."""
        node, level, path, tokens = 0, 0, [0], []
        while True:
            kind = self.random.random()
            token = (
                2 * level if kind < self.first else 2 * level + 1 if kind < self.first + self.second else 99
            )
            tokens.append(token)
            children = [child for child in tree.shape.children(node) if tree.token_tuple[child] == token]
            if not children:
                return Acceptance(path, tokens, len(path) - 1)
            node, level = children[0], level + 1
            path.append(node)

    def step(self, num_requests):
        """One step; milliseconds and emitted tokens of it."""
        names = [str(self.first_name + number) for number in range(num_requests)]
        trees = {name: self.trees.get(name, DraftTree.root_only(1)) for name in names}
        walked = {name: (tree, self.walk(tree)) for name, tree in trees.items()}
        ms = self.truth.ms(sum(tree.num_nodes for tree in trees.values()))
        drafts = any(tree.num_drafted for tree in trees.values())
        self.planner.record(walked, ms, self.draft_ms * drafts)
        wanted = self.planner.drafts(num_requests)
        proposed = {name: self.draft() if wanted else DraftTree.root_only(1) for name in names}
        self.trees = self.planner.cut(proposed, [100] * num_requests)
        return ms + self.draft_ms * drafts, sum(len(walk.token_ids) for _, walk in walked.values())

    def draft(self):
        tree = drafted(1)
        return tree if self.scored else DraftTree.trusted(tree.shape.parent_tuple, tree.token_tuple)

    def run(self, num_requests, num_steps):
        """Mean drafted nodes per request over the last half of the steps, and milliseconds per token."""
        sizes, total_ms, total_tokens = [], 0.0, 0
        for _ in range(num_steps):
            ms, tokens = self.step(num_requests)
            total_ms, total_tokens = total_ms + ms, total_tokens + tokens
            sizes.append(sum(tree.num_drafted for tree in self.trees.values()) / num_requests)
        last = sizes[num_steps // 2 :]
        return sum(last) / len(last), total_ms / total_tokens


def make(cost, max_rows=4096):
    return BatchPlanner(cost, max_rows)


@pytest.mark.parametrize("num_requests", [1, 5, 64])
def test_where_rows_are_free_trees_are_whole(num_requests):
    size, ms = Engine(make(FLAT), FLAT).run(num_requests, 60)
    assert size == drafted(1).num_drafted
    assert ms < 10.0 / num_requests / 2


@pytest.mark.parametrize("num_requests", [1, 5, 64])
def test_where_every_row_costs_a_step_nothing_is_drafted(num_requests):
    planner = make(STEEP)
    size, ms = Engine(planner, STEEP).run(num_requests, 300)
    assert size == 0
    # what is lost is the drafting until the guard stops it
    assert ms < 1.01 * STEEP.ms(num_requests) / num_requests


def test_trees_shrink_to_chains_and_to_nothing_as_the_batch_grows():
    planner = make(ROOF)
    sizes = [Engine(planner, ROOF).run(num_requests, 60)[0] for num_requests in (1, 8, 24, 64, 128)]
    assert sizes[0] == drafted(1).num_drafted
    assert sizes == sorted(sizes, reverse=True)
    assert 2 < sizes[1] < 12 and 0 < sizes[2] <= 2 and sizes[3] == sizes[4] == 0
    engine = Engine(planner, ROOF)
    engine.run(24, 4)
    assert all(tree.shape.is_chain for tree in engine.trees.values())


def test_likely_requests_get_the_nodes():
    planner = make(ROOF)
    engine = Engine(planner, ROOF)
    engine.run(16, 20)
    likely, unlikely = drafted(1, 0.9, 0.05), drafted(1, 0.2, 0.1)
    trees = {str(number): likely if number < 8 else unlikely for number in range(16)}
    cut = planner.cut(trees, [100] * 16)
    sizes = [tree.num_drafted for tree in cut.values()]
    assert min(sizes[:8]) > max(sizes[8:]) and sum(sizes) > 0
    for name, tree in cut.items():
        assert tree.token_tuple == trees[name].token_tuple[: tree.num_nodes]


def test_no_step_has_more_rows_than_the_engine_takes():
    engine = Engine(make(FLAT, max_rows=40), FLAT)
    engine.run(8, 60)
    assert sum(tree.num_nodes for tree in engine.trees.values()) == 40


@pytest.mark.parametrize("num_requests", [1, 16])
def test_a_wrong_curve_is_found_out_and_trees_are_stopped(num_requests):
    planner = make(FLAT)
    size, ms = Engine(planner, STEEP).run(num_requests, 600)
    assert size < 0.5 and planner.mode(num_requests) is not Mode.TREE
    assert ms < 1.1 * STEEP.ms(num_requests) / num_requests


def test_other_batch_sizes_are_judged_apart():
    planner = make(FLAT)
    Engine(planner, STEEP).run(16, 300)
    assert planner.mode(16) is planner.mode(31) is not Mode.TREE
    size, _ = Engine(planner, FLAT).run(2, 60)
    assert size == drafted(1).num_drafted and planner.mode(16) is not Mode.TREE


def test_trees_that_pay_again_come_back():
    planner = make(ROOF)
    engine = Engine(planner, ROOF, first=0.0, second=0.0, draft_ms=1.0)
    assert engine.run(2, 400)[0] < 2
    engine.first, engine.second = FIRST, SECOND
    assert engine.run(2, 600)[0] > 8


@pytest.mark.parametrize("num_requests", [1, 2])
def test_new_requests_have_trees_at_once_whatever_the_ones_before_had(num_requests):
    planner = make(ROOF)
    engine = Engine(planner, ROOF, first=0.0, second=0.0, draft_ms=1.0)
    assert engine.run(num_requests, 400)[0] < 2 and planner.mode(num_requests) is Mode.NONE
    engine.first, engine.second, engine.first_name = FIRST, SECOND, 1
    engine.run(num_requests, 4)
    # of two requests, one is still there that nothing was found for
    assert planner.mode(num_requests) is (Mode.TREE if num_requests == 1 else Mode.NONE)
    engine.first_name = 2
    engine.run(num_requests, 4)
    assert planner.mode(num_requests) is Mode.TREE


def test_trees_without_scores_are_sized_by_what_is_learnt():
    # two drafted nodes are free; by the prior twice as many would pay
    cost = CostCurve([1, 3, 64], [10.0, 10.001, 71.0])
    engine = Engine(make(cost), cost, first=0.2, second=0.02, scored=False)
    size, _ = engine.run(1, 200)
    assert 1.5 < size < 2.5 and engine.planner.mode(1) is Mode.TREE


def test_sizes_go_by_the_context():
    surface = CostSurface([1, 64], [0, 8000], [[10.0, 10.001], [20.0, 1280.0]])
    planner = make(surface)
    Engine(planner, FLAT).run(2, 20)
    trees = {"0": drafted(1), "1": drafted(1)}
    short, long = planner.cut(trees, [0, 0]), planner.cut(trees, [6000, 10000])
    assert short == trees and all(tree.num_drafted == 0 for tree in long.values())


@pytest.mark.parametrize(
    ("names", "forward_ms"),
    [("01", None), ("0", 1e6)],
    ids=["rows of a prompt", "another batch than planned"],
)
def test_steps_that_say_nothing_of_the_plan_are_not_judged(names, forward_ms):
    planner = make(FLAT)
    Engine(planner, FLAT).run(2, 20)
    rejected = drafted(1), Acceptance([0], [99], 0)
    for _ in range(100):
        planner.cut({"0": drafted(1), "1": drafted(1)}, [100, 100])
        planner.record(dict.fromkeys(names, rejected), forward_ms, 0.0)
    assert planner.mode(2) is Mode.TREE
    assert planner.cut({}, []) == {}


def test_changes_of_mode_are_told_with_the_smallest_size_of_their_kind():
    told = []
    planner = BatchPlanner(FLAT, told=lambda size, change: told.append((size, change.mode)))
    Engine(planner, STEEP).run(20, 300)
    assert {size for size, _ in told} == {16}
    assert told[-1][1] is planner.mode(20)


def test_what_plain_steps_take_is_kept_by_kind_of_batch():
    references = {}
    for _ in range(2):
        planner = BatchPlanner(FLAT, reference=lambda kind: references.setdefault(kind, PlainReference()))
        Engine(planner, FLAT).run(5, 20)
        assert list(references) == [3] and references[3].known
    # known by now, so that no plain steps were run to measure them
    assert planner.mode(5) is Mode.TREE and not any(c.measures for c in planner._guard(5).changes)


def test_a_step_that_is_not_recorded_leaves_nothing_to_judge_the_next_one_by():
    planner = make(ROOF)
    engine = Engine(planner, ROOF, first=0.0, second=0.0, draft_ms=1.0)
    while not planner._looks:
        engine.step(1)
    assert planner._plan is not None
    planner.skip()
    before = planner._guard(1)._num_steps
    planner.record({"0": (DraftTree.root_only(1), Acceptance([0], [9], 0))}, 10.0, 0.0)
    assert planner._guard(1)._num_steps == before and not planner._looks
    engine.run(1, 400)
    assert planner.mode(1) is Mode.NONE


def edges(tree):
    """Tokens of parent and child."""
    parents = [tree.token_tuple[parent] for parent in tree.shape.parent_tuple[1:]]
    return set(zip(parents, tree.token_tuple[1:], strict=True))


def leaf_sibling(probabilities, root=1):
    """A spine with leaves, position by position, scored by a model's ``probabilities`` of the candidates."""
    parents, tokens, reach, spine = [-1], [root], [1.0], 0
    for depth in range(4):
        first = len(tokens)
        for rank, probability in enumerate(probabilities):
            parents.append(spine)
            tokens.append(10 * depth + rank)
            reach.append(reach[spine] * probability)
        spine = first
    return DraftTree.trusted(parents, tokens, [0.0, *map(_log, reach[1:])])


def test_a_models_trees_are_cut_in_the_order_of_their_reach():
    tree = leaf_sibling((0.8, 0.1, 0.05))
    whole = BatchPlanner(FLAT, calibrates=True, max_per_request=9)
    for _ in range(20):
        whole.cut({"a": DraftTree.root_only(1)}, [0])
        whole.record({"a": (DraftTree.root_only(1), Acceptance([0], [9], 0))}, 10.0, 0.0)
    cut = whole.cut({"a": tree}, [0])["a"]
    scores = cut.score_tuple
    assert cut.num_drafted == 9 and list(scores) == sorted(scores, reverse=True)
    assert max(cut.shape.depth_tuple) == 4 and set(cut.token_tuple) < set(tree.token_tuple)
    assert edges(cut) < edges(tree)


def test_a_model_that_is_too_sure_of_itself_is_corrected():
    # one more row costs a fifth of a step
    cost = CostCurve([1, 64], [10.0, 136.0])
    tree = leaf_sibling((0.9, 0.05, 0.02))
    planner = BatchPlanner(cost, calibrates=True)
    for _ in range(10):  # plain steps that are measured first
        planner.cut({"a": DraftTree.root_only(1)}, [0])
        planner.record({"a": (DraftTree.root_only(1), Acceptance([0], [9], 0))}, 10.0, 0.0)
    sizes = []
    for _ in range(40):
        cut = planner.cut({"a": tree}, [0])["a"]
        planner.record({"a": (cut, Acceptance([0], [9], 0))}, None, 0.0)
        sizes.append(cut.num_drafted)
    assert sizes[0] == 4 and sizes[-1] == 0 and planner.mode(1) is Mode.TREE


def test_no_sibling_counts_for_more_than_the_one_before():
    shape = leaf_sibling((0.5, 0.3, 0.2)).shape
    reach = [1.0, 0.2, 0.6, 0.1, 0.4, *[0.05] * 8]
    lowered = siblings_in_order(shape, reach)
    assert lowered[:5] == [1.0, 0.2, 0.2, 0.1, 0.2]


def test_depth_is_none_while_plain_steps_are_run_and_one_at_least_for_a_look():
    planner = BatchPlanner(STEEP, calibrates=True)
    shape = leaf_sibling((0.5, 0.3, 0.2)).shape
    assert not planner.drafts(2) and planner.depth(2, shape, 0) == 0
    planner = BatchPlanner(FLAT, calibrates=True)
    seen = set()
    for _ in range(400):
        if planner._guard(1).looks:
            seen.add(planner.depth(1, shape, 0))
        wanted = planner.drafts(1)
        tree = planner.cut({"a": drafted(1) if wanted else DraftTree.root_only(1)}, [0], 1 if wanted else 0)[
            "a"
        ]
        walk = Acceptance([0], [99], 0)
        planner.record({"a": (tree, walk)}, 30.0 if tree.num_drafted else 10.0, 40.0 if wanted else 0.0)
    assert seen and min(seen) >= 1 and planner.mode(1) is Mode.NONE


def test_the_time_of_drafting_makes_drafts_shallower():
    shape = leaf_sibling((0.5, 0.3, 0.2)).shape
    planner = BatchPlanner(FLAT, calibrates=True)
    for _ in range(20):
        planner.cut({"a": DraftTree.root_only(1)}, [0])
        planner.record({"a": (DraftTree.root_only(1), Acceptance([0], [9], 0))}, 10.0, 0.0)
    assert planner.depth(1, shape, 0) == 4
    tree = leaf_sibling((0.5, 0.3, 0.2))
    planner.cut({"a": tree}, [0], 4)
    planner.record({"a": (tree, Acceptance([0], [99], 0))}, 10.0, 12.0)
    assert 0 < planner.depth(1, shape, 0) < 4


def test_the_least_reach_is_that_of_the_last_node_taken_or_of_the_likeliest_left_out():
    trees = {"a": drafted(1), "b": drafted(1, 0.9, 0.05)}
    reach = {"a": [1.0, 0.7, 0.5, 0.2], "b": [1.0, 0.9, 0.8], "c": [1.0]}
    assert least_reach({"a": trees["a"].prefix(2), "b": trees["b"].prefix(1)}, reach) == 0.5
    assert least_reach({"a": trees["a"].prefix(0), "b": trees["b"].prefix(0)}, reach) == 0.9


def test_no_less_is_asked_of_drafters_than_what_was_worth_a_row():
    reference = PlainReference()
    reference.add(1.0)
    planner = BatchPlanner(ROOF, 4096, reference=lambda _: reference)
    assert planner.min_reach(64) == 0.0
    trees = {str(number): drafted(1) for number in range(64)}
    planner.cut(trees, [100] * 64)
    least = planner.min_reach(64)
    # past the roof not even the likeliest node is: it stays on offer all the same
    assert 0.0 < least < 0.7 and planner.min_reach(1) == 0.0
    for _ in range(20):
        planner.plan_plain([100] * 64)
    assert planner.min_reach(64) < 1e-5
