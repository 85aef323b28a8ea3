"""Dynamic trees: the nodes of highest value, connected, whatever the order of the candidates."""

from __future__ import annotations

import itertools
import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treedecode as td
from treedecode.dynamic import DynamicPlan, plan_dynamic
from treedecode.testing.strategies import parents as random_parents


def confidences(draw: st.DrawFn, count: int) -> list[float]:
    """Often tied, sometimes 0 or 1."""
    return [draw(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.5, 0.9, 1.0])) for _ in range(count)]


@st.composite
def candidates(draw: st.DrawFn, max_nodes: int = 24) -> tuple[list[int], list[int], list[float]]:
    """Parents, tokens and confidences; few tokens, so that siblings are repeated."""
    parents = draw(random_parents(max_nodes))
    tokens = [draw(st.integers(0, 5)) for _ in parents]
    return parents, tokens, [1.0, *confidences(draw, len(parents) - 1)]


def paths_of(tree: td.DraftTree) -> list[tuple[int, ...]]:
    """Token path of every node: what it is, whatever its number."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, tree.num_nodes):
        paths.append((*paths[tree.shape.parent_tuple[node]], tree.token_tuple[node]))
    return paths


def values_by_path(
    parents: list[int], tokens: list[int], confidences: list[float]
) -> dict[tuple[int, ...], float]:
    """Value of every different token path: per edge the best confidence that any of its repeats says."""
    paths: list[tuple[int, ...]] = [()]
    edges: dict[tuple[int, ...], float] = {}
    for node in range(1, len(parents)):
        path = (*paths[parents[node]], tokens[node])
        paths.append(path)
        edges[path] = max(edges.get(path, 0.0), confidences[node])
    return {path: math.prod(edges[path[:n]] for n in range(1, len(path) + 1)) for path in edges}


def best_value_of_all_subtrees(values: dict[tuple[int, ...], float], budget: int) -> float:
    """Over every connected choice of at most ``budget`` paths."""
    best = 0.0
    for size in range(budget + 1):
        for chosen in itertools.combinations(values, size):
            if all(len(path) == 1 or path[:-1] in chosen for path in chosen):
                best = max(best, math.fsum(values[path] for path in chosen))
    return best


@settings(deadline=None)
@given(candidates(max_nodes=10), st.integers(0, 9))
def test_the_tree_is_the_best_of_all_subtrees(
    given_candidates: tuple[list[int], list[int], list[float]], budget: int
) -> None:
    tree = plan_dynamic(*given_candidates, budget)
    values = values_by_path(*given_candidates)
    assert tree.num_drafted <= budget
    assert tree.scores is not None
    for path, score in zip(paths_of(tree)[1:], tree.scores[1:], strict=True):
        assert math.exp(score) == pytest.approx(values[path])
    assert np.exp(tree.scores[1:]).sum() == pytest.approx(best_value_of_all_subtrees(values, budget))


@given(candidates(), st.integers(0, 24), st.none() | st.integers(0, 5))
def test_the_tree_is_valid_in_order_and_nested(
    given_candidates: tuple[list[int], list[int], list[float]], budget: int, max_depth: int | None
) -> None:
    tree = plan_dynamic(*given_candidates, budget, max_depth)
    assert td.DraftTree(tree.shape, tree.token_ids, tree.scores, tree.sources) == tree
    td.TreeShape.from_parents(tree.parents)
    keys = list(zip(-np.asarray(tree.scores), tree.depths, strict=True))
    assert all(first <= second for first, second in pairwise(keys))
    assert max_depth is None or max(tree.depths) <= max_depth
    assert tree.prefix(3) == plan_dynamic(*given_candidates, min(3, budget), max_depth)


@given(candidates(), st.integers(0, 24))
def test_equals_build_where_every_candidate_has_a_chance(
    given_candidates: tuple[list[int], list[int], list[float]], budget: int
) -> None:
    """``DraftTree.build`` merges and sorts too. It takes scores as they are, so no repeat may say more."""
    parents, _, values = given_candidates
    tokens = list(range(len(parents)))
    values = [max(value, 0.1) for value in values]
    scores = [0.0]
    for node in range(1, len(parents)):
        scores.append(scores[parents[node]] + math.log(values[node]))
    built, _ = td.DraftTree.build(parents, tokens, scores, ["root"] + ["draft"] * (len(parents) - 1))
    assert plan_dynamic(parents, tokens, values, budget) == built.prefix(budget)


def test_ties_go_to_the_smaller_depth_then_to_the_earlier_candidate() -> None:
    tree = plan_dynamic([-1, 0, 1, 0, 0, 4], [9, 1, 2, 3, 4, 5], [1.0, 0.5, 1.0, 0.5, 0.5, 1.0], 5)
    assert tree.token_tuple == (9, 1, 3, 4, 2, 5)
    assert tree.shape.parent_tuple == (-1, 0, 0, 0, 1, 3)


def test_repeated_siblings_merge_with_the_better_confidence_and_all_that_is_below_them() -> None:
    tree = plan_dynamic(
        parents=[-1, 0, 1, 0, 3],
        token_ids=[9, 7, 1, 7, 2],
        confidences=[1.0, 0.2, 0.5, 0.8, 0.5],
        budget=9,
        sources=["root", "a", "b", "c", "d"],
    )
    assert paths_of(tree) == [(), (7,), (7, 1), (7, 2)]
    assert np.exp(np.asarray(tree.scores)) == pytest.approx([1.0, 0.8, 0.4, 0.4])
    assert tree.sources == ("root", "c", "b", "d")


def test_what_has_no_chance_is_left_out() -> None:
    tree = plan_dynamic([-1, 0, 1, 0], [9, 1, 2, 3], [1.0, 0.0, 0.9, 0.3], 3)
    assert paths_of(tree) == [(), (3,)]
    assert plan_dynamic([-1], [9], [math.nan], 5) == td.DraftTree.root_only(9)


def draft(path: tuple[int, ...], width: int) -> tuple[list[int], list[float]]:
    """A drafter: fixed confidences for every context."""
    rng = random.Random(hash(path))
    weights = [rng.random() ** 3 for _ in range(width + 2)]
    return rng.sample(range(100), width), [weight / sum(weights) for weight in weights[:width]]


@pytest.mark.parametrize(("num_expanded", "budget", "depth"), [(1, 8, 4), (2, 10, 4), (10, 60, 6)])
def test_drafting_level_by_level_equals_the_paper_step_by_step(
    num_expanded: int, budget: int, depth: int
) -> None:
    """EAGLE-2 written out: expand the top nodes of each layer, then rank all candidates together."""
    plan, nodes, path_of = DynamicPlan(5), [0], {0: ()}
    for _ in range(depth):
        drafted = [draft(path_of[node], 10) for node in nodes]
        added = plan.add(nodes, [tokens for tokens, _ in drafted], [values for _, values in drafted])
        for node, numbers, (tokens, _) in zip(nodes, added, drafted, strict=True):
            path_of |= {
                number: (*path_of[node], token) for number, token in zip(numbers, tokens, strict=True)
            }
        nodes = plan.frontier(num_expanded)
    tree = plan.tree(budget)

    layer: list[tuple[float, tuple[int, ...]]] = [(1.0, ())]
    everything: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(depth):
        layer = [
            (value * confidence, (*path, token))
            for value, path in layer
            for token, confidence in zip(*draft(path, 10), strict=True)
        ]
        everything += layer
        layer = sorted(layer, reverse=True)[:num_expanded]
    chosen = sorted(everything, reverse=True)[:budget]
    assert paths_of(tree)[1:] == [path for _, path in chosen]
    assert np.exp(np.asarray(tree.scores)[1:]) == pytest.approx([value for value, _ in chosen])
    assert plan.num_candidates == len(everything)


def test_the_frontier_is_of_the_deepest_level_best_first() -> None:
    plan = DynamicPlan(0)
    assert plan.frontier(3) == [0]
    assert plan.add([0], [[4, 5, 6, 7]], [[0.1, 0.5, 0.0, 0.5]]) == [[1, 2, 3, 4]]
    assert plan.frontier(10) == [2, 4, 1]
    assert plan.frontier(1) == [2]
    plan.add([1, 2], [[1], [2]], [[1.0], [0.1]])
    assert plan.frontier(10) == [5, 6]
    assert plan.frontier(0) == []


def test_the_frontier_holds_a_repeated_sibling_once() -> None:
    plan = DynamicPlan(0)
    assert plan.add([0, 0], [[4], [4]], [[0.3], [0.6]], source="b") == [[1], [1]]
    assert plan.frontier(5) == [1]
    assert plan.num_candidates == 1


def test_a_late_better_repeat_raises_what_is_below_it() -> None:
    """The first copy has children by then, and the second comes with more confidence."""
    plan = DynamicPlan(0)
    plan.add([0], [[4, 5]], [[0.1, 0.5]], source="a")
    plan.add([1, 2], [[6], [7]], [[0.9], [0.9]], source="a")
    assert plan.frontier(1) == [4]
    plan.add([0], [[4]], [[0.8]], source="b")
    assert plan.frontier(1) == [3]
    tree = plan.tree(4)
    assert tree.token_tuple == (0, 4, 6, 5, 7)
    assert np.exp(np.asarray(tree.scores)) == pytest.approx([1.0, 0.8, 0.72, 0.5, 0.45])
    assert tree.sources == ("root", "b", "a", "a", "a")


def test_no_node_left_to_draft_on() -> None:
    plan = DynamicPlan(3)
    plan.add([0], np.array([[1, 2]]), np.zeros((1, 2), np.float32))
    assert plan.frontier(4) == []
    plan.add([], np.empty((0, 2), np.int64), np.empty((0, 2)))
    assert plan.tree(8) == td.DraftTree.root_only(3)


@pytest.mark.parametrize(
    ("nodes", "tokens", "values", "error", "message"),
    [
        ([0], [[1, 2]], [[0.5]], ValueError, r"shape \[1, k\], one row per node, got \[1, 2\] and \[1, 1\]"),
        ([0, 0], [[1]], [[0.5]], ValueError, r"shape \[2, k\]"),
        ([0], [1], [0.5], ValueError, r"shape \[1, k\]"),
        ([1], [[1]], [[0.5]], ValueError, "known nodes, 0 to 0, got 1"),
        ([-1], [[1]], [[0.5]], ValueError, "known nodes"),
        ([0], [[1]], [[1.5]], ValueError, r"in \[0, 1\], got 1.5"),
        ([0], [[1]], [[math.nan]], ValueError, r"in \[0, 1\], got nan"),
        ([0], [[-1]], [[0.5]], ValueError, "at least 0, got -1"),
        ([0], [[1.5]], [[0.5]], TypeError, "must be integers"),
        ([0], [[1]], [["a"]], TypeError, "must be numbers"),
    ],
)
def test_bad_candidates(
    nodes: list[int], tokens: list, values: list, error: type[Exception], message: str
) -> None:
    plan = DynamicPlan(0)
    with pytest.raises(error, match=message):
        plan.add(nodes, tokens, values)
    assert plan.num_candidates == 0


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="root_token_id must be at least 0"):
        DynamicPlan(-1)
    with pytest.raises(ValueError, match="budget must be at least 0"):
        DynamicPlan(1).tree(-1)
    with pytest.raises(TypeError, match="max_depth must be an integer"):
        DynamicPlan(1).tree(1, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit must be at least 0"):
        DynamicPlan(1).frontier(-1)
    with pytest.raises(ValueError, match="parents must precede children"):
        plan_dynamic([-1, 2, 0], [1, 2, 3], [1.0, 0.5, 0.5], 2)
    with pytest.raises(ValueError, match="one token, confidence and source per candidate: 2 candidates"):
        plan_dynamic([-1, 0], [1, 2], [1.0], 2)
    with pytest.raises(ValueError, match="and 1 sources"):
        plan_dynamic([-1, 0], [1, 2], [1.0, 0.5], 2, sources=["root"])
    with pytest.raises(TypeError, match="must be integers"):
        plan_dynamic([-1], [1.5], [1.0], 2)
