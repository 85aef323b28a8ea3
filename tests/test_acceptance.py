"""Online acceptance estimates: they find the truth, share it with what is alike, forget, and stay a probability."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedecode.acceptance import PRIOR, EdgeEstimates
from treedecode.testing.strategies import draft_trees
from treedecode.tree import DraftTree, TreeShape


def tree_of(parents: list[int], source: str = "draft", said: list[float] | None = None) -> DraftTree:
    """A tree of one source; ``said`` is the confidence of every drafted node's edge."""
    scores = None
    if said is not None:
        scores = [0.0]
        for node, value in enumerate(said, 1):
            scores.append(scores[parents[node]] + math.log(value))
    sources = ["root"] + [source] * (len(parents) - 1)
    return DraftTree(TreeShape.from_parents(parents), list(range(len(parents))), scores, sources)


def test_prior_by_rank_and_by_depth() -> None:
    estimates = EdgeEstimates()
    assert [estimates.probability("any", 3, rank) for rank in range(3)] == pytest.approx(PRIOR[:3])
    by_depth = EdgeEstimates(prior=[(0.5, 0.2), (0.3,)])
    assert by_depth.probability("any", 1, 1) == pytest.approx(0.2)
    assert by_depth.probability("any", 2, 0) == pytest.approx(0.3)
    assert by_depth.probability("any", 2, 1) == 0.0


def test_prior_of_a_said_edge_is_what_was_said() -> None:
    assert EdgeEstimates().probability("any", 1, 0, confidence=0.37) == pytest.approx(0.37)


def test_finds_the_truth_by_depth_rank_and_source() -> None:
    """Two sources, edges accepted at different rates at every depth and rank."""
    rng = random.Random(1)
    truth = {
        ("suffix", 1): (0.8, 0.1),
        ("suffix", 2): (0.9, 0.05),
        ("recycling", 1): (0.4, 0.2),
        ("recycling", 2): (0.3, 0.1),
    }
    estimates = EdgeEstimates(half_life=2000)
    shape = [-1, 0, 0, 1, 1, 2, 2]
    for step in range(8000):
        source = ("suffix", "recycling")[step % 2]
        tree = tree_of(shape, source)
        path = [0]
        for depth in (1, 2):
            best, second = truth[source, depth]
            drawn = rng.random()
            rank = 0 if drawn < best else 1 if drawn < best + second else None
            if rank is None:
                break
            path.append(tree.shape.children(path[-1])[rank])
        estimates.observe(tree, path)
    for (source, depth), row in truth.items():
        found = [estimates.probability(source, depth, rank) for rank in range(2)]
        assert found == pytest.approx(row, abs=0.04)


def test_children_of_rejected_nodes_teach_nothing() -> None:
    estimates, other = EdgeEstimates(), EdgeEstimates()
    # under the rejected node 2 there are two more nodes of rank 0, at depths 2 and 3
    estimates.observe(tree_of([-1, 0, 0, 2, 3]), [0, 1])
    other.observe(tree_of([-1, 0, 0]), [0, 1])
    for depth in (1, 2, 3):
        for rank in (0, 1):
            expected = other.probability("draft", depth, rank)
            assert estimates.probability("draft", depth, rank) == expected


def test_the_children_of_the_last_accepted_node_were_rejected() -> None:
    estimates = EdgeEstimates()
    for _ in range(100):
        estimates.observe(tree_of([-1, 0, 1]), [0, 1])
    assert estimates.probability("draft", 1, 0) > 0.9
    assert estimates.probability("draft", 2, 0) < 0.1


def test_a_class_without_evidence_says_what_the_coarser_one_says() -> None:
    estimates = EdgeEstimates()
    for _ in range(100):
        estimates.observe(tree_of([-1, 0]), [0])
    seen = estimates.probability("draft", 1, 0)
    assert seen < 0.02
    # depth 2 of this source, then another source: less and less evidence, never the bare prior
    assert seen <= estimates.probability("draft", 2, 0) < estimates.probability("new", 2, 0) < 0.1
    assert estimates.probability("draft", 1, 1) == pytest.approx(PRIOR[1])


def test_fine_evidence_outweighs_coarse() -> None:
    """Depth 1 fails a thousand times, depth 2 holds twenty times: depth 2 is believed."""
    estimates = EdgeEstimates(half_life=math.inf)
    for step in range(1000):
        estimates.observe(tree_of([-1, 0, 1]), [0, 1, 2] if step % 50 == 0 else [0])
    assert estimates.probability("draft", 1, 0) < 0.03
    assert estimates.probability("draft", 2, 0) > 0.8


