from __future__ import annotations

import numpy as np

from tests.drafters.driver import decode, markov_target
from treedecode.drafters import VerifiedRows, make_drafter
from treedecode.drafters.recycling import NUM_KEPT, RecycleStore, absent_feature
from treedecode.tree import DraftTree


def rows(
    tokens: list[int], parents: list[int], top: list[list[int]], root_index: int, path: tuple[int, ...] = (0,)
):
    logits = np.tile(np.linspace(4, 0, len(top[0]), dtype=np.float32), (len(top), 1))
    return VerifiedRows(DraftTree.trusted(parents, tokens), root_index, path, np.array(top), logits)


def test_longer_contexts_come_first() -> None:
    store = RecycleStore()
    store.update(rows([3], [-1], [[10, 11]], 2), [1, 2, 3])
    store.update(rows([3], [-1], [[20, 21]], 2), [9, 8, 3])
    assert store.find((1, 2, 3))[:2] == (3, [10, 11, 20, 21])
    assert store.find((7, 2, 3))[:2] == (2, [10, 11, 20, 21])
    assert store.find((7, 7, 3))[:2] == (1, [20, 21])


def test_rejected_nodes_are_kept_with_their_own_context() -> None:
    store = RecycleStore()
    # 5 is the root, 6 is accepted, 7 and its child 8 are not
    store.update(rows([5, 6, 7, 8], [-1, 0, 0, 2], [[6], [1], [2], [3]], 1, (0, 1)), [4, 5])
    assert store.find((4, 5, 7))[:2] == (3, [2])
    assert store.find((5, 7, 8))[:2] == (3, [3])


def test_an_unknown_token_takes_what_followed_in_its_place() -> None:
    """A date or a number has changed; what comes after it has not."""
    store = RecycleStore()
    store.update(rows([5], [-1], [[60, 61]], 2), [3, 4, 5])
    order, tokens, row_features, second_features = store.find((3, 4, 99))
    assert (order, tokens) == (0, [60, 61])
    assert row_features == [absent_feature(0)] * 2
    assert all(second_features)


def test_the_latest_row_wins() -> None:
    store = RecycleStore()
    store.update(rows([3], [-1], [[10, 11]], 0), [3])
    store.update(rows([3], [-1], [[12, 13]], 0), [3])
    assert store.find((3,))[1] == [12, 13]


def test_keeps_a_fixed_number_of_candidates_with_falling_confidence() -> None:
    store = RecycleStore()
    store.update(rows([3], [-1], [list(range(20))], 0), [3])
    _, tokens, features, _ = store.find((3,))
    assert tokens == list(range(NUM_KEPT))
    assert features == sorted(features, reverse=True)


def test_what_is_found_can_be_changed_without_harm() -> None:
    store = RecycleStore()
    store.update(rows([3], [-1], [[10, 11]], 0), [3])
    store.find((3,))[1].append(99)
    assert store.find((3,))[1] == [10, 11]


def test_empty_and_short_contexts() -> None:
    assert RecycleStore().find((1,)) == (0, [], [], [])
    assert RecycleStore().find((1, 2, 3)) == (0, [], [], [])


def test_pays_where_the_text_depends_on_the_last_token() -> None:
    target = markov_target(vocab_size=200, order=1)
    outcome = decode(make_drafter("recycling"), target, list(range(150)), 100, 8)
    assert outcome.mean_emitted > 3
