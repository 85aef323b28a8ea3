"""Greedy and seeded output with trees equals that of stock vLLM without speculation, whatever the drafter proposes."""

from __future__ import annotations

import pytest

from tests.vllm.cases import GROUPS
from tests.vllm.drafters import drafting
from tests.vllm.running import run_cases

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

MAX_LOGPROB_GAP = 1e-3


def assert_same(answers, expected):
    for index, (mine, theirs) in enumerate(zip(answers, expected, strict=True)):
        for answer, stock in zip(mine, theirs, strict=True):
            assert not answer.difference(stock), f"case {index}: {answer.difference(stock)}"
            assert answer.logprob_gap(stock) < MAX_LOGPROB_GAP, f"case {index}"


@pytest.mark.parametrize("drafter", ["hidden", "adversary", "merged"])
def test_prompts_of_all_kinds(llm, reference, truth, counts, drafter):
    with drafting(drafter, truth):
        answers = run_cases(llm, GROUPS["kinds"])
    assert_same(answers, reference["kinds"])
    assert counts.num_drafted > 0
    assert counts.num_emitted >= sum(len(answer.token_ids) for [answer] in answers)
    if drafter == "hidden":  # every step accepts as many levels as may still be emitted, up to four
        assert counts.accepted_by_depth[1] == counts.num_request_steps - counts.num_bare
        assert counts.emitted_per_step >= 4
        assert counts.num_moved_bytes > 0 and counts.accepted_by_rank[1] > 0


@pytest.mark.parametrize("drafter", ["mixed", "merged"])
def test_sampling_parameters(llm, reference, truth, drafter):
    with drafting(drafter, truth):
        assert_same(run_cases(llm, GROUPS["features"]), reference["features"])


@pytest.mark.parametrize("drafter", ["mixed", "merged"])
def test_a_seed_gives_the_same_tokens_with_trees_and_without(llm, reference, truth, drafter):
    with drafting(drafter, truth):
        assert_same(run_cases(llm, GROUPS["seeded"]), reference["seeded"])


@pytest.mark.parametrize("drafter", ["mixed", "recycling"])
def test_many_concurrent_requests(llm, reference, truth, drafter):
    with drafting(drafter, truth):
        assert_same(run_cases(llm, GROUPS["many"]), reference["many"])
