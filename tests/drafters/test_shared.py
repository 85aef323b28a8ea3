"""What ended requests leave to later ones: that it helps, is bounded, and is nobody's to change in flight."""

from __future__ import annotations

import copy

import pytest

from tests.drafters.driver import decode, markov_target, rows_of
from treedecode.drafters import SHARING_DRAFTERS, DraftContext, MergedDrafter, SharedStore
from treedecode.drafters.recycling import RecycleStore
from treedecode.drafters.suffix import NUM_FOLLOWERS, SuffixIndex
from treedecode.tree import DraftTree

NAMES = sorted(SHARING_DRAFTERS)
PROMPT = [3, 1, 4]


def end_with(drafter, token_ids):
    drafter.leave([*PROMPT, *token_ids], len(PROMPT))


@pytest.mark.parametrize("name", NAMES)
def test_a_request_that_says_what_another_said_needs_fewer_steps(name):
    target = markov_target(vocab_size=500, seed=4)
    store = SharedStore(10_000)
    steps = []
    for _ in range(2):
        drafter = SHARING_DRAFTERS[name](store)
        outcome = decode(drafter, target, PROMPT, 60)
        end_with(drafter, outcome.token_ids)
        steps.append((len(outcome.paths), outcome.token_ids))
    alone = decode(SHARING_DRAFTERS[name](SharedStore(1)), target, PROMPT, 60)
    assert steps[1][0] < 0.7 * steps[0][0] and len(store) > 0
    assert steps[0] == (len(alone.paths), alone.token_ids) and steps[1][1] == alone.token_ids


def test_without_a_store_nothing_is_kept():
    drafter = MergedDrafter()
    outcome = decode(drafter, markov_target(), PROMPT, 30)
    end_with(drafter, outcome.token_ids)
    again = decode(MergedDrafter(), markov_target(), PROMPT, 30)
    assert again.trees == outcome.trees


@pytest.mark.parametrize("most", [1, 2, 7, 60])
def test_it_holds_no_more_contexts_than_it_may_and_forgets_the_oldest(most):
    store = SharedStore(most)
    for number in range(20):
        first = 100 * number
        store.leave(None, [0, *range(first, first + 10)], 1)
        assert len(store) <= most
    assert store.followers((1900 + 8,)) is None or store.followers((1900 + 8,)) == {1909: 1}
    assert all(store.followers((100 * number + 1,)) is None for number in range(15 if most <= 60 else 0))
    assert len(store) == most
    store.clear()
    assert len(store) == 0


def test_a_context_that_is_left_again_is_new():
    store = SharedStore(2)
    for text in ([0, 1, 2], [0, 5, 6], [0, 1, 2], [0, 7, 8]):
        store.leave(None, text, 1)
    assert store.followers((1,)) == {2: 2} and store.followers((7,)) == {8: 1}
    assert store.followers((5,)) is None


def test_rows_and_followers_share_the_room():
    store = SharedStore(10)
    rows = RecycleStore()
    rows.rows = {(token,): ([token], [0]) for token in range(30)}
    for token in range(1, 30):
        store.leave(rows, [99, token], 1)
    assert len(store) == 10 and store.row((29,)) and store.row((19,)) is None
    store.leave(None, [0, *range(100, 130)], 1)
    assert len(store) == 10 and store.row((29,)) and store.row((24,)) is None


def test_followers_are_merged_in_order_and_bounded():
    store = SharedStore(100)
    store.leave(None, [0, 1, 2, 1, 3], 1)
    store.leave(None, [0, 1, 4, 1, 2], 1)
    assert list(store.followers((1,)).items()) == [(3, 1), (4, 1), (2, 2)]
    for token in range(10, 60):
        store.leave(None, [0, 1, token], 1)
    assert list(store.followers((1,))) == list(range(60 - NUM_FOLLOWERS, 60))


def test_the_prompt_is_not_left():
    store = SharedStore(100)
    store.leave(None, [5, 6, 7, 8, 9, 10], 4)
    assert store.followers((6,)) is None and store.followers((8,)) is None
    assert store.followers((9,)) == {10: 1}


