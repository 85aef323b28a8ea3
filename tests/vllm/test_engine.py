"""Greedy and seeded output with trees equals that of stock vLLM without speculation, whatever the drafter proposes."""

from __future__ import annotations

import pytest

from tests.vllm.cases import GROUPS, Case
from tests.vllm.drafters import STORE, drafting
from tests.vllm.running import run_cases

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

MAX_LOGPROB_GAP = 1e-3


def assert_same(answers, expected):
    for index, (mine, theirs) in enumerate(zip(answers, expected, strict=True)):
        for answer, stock in zip(mine, theirs, strict=True):
            assert not answer.difference(stock), f"case {index}: {answer.difference(stock)}"
            assert answer.logprob_gap(stock) < MAX_LOGPROB_GAP, f"case {index}"


def num_output(answers):
    """Tokens of all outputs; what the counters say was emitted must be the same number."""
    return sum(len(answer.token_ids) for case in answers for answer in case)


@pytest.mark.parametrize("drafter", ["hidden", "adversary", "merged"])
def test_prompts_of_all_kinds(llm, reference, truth, counts, drafter):
    with drafting(drafter, truth):
        answers = run_cases(llm, GROUPS["kinds"])
    assert_same(answers, reference["kinds"])
    assert counts.num_drafted >= counts.num_verified > 0
    assert counts.num_emitted == num_output(answers)
    if drafter == "hidden":  # every step accepts as many levels as may still be emitted, up to four
        assert counts.accepted_by_depth[1] == counts.num_request_steps - counts.num_bare
        num_drafted_steps = counts.num_request_steps - counts.num_bare
        assert counts.num_emitted - counts.num_bare >= 4 * num_drafted_steps
        assert counts.num_moved_bytes > 0 and counts.accepted_by_rank[1] > 0


@pytest.mark.parametrize("drafter", ["mixed", "merged"])
def test_sampling_parameters(llm, reference, truth, counts, drafter):
    with drafting(drafter, truth):
        answers = run_cases(llm, GROUPS["features"])
    assert_same(answers, reference["features"])
    assert counts.num_emitted == num_output(answers)


def test_requests_that_end_inside_an_accepted_path(llm, reference, counts):
    """The trees hold what stock vLLM emits without a stop, so that the walk runs past it."""
    repeat, [long] = GROUPS["kinds"][2], reference["kinds"][2]
    stop_string = GROUPS["features"][4]
    prompt = stop_string.token_ids(llm.get_tokenizer())
    assert prompt == repeat.token_ids(llm.get_tokenizer())
    # behind the first step of four levels, and not the last level of one
    stop_id = next(
        token
        for place, token in enumerate(long.token_ids)
        if place % 5 == 3 and token not in long.token_ids[:place]
    )
    by_id = Case(stop_string.prompt, {"stop_token_ids": [stop_id]})
    with drafting("hidden", [(prompt, long.token_ids)]):
        answers = run_cases(llm, [stop_string, by_id, Case(stop_string.prompt, {"max_tokens": 9})])
    assert_same(answers[:1], [reference["features"][4]])
    assert answers[1][0].token_ids == long.token_ids[: long.token_ids.index(stop_id) + 1]
    assert answers[2][0].token_ids == long.token_ids[:9]
    assert counts.num_emitted == num_output(answers)
    assert counts.num_accepted > 0


@pytest.mark.parametrize("drafter", ["mixed", "merged"])
def test_a_seed_gives_the_same_tokens_with_trees_and_without(llm, reference, truth, counts, drafter):
    with drafting(drafter, truth, most=8):
        answers = run_cases(llm, GROUPS["seeded"])
    assert_same(answers, reference["seeded"])
    assert counts.num_emitted == num_output(answers)


@pytest.mark.parametrize("drafter", ["mixed", "recycling"])
def test_many_concurrent_requests(llm, reference, truth, counts, drafter):
    with drafting(drafter, truth, most=8):
        answers = run_cases(llm, GROUPS["many"])
    assert_same(answers, reference["many"])
    assert counts.num_emitted == num_output(answers)


def test_what_ended_requests_have_left_makes_steps_fewer_and_nothing_else(llm, reference, counts):
    STORE.clear()
    steps = []
    for _ in range(2):
        before = counts.num_request_steps
        with drafting("sharing"):
            assert_same(run_cases(llm, GROUPS["kinds"]), reference["kinds"])
            # so that the engine hears of their end
            run_cases(llm, GROUPS["features"][8:9])
        steps.append(counts.num_request_steps - before)
    assert len(STORE) > 0 and steps[1] < 0.7 * steps[0]
    STORE.clear()