def test_confidence_is_calibrated_bin_by_bin() -> None:
    """A drafter that says 0.9 and holds half of the time, but is right about its 0.3."""
    rng = random.Random(2)
    estimates = EdgeEstimates(half_life=math.inf)
    for _ in range(3000):
        said, truth = rng.choice([(0.92, 0.5), (0.35, 0.35)])
        estimates.observe(tree_of([-1, 0], said=[said]), [0, 1] if rng.random() < truth else [0])
    assert estimates.probability("draft", 1, 0, confidence=0.92) == pytest.approx(0.5, abs=0.04)
    assert estimates.probability("draft", 1, 0, confidence=0.35) == pytest.approx(0.35, abs=0.04)
    # a bin that was never seen keeps what is said, and so does an edge without confidence
    assert estimates.probability("draft", 1, 0, confidence=0.05) == pytest.approx(0.05)
    assert estimates.probability("draft", 1, 0) == pytest.approx(PRIOR[0])


def test_equal_confidence_is_told_apart_by_rank_and_depth() -> None:
    estimates = EdgeEstimates()
    tree = tree_of([-1, 0, 0, 1], said=[0.45, 0.45, 0.45])
    for _ in range(60):
        estimates.observe(tree, [0, 1])
    first, second, below = estimates.edges(tree)[1:]
    assert first > 0.8
    assert second < 0.2 and below < 0.2


def test_every_answer_holds_all_that_was_observed() -> None:
    """Asked between observations, too: nothing of an earlier answer is kept."""
    estimates, tree = EdgeEstimates(), tree_of([-1, 0])
    asked = []
    for _ in range(4):
        asked.append(estimates.reach(tree)[1])
        estimates.observe(tree, [0, 1])
    assert all(before < after for before, after in pairwise(asked))


def test_match_length_tells_edges_apart() -> None:
    estimates = EdgeEstimates()
    tree = tree_of([-1, 0])
    for _ in range(60):
        estimates.observe(tree, [0], match_lengths=[None, 1])
        estimates.observe(tree, [0, 1], match_lengths=[None, 10])
    short, long = (estimates.reach(tree, match_lengths=[None, length])[1] for length in (1, 10))
    assert short < 0.1 and long > 0.9
    assert short < estimates.reach(tree)[1] < long


def test_forgets() -> None:
    tree = tree_of([-1, 0])
    quick, slow = EdgeEstimates(half_life=20), EdgeEstimates(half_life=math.inf)
    for estimates in (quick, slow):
        for _ in range(500):
            estimates.observe(tree, [0, 1])
        for _ in range(100):
            estimates.observe(tree, [0])
    assert quick.probability("draft", 1, 0) < 0.1
    assert slow.probability("draft", 1, 0) == pytest.approx(500 / 600, abs=0.01)


def test_half_life_is_a_half_life() -> None:
    """One observation, then as many trees without this class as one half-life: it counts half."""
    estimates = EdgeEstimates(prior=[0.0], strength=1.0, half_life=50)
    estimates.observe(tree_of([-1, 0]), [0, 1])
    for _ in range(50):
        estimates.observe(DraftTree.root_only(0), [0])
    mean = 0.0
    for _ in range(3):  # rank, source, depth
        mean = (0.5 + mean) / (0.5 + 1.0)
    assert estimates.probability("draft", 1, 0) == pytest.approx(mean)


def test_rescaling_changes_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    def learnt() -> list[float]:
        rng = random.Random(3)
        estimates = EdgeEstimates(half_life=10)
        for _ in range(200):
            estimates.observe(tree_of([-1, 0, 0, 1, 2]), rng.choice([[0], [0, 1], [0, 2, 4], [0, 1, 3]]))
        return [estimates.probability("draft", depth, rank) for depth in (1, 2) for rank in (0, 1)]

    plain = learnt()
    monkeypatch.setattr("treedecode.acceptance._MAX_UNIT", 8.0)
    monkeypatch.setattr("treedecode.acceptance._MIN_SEEN", 0.0)
    assert learnt() == pytest.approx(plain, rel=1e-12)


def test_classes_that_are_forgotten_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treedecode.acceptance._MAX_UNIT", 1e6)
    estimates = EdgeEstimates(half_life=1)
    for source in range(400):
        estimates.observe(tree_of([-1, 0], source=str(source)), [0, 1])
    assert len(estimates._cells) < 150
    assert len(estimates._ladders) < 150