def test_what_the_target_said_of_prompt_tokens_is_not_left():
    """Neither where a prompt was read in parts, nor for drafts that were copied from it and rejected."""
    target = markov_target(vocab_size=9)
    prompt = [11, 12, 13, 14, 15, 16]
    rows, store = RecycleStore(), SharedStore(100)
    part = DraftTree.trusted([-1, 0], prompt[:2])
    rows.update(rows_of(target, prompt[:1], part, [0, 1]), prompt)
    text = [*prompt, 1, 2]
    draft = DraftTree.trusted([-1, 0, 1, 0], [1, 12, 13, 2])
    rows.update(rows_of(target, text[:-1], draft, [0, 3]), text)
    rows.update(rows_of(target, prompt, DraftTree.root_only(16), [0]), text)
    assert {(11, 12), (1, 12, 13), (14, 15, 16), (16, 1, 2)} < set(rows.rows)
    store.leave(rows, text, len(prompt))
    assert set(store._rows) == {
        *[(14, 15, 16), (15, 16), (16,)],
        *[(15, 16, 1), (16, 1), (1,)],
        *[(16, 1, 2), (1, 2), (2,)],
    }
    assert store.row((16, 1, 2)) == rows.rows[16, 1, 2]


def test_requests_in_flight_do_not_change_the_store_nor_each_other():
    target = markov_target(vocab_size=60, seed=2)
    store = SharedStore(10_000)
    drafter = MergedDrafter(shared=store)
    end_with(drafter, decode(drafter, target, PROMPT, 80).token_ids)
    before = copy.deepcopy((store._rows, store._followers))
    others = [MergedDrafter(shared=store) for _ in range(3)]
    # step by step, in turn: what one learns is its own
    texts = [[7, 7, number] for number in range(3)]
    for other, text in zip(others, texts, strict=True):
        other.begin(list(text))
    for _ in range(25):
        for other, text in zip(others, texts, strict=True):
            other.propose(DraftContext(text, 3, 12, 8, ()))
            text.append(target(text)[0][0])
    assert (store._rows, store._followers) == before
    own = [copy.deepcopy(other._matches.successors) for other in others]
    others[0].leave(list(texts[0]), 3)
    assert [other._matches.successors for other in others] == own
    assert (store._rows, store._followers) != before
    # and what is left is a copy: going on changes nothing
    left = copy.deepcopy(store._followers)
    texts[0] += [1, 2, 3, 1, 2, 3]
    others[0].propose(DraftContext(texts[0], 3, 12, 8, ()))
    assert store._followers == left


def test_what_a_request_knows_itself_goes_first():
    store = SharedStore(100)
    store.leave(None, [0, 1, 2], 1)
    own = SuffixIndex(store)
    own.extend([1, 3, 1])
    tokens, features = [], []
    assert own.add_candidates((1,), 0, tokens, features, 6) == 1
    assert tokens == [3]
    tokens, features = [], []
    own = SuffixIndex(store)
    assert own.add_candidates((1,), 0, tokens, features, 6) == 1 and tokens == [2]


def test_same_calls_same_drafts():
    """As on the ranks of a tensor-parallel group."""
    ranks = []
    for _ in range(2):
        store, trees = SharedStore(300), []
        for seed in (1, 2, 1, 2):
            drafter = MergedDrafter(shared=store)
            outcome = decode(drafter, markov_target(seed=seed), PROMPT, 40)
            end_with(drafter, outcome.token_ids)
            trees += outcome.trees
        ranks.append(trees)
    assert ranks[0] == ranks[1]


def test_a_shorter_context_that_was_forgotten_is_no_error():
    store = SharedStore(100)
    store._rows = {(1, 2): ([4, 5], [3, 2])}
    rows = RecycleStore(store)
    order, tokens, _, _ = rows.find((0, 1, 2))
    assert order == 2 and tokens == [4, 5]


def test_a_store_holds_something():
    for most, error in ((0, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="max_contexts"):
            SharedStore(most)
