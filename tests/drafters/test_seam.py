"""What every drafter promises, over random targets, prompts and limits."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drafters.driver import decode, markov_target, plain, recorded_target, rows_of
from treedecode.drafters import DRAFTERS, DraftContext, make_drafter
from treedecode.tree import DraftTree

NAMES = sorted(DRAFTERS)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    order=st.integers(1, 3),
    num_prompt=st.integers(1, 30),
    max_drafted=st.integers(0, 33),
    max_depth=st.integers(0, 12),
    prompt_rows=st.booleans(),
)
def test_trees_are_valid_and_output_is_plain_decoding(
    name: str, seed: int, order: int, num_prompt: int, max_drafted: int, max_depth: int, prompt_rows: bool
) -> None:
    target = markov_target(vocab_size=12, order=order, seed=seed)
    prompt = random.Random(seed).choices(range(12), k=num_prompt)
    outcome = decode(make_drafter(name), target, prompt, 40, max_drafted, max_depth, prompt_rows)
    assert outcome.token_ids == plain(target, prompt, 40)
    root = len(prompt)
    text = prompt + outcome.token_ids
    for tree, path in zip(outcome.trees, outcome.paths, strict=True):
        # the public constructor checks what trusted() took on trust
        checked = DraftTree(tree.shape, tree.token_ids, tree.scores, tree.sources)
        assert checked.num_drafted <= max_drafted
        assert checked.shape.max_depth <= max_depth
        assert checked.token_ids[0] == text[root]
        root += len(path)
        assert checked.scores is not None
        assert checked.scores[0] == 0.0
        assert all(a >= b for a, b in itertools.pairwise(checked.scores))
        assert checked.sources is not None and checked.sources[0] == "root"


@pytest.mark.parametrize("name", NAMES)
def test_same_calls_same_trees_and_a_used_drafter_equals_a_fresh_one(name: str) -> None:
    target = markov_target(vocab_size=9, order=2)
    used = make_drafter(name)
    first = decode(used, target, [3, 1, 4, 1, 5], 60)
    decode(used, markov_target(vocab_size=9, order=1, seed=5), [2, 7, 1], 30)
    again = decode(used, target, [3, 1, 4, 1, 5], 60)
    assert again.trees == first.trees
    assert decode(make_drafter(name), target, [3, 1, 4, 1, 5], 60).trees == first.trees


@pytest.mark.parametrize("name", NAMES)
def test_smaller_budgets_give_prefixes(name: str) -> None:
    text = random.Random(1).choices(range(6), k=80)
    chain = DraftTree.trusted(range(-1, 79), text)
    rows = (rows_of(markov_target(6, num_best=5), text[:1], chain, list(range(80))),)
    large = make_drafter(name)
    large.begin(text)
    largest = large.propose(DraftContext(text, len(text), 24, 16, rows))
    assert largest.num_drafted > 4
    for budget in range(25):
        drafter = make_drafter(name)
        drafter.begin(text)
        assert drafter.propose(DraftContext(text, len(text), budget, 16, rows)) == largest.prefix(budget)


@pytest.mark.parametrize("name", NAMES)
def test_shallower_limits_drop_only_deeper_nodes(name: str) -> None:
    text = [1, 2, 3, 4, 5, 6] * 4
    for limit in range(6):
        drafter = make_drafter(name)
        drafter.begin(text)
        tree = drafter.propose(DraftContext(text, len(text), 12, limit))
        assert tree.shape.max_depth <= limit


@pytest.mark.parametrize("name", [name for name in NAMES if name != "recycling"])
def test_long_repeats_are_drafted_deep(name: str) -> None:
    loop = list(range(20, 37))
    text = loop * 12
    outcome = decode(make_drafter(name), recorded_target(text), text[:40], 160, 24, prompt_rows=False)
    assert outcome.token_ids == text[40:200]
    assert max(map(len, outcome.paths)) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_text_that_never_matches_drives_the_reach_down(name: str) -> None:
    rng = random.Random(2)
    text = rng.choices(range(30), k=400)
    outcome = decode(make_drafter(name), recorded_target(text), text[:30], 350, 8, prompt_rows=False)
    late = [float(tree.scores[1]) if tree.num_drafted else -10.0 for tree in outcome.trees[-40:]]  # type: ignore[index]
    assert sum(late) / len(late) < -1.2


def test_names() -> None:
    for name in NAMES:
        assert make_drafter(name).name == name
        assert make_drafter(name) is not make_drafter(name)
    assert make_drafter().name == "merged"


def test_an_object_is_used_as_it_is() -> None:
    drafter = make_drafter("suffix")
    assert make_drafter(drafter) is drafter


def test_unknown_drafters() -> None:
    with pytest.raises(
        ValueError, match="must be one of merged, recycling, suffix, prompt-lookup, got 'eagle'"
    ):
        make_drafter("eagle")
    with pytest.raises(TypeError, match=r"begin.*propose.*got int"):
        make_drafter(3)  # type: ignore[arg-type]