@given(draft_trees(), st.data())
def test_reach_is_the_product_of_the_edges(tree: DraftTree, data: st.DataObject) -> None:
    estimates = EdgeEstimates()
    for _ in range(5):
        path = [0]
        while children := tree.shape.children(path[-1]):
            child = data.draw(st.sampled_from([None, *children]))
            if child is None:
                break
            path.append(child)
        estimates.observe(tree, path)
    edges, reach = estimates.edges(tree), estimates.reach(tree)
    assert edges[0] == reach[0] == 1.0
    for node, parent in enumerate(tree.shape.parent_tuple):
        assert 0.0 <= edges[node] <= 1.0
        below = math.fsum(edges[child] for child in tree.shape.children(node))
        assert below <= 1.0 + 1e-9
        if node:
            assert reach[node] == pytest.approx(reach[parent] * edges[node])
    assert 1.0 <= estimates.expected_tokens(tree) <= tree.shape.max_depth + 1 + 1e-9


def test_siblings_compete() -> None:
    """Each was accepted whenever it was tried alone; together they cannot all be."""
    estimates = EdgeEstimates()
    for _ in range(200):
        estimates.observe(tree_of([-1, 0], said=[0.6]), [0, 1])
    star = tree_of([-1, 0, 0], said=[0.6, 0.6])
    assert estimates.probability("draft", 1, 1, confidence=0.6) > 0.9
    assert estimates.reach(star)[1:] == pytest.approx([0.5, 0.5], abs=0.05)
    assert estimates.expected_tokens(star) <= 2.0 + 1e-12


def test_nodes_beyond_hope() -> None:
    """Log reach of minus infinity is a certain no, for the node and below it."""
    tree = DraftTree(TreeShape.chain(2), [1, 2, 3], [0.0, -math.inf, -math.inf])
    assert EdgeEstimates().reach(tree) == [1.0, 0.0, 0.0]


def test_without_sources_or_drafts() -> None:
    tree = DraftTree(TreeShape.star(2), [0, 1, 2])
    estimates = EdgeEstimates()
    estimates.observe(tree, [0, 2])
    assert estimates.reach(tree)[1:] == [estimates.probability("", 1, rank) for rank in range(2)]
    estimates.observe(DraftTree.root_only(7), [0])
    assert estimates.reach(DraftTree.root_only(7)) == [1.0]
    assert estimates.expected_tokens(DraftTree.root_only(7)) == 1.0


def test_rank_probs_for_the_planner() -> None:
    estimates = EdgeEstimates()
    for _ in range(50):
        estimates.observe(tree_of([-1, 0, 0]), [0, 2])
    rows = estimates.rank_probs("draft", 3, 2)
    assert len(rows) == 3
    assert rows[0] == [estimates.probability("draft", 1, rank) for rank in range(2)]
    assert rows[0][1] > 0.8 > 0.2 > rows[0][0]
    for _ in range(200):  # each alone is always right: as siblings they share
        estimates.observe(tree_of([-1, 0]), [0, 1])
    assert all(math.fsum(row) <= 1.0 + 1e-12 for row in estimates.rank_probs("draft", 3, 2))


@pytest.mark.parametrize("path", [[], [1], [0, 2, 1], [0, 3], [0, 9], [0, 0], [0, -1]])
def test_a_path_runs_down_the_tree(path: list[int]) -> None:
    with pytest.raises(ValueError, match="runs from the root"):
        EdgeEstimates().observe(tree_of([-1, 0, 0, 1]), path)


def test_bad_arguments() -> None:
    estimates = EdgeEstimates()
    bad: list[tuple[Any, type[Exception]]] = [
        (("a", 0, 0), ValueError),
        (("a", 1, -1), ValueError),
        (("a", 1.5, 0), TypeError),
        (("a", 1, 0, 1.5), ValueError),
        (("a", 1, 0, math.nan), ValueError),
        (("a", 1, 0, 0.5, -1), ValueError),
    ]
    for arguments, error in bad:
        with pytest.raises(error, match="must be"):
            estimates.probability(*arguments)
    with pytest.raises(ValueError, match="strength"):
        EdgeEstimates(strength=0.0)
    with pytest.raises(ValueError, match="half_life"):
        EdgeEstimates(half_life=0.5)
    with pytest.raises(ValueError, match="one match length per node: 2 nodes, got 1"):
        estimates.reach(tree_of([-1, 0]), match_lengths=[3])
    with pytest.raises(ValueError, match="sum to at most 1"):
        EdgeEstimates(prior=[0.9, 0.9])
