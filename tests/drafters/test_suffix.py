from __future__ import annotations

import random

from treedecode.drafters.suffix import MAX_MATCH, SuffixIndex, length_bin


def candidates(
    index: SuffixIndex, tail: list[int], match_length: int = 0
) -> tuple[int, list[int], list[int]]:
    tokens: list[int] = []
    features: list[int] = []
    longest = index.add_candidates(tuple(tail), match_length, tokens, features, 10)
    return longest, tokens, features


def test_longest_match_first_then_shorter_ones() -> None:
    index = SuffixIndex()
    index.extend([1, 2, 3, 50, 9, 2, 3, 60, 8, 3, 70])
    longest, tokens, _ = candidates(index, [1, 2, 3])
    assert (longest, tokens) == (3, [50, 60, 70])
    longest, tokens, _ = candidates(index, [7, 7, 3])
    assert (longest, tokens) == (1, [70, 60, 50])


def test_several_continuations_latest_first() -> None:
    index = SuffixIndex()
    index.extend([1, 2, 1, 3, 1, 2, 1, 4, 1, 2])
    _, tokens, features = candidates(index, [1])
    assert tokens == [2, 4, 3]
    assert len(set(features)) == 3


def test_growing_step_by_step_equals_at_once() -> None:
    text = random.Random(0).choices(range(5), k=200)
    whole, grown = SuffixIndex(), SuffixIndex()
    whole.extend(text)
    for length in sorted(random.Random(1).sample(range(1, 200), 20)):
        grown.extend(text[:length])
    grown.extend(text)
    for start in range(0, 190, 7):
        tail = text[start : start + 8]
        assert candidates(whole, tail) == candidates(grown, tail)
        assert whole.match_length(text[: start + 9]) == grown.match_length(text[: start + 9])


def test_match_length_against_a_scan() -> None:
    rng = random.Random(3)
    text = rng.choices(range(3), k=60)
    for end in range(20, 60):
        index = SuffixIndex()
        index.extend(text[:end])
        latest = next((at for at in range(end - 1, 7, -1) if text[at - 8 : at] == text[end - 8 : end]), None)
        expected = 0
        if latest is not None:
            while (
                expected < min(MAX_MATCH, latest) and text[latest - 1 - expected] == text[end - 1 - expected]
            ):
                expected += 1
        assert index.match_length(text[:end]) == expected


def test_match_grows_along_a_copy() -> None:
    text = [*range(30), 99, *range(12)]
    index = SuffixIndex()
    index.extend(text)
    assert index.match_length(text) == 12
    longest, tokens, _ = candidates(index, text[-8:], 11)
    assert (longest, tokens) == (12, [12])
    assert candidates(index, list(range(13, 21)), 23)[0] == MAX_MATCH


def test_followers_of_the_end_are_unknown() -> None:
    index = SuffixIndex()
    index.extend([1, 2, 3])
    assert candidates(index, [1, 2, 3]) == (0, [], [])
    assert candidates(index, []) == (0, [], [])
    assert index.match_length([]) == 0


def test_length_bins_never_fall() -> None:
    bins = [length_bin(length) for length in range(MAX_MATCH + 1)]
    assert bins[0] == 0
    assert bins == sorted(bins)
