from __future__ import annotations

import pytest

from treedecode.drafters import DraftContext, PromptLookupDrafter


def propose(
    drafter: PromptLookupDrafter, text: list[int], max_drafted: int = 8, max_depth: int = 64
) -> list[int]:
    tree = drafter.propose(DraftContext(text, len(text), max_drafted, max_depth))
    assert tree.shape.parent_tuple == tuple(range(-1, tree.num_drafted))
    return list(tree.token_tuple[1:])


def test_copies_what_followed_the_longest_match() -> None:
    text = [1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3]
    assert propose(PromptLookupDrafter(), text, 4) == [4, 5, 9, 2]
    assert propose(PromptLookupDrafter(max_ngram=2), text, 4) == [7, 8, 1, 2]


def test_the_latest_of_equal_matches() -> None:
    assert propose(PromptLookupDrafter(), [1, 5, 1, 6, 1], 1) == [6]


def test_goes_round_at_the_end_of_the_text() -> None:
    assert propose(PromptLookupDrafter(), [1, 2, 3, 1, 2, 3], 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert propose(PromptLookupDrafter(), [4, 4], 3) == [4, 4, 4]


def test_nothing_to_copy() -> None:
    assert propose(PromptLookupDrafter(), [1, 2, 3]) == []
    assert propose(PromptLookupDrafter(min_ngram=2), [1, 2, 1]) == []
    assert propose(PromptLookupDrafter(), [1, 1], 0) == []
    assert propose(PromptLookupDrafter(), [1, 1, 1], 8, 2) == [1, 1]


def test_acceptance_is_learned() -> None:
    drafter = PromptLookupDrafter()
    text = [1, 2]
    for i in range(60):
        text += [10 + i, 1]  # 1 is followed by something new every time
        drafter.propose(DraftContext(text, 2, 1, 4))
    tree = drafter.propose(DraftContext(text, 2, 1, 4))
    assert tree.scores is not None
    assert tree.scores[1] < -2.5


@pytest.mark.parametrize(
    ("lengths", "error"), [((0, 0), ValueError), ((2, 3), ValueError), ((2.5, 1), TypeError)]
)
def test_bad_lengths(lengths: tuple[int, int], error: type[Exception]) -> None:
    with pytest.raises(error, match="_ngram must be"):
        PromptLookupDrafter(*lengths)
