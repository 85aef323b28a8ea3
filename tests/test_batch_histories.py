"""Any order of calls of a batch planner: no more drafts than asked for, of the trees that were given, and no error."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from treedecode.accept import accept_greedy
from treedecode.batch_budget import BatchPlanner
from treedecode.cost import LEAST_MS, MOST_MS, CostCurve
from treedecode.shape import TreeShape
from treedecode.surface import CostSurface
from treedecode.tree import DraftTree

COSTS = [
    CostCurve([1, 4096], [10.0, 10.001]),
    CostCurve([1, 4096], [10.0, 40960.0]),
    CostCurve([1, 8, 9, 64], [5.0, 5.0, 9.0, 30.0]),
    CostCurve([1, 2], [LEAST_MS, MOST_MS]),
    CostCurve([3], [MOST_MS]),
    CostSurface([1, 16], [0, 100], [[1.0, 2.0], [3.0, 9.0]]),
]
EDGES = st.sampled_from([0.0, -0.1, -1.0, -5.0, -700.0, -math.inf])
MS = st.sampled_from([1e-6, 0.5, 3.0, 10.0, 1e5])


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Of up to 20 drafted nodes, with log reach as scores or none."""
    parents, scores = [-1], [0.0]
    for node in range(1, 1 + draw(st.integers(0, 20))):
        parents.append(draw(st.integers(0, node - 1)))
        scores.append(scores[parents[node]] + draw(EDGES))
    return DraftTree.trusted(parents, range(len(parents)), scores if draw(st.booleans()) else None)


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for parent, token in zip(tree.shape.parent_tuple[1:], tree.token_tuple[1:], strict=True):
        found.append((*found[parent], token))
    return found


class Histories(RuleBasedStateMachine):
    """An engine that also skips records, loses requests within a step, and plans what was not asked for."""

    @initialize(
        cost=st.sampled_from(COSTS),
        max_rows=st.sampled_from([None, 1, 3, 16]),
        most=st.sampled_from([None, 0, 1, 7]),
        calibrates=st.booleans(),
    )
    def start(
        self, cost: CostCurve | CostSurface, max_rows: int | None, most: int | None, calibrates: bool
    ) -> None:
        self.planner = BatchPlanner(cost, max_rows, calibrates=calibrates, max_per_request=most)
        self.max_rows, self.most, self.calibrates = max_rows, most, calibrates
        self.planned: dict[int, DraftTree] = {}
        self.first = 0

    @rule(drafted=st.lists(trees(), min_size=1, max_size=5), prefix_len=st.sampled_from([0, 1, 1000, 10**6]))
    def cut(self, drafted: list[DraftTree], prefix_len: int) -> None:
        given = dict(enumerate(drafted, self.first))
        self.planner.drafts(len(given))
        cut = self.planner.cut(given, [prefix_len] * len(given))
        assert list(cut) == list(given)
        for name, tree in cut.items():
            assert self.most is None or tree.num_drafted <= self.most
            if self.calibrates:
                assert set(paths(tree)) <= set(paths(given[name]))
            else:
                assert paths(tree) == paths(given[name])[: tree.num_nodes] or tree.shape.is_chain
        num_drafted = sum(tree.num_drafted for tree in cut.values())
        assert self.max_rows is None or num_drafted <= max(0, self.max_rows - len(cut))
        self.planned = cut

    @rule(num_requests=st.integers(1, 5), depth=st.integers(1, 8))
    def depth(self, num_requests: int, depth: int) -> None:
        assert 0 <= self.planner.depth(num_requests, TreeShape.chain(depth), 10) <= depth

    @rule(num_requests=st.integers(1, 5), depth=st.integers(0, 8))
    def plain(self, num_requests: int, depth: int) -> None:
        self.planner.plan_plain([10] * num_requests, depth)
        self.planned = {self.first + place: DraftTree.root_only(1) for place in range(num_requests)}

    @rule(
        data=st.data(),
        forward_ms=st.none() | MS,
        draft_ms=st.just(0.0) | MS,
        repeats=st.sampled_from([1, 1, 20]),
    )
    def record(self, data: st.DataObject, forward_ms: float | None, draft_ms: float, repeats: int) -> None:
        kept = data.draw(st.lists(st.sampled_from(sorted(self.planned)), unique=True)) if self.planned else []
        walks = {}
        for name in kept:
            tree = self.planned[name]
            choices = data.draw(
                st.lists(st.integers(0, 20), min_size=tree.num_nodes, max_size=tree.num_nodes)
            )
            walks[name] = (tree, accept_greedy(tree, choices))
        for _ in range(repeats):
            self.planner.record(walks, forward_ms, draft_ms)
            self.planner.plan_plain([10] * max(1, len(walks)))

    @rule()
    def skip(self) -> None:
        self.planner.skip()

    @rule()
    def new_requests(self) -> None:
        self.first += 10
        self.planned = {}

    @invariant()
    def modes_are_known(self) -> None:
        if hasattr(self, "planner"):
            assert all(self.planner.mode(size) in ("tree", "chain", "none") for size in (1, 2, 5))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
