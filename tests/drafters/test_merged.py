from __future__ import annotations

import pytest

from tests.drafters.driver import decode, markov_target, reach_error
from treedecode.drafters import DraftContext, MergedDrafter, edge_weights, make_drafter
from treedecode.drafters.edge_model import Candidates, EdgeModel
from treedecode.drafters.recycling import NUM_ROW_FEATURES, NUM_SECOND_FEATURES
from treedecode.drafters.suffix import NUM_LENGTH_BINS, NUM_SUFFIX_FEATURES


def test_there_is_a_weight_for_every_feature() -> None:
    assert len(edge_weights.ROW) == NUM_ROW_FEATURES
    assert len(edge_weights.SECOND) == NUM_SECOND_FEATURES
    assert len(edge_weights.SUFFIX) == NUM_SUFFIX_FEATURES
    assert len(edge_weights.OTHER) == 4 * NUM_LENGTH_BINS
    # "nothing is known" weighs nothing
    assert edge_weights.ROW[0] == edge_weights.SECOND[0] == edge_weights.SUFFIX[0] == 0.0


def test_probabilities_leave_room_for_other_tokens() -> None:
    model = EdgeModel()
    for features in range(1, NUM_ROW_FEATURES):
        probs = model.probabilities(Candidates([1, 2, 3], [features] * 3, [0] * 3, [1, 2, 0], 0, 1))
        assert 0.0 < sum(probs) < 1.0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_learns_the_share_of_a_feature(share: float) -> None:
    model = EdgeModel(learning_rate=0.02)
    context = Candidates([7], [5], [0], [3], 2, 1)
    for i in range(4000):
        model.learn(context, 7 if i % 10 < 10 * share else 8)
    assert model.probabilities(context)[0] == pytest.approx(share, abs=0.03)


def test_siblings_compete() -> None:
    model = EdgeModel(learning_rate=0.05)
    context = Candidates([7, 8], [5, 6], [0, 0], [3, 4], 2, 1)
    for _ in range(500):
        model.learn(context, 8)
    first, second = model.probabilities(context)
    assert first < 0.1 < 0.8 < second


def test_no_learning_keeps_the_prior() -> None:
    model, fixed = EdgeModel(), EdgeModel(learning_rate=0.0)
    context = Candidates([7, 8], [5, 6], [0, 0], [3, 4], 2, 1)
    before = fixed.probabilities(context)
    fixed.learn(context, 8)
    model.learn(context, 8)
    assert fixed.probabilities(context) == before
    assert model.probabilities(context) != before


def test_reach_is_calibrated() -> None:
    """Order-2 text: the sources are worth other than the prior says, and the reach adapts."""
    for order in (1, 2):
        outcome = decode(make_drafter("merged"), markov_target(30, order, seed=4), list(range(20)), 1500, 12)
        assert reach_error(outcome) < 0.05


def test_emits_at_least_as_much_as_either_source() -> None:
    for seed in range(3):
        emitted = {
            name: decode(make_drafter(name), markov_target(60, 1, seed), list(range(40)), 300, 8).mean_emitted
            for name in ("merged", "recycling", "suffix")
        }
        assert emitted["merged"] > 0.95 * max(emitted.values())


def test_one_token_from_both_sources_is_one_node() -> None:
    drafter = MergedDrafter()
    outcome = decode(drafter, markov_target(10, 1), [1, 2, 3], 200, 16)
    for tree in outcome.trees:
        edges = list(zip(tree.shape.parent_tuple, tree.token_tuple, strict=True))
        assert len(set(edges)) == len(edges)
    assert {source for tree in outcome.trees for source in tree.sources or ()} == {
        "root",
        "suffix",
        "recycling",
    }


def test_rows_of_a_cut_tree_and_missing_rows_are_fine() -> None:
    drafter = make_drafter("merged")
    text = [1, 2, 3] * 5
    drafter.begin(text)
    assert drafter.propose(DraftContext(text, 15, 8, 8)).num_drafted
    text.append(1)
    assert drafter.propose(DraftContext(text, 15, 8, 8)).num_drafted
