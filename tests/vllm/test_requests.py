"""The life of requests: preemption, abort, late arrival, reuse of tree-written blocks, drafters that fail."""

from __future__ import annotations

import pytest

from tests.vllm.cases import FIRST_TURN, GROUPS, LONG, SECOND_TURN, Case
from tests.vllm.conftest import runner_of
from tests.vllm.drafters import drafting
from tests.vllm.running import Answer, run_cases
from tests.vllm.test_engine import assert_same

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]


def stepping(llm, cases, on_step):
    """Run requests by hand; ``on_step(engine, number, add)`` may interfere. Answers by id, None if it never ended."""
    from vllm import TokensPrompt

    engine, answers = llm.llm_engine, {}
    tokenizer = llm.get_tokenizer()

    def add(name, case):
        prompt = TokensPrompt(prompt_token_ids=case.token_ids(tokenizer))
        engine.add_request(name, prompt, case.sampling_params())
        answers[name] = None

    for index, case in enumerate(cases):
        add(str(index), case)
    number = 0
    while engine.has_unfinished_requests():
        on_step(engine, number, add)
        for output in engine.step():
            if output.finished:
                answers[output.request_id] = Answer.of(output, output.outputs[0])
        number += 1
    return answers


def test_preempted_requests_go_on(llm, reference, truth):
    preempted = []

    def preempt(engine, number, add):
        if number in (5, 8, 11):
            scheduler = engine.engine_core.engine_core.scheduler
            preempted.append(len(scheduler.running))
            assert scheduler.reset_prefix_cache(reset_running_requests=True)

    with drafting("hidden", truth):
        answers = stepping(llm, GROUPS["kinds"], preempt)
    assert all(preempted)
    assert_same([[answers[str(i)]] for i in range(len(answers))], reference["kinds"])


def test_aborts_and_late_arrivals_leave_the_others_alone(llm, reference, truth):
    cases = GROUPS["kinds"]

    def interfere(engine, number, add):
        if number == 4:
            engine.abort_request(["0"])
        if number == 6:
            add("late", cases[0])

    with drafting("mixed", truth):
        answers = stepping(llm, cases, interfere)
    assert answers.pop("0") is None
    stock = reference["kinds"]
    assert_same([[answers.pop("late")]], [stock[0]])
    assert_same([[answers[str(i)]] for i in (1, 2, 3)], stock[1:])


def test_nothing_is_kept_of_ended_requests(llm, truth):
    with drafting("mixed", truth):
        run_cases(llm, GROUPS["kinds"][:2])
        # the runner hears of the last ended request in the step after
        run_cases(llm, [Case("One more", {"max_tokens": 1})])
    proposer = runner_of(llm).drafter
    kept = [len(proposer._states), len(proposer._early_rows), len(proposer.proposed)]
    assert max(kept) <= 1


def test_blocks_that_trees_wrote_serve_the_prefix_cache(llm, reference, truth):
    """The same prompt and output once computed in full by stock vLLM, once read from blocks that trees filled."""
    [stock_first], [stock_second] = reference["turns"]
    prompt = FIRST_TURN.token_ids(llm.get_tokenizer())
    whole = prompt + stock_first.token_ids
    llm.reset_prefix_cache()
    with drafting("hidden", [(prompt, stock_first.token_ids)]):
        assert_same(run_cases(llm, [FIRST_TURN]), [[stock_first]])
        [[second]] = run_cases(llm, [Case(whole, SECOND_TURN)])
    assert_same([[second]], [[stock_second]])
    # the second block holds the prompt's end and nodes that trees accepted
    assert second.num_cached > len(prompt)


@pytest.mark.parametrize("drafter", ["raising", "malformed"])
def test_a_failing_drafter_costs_its_trees_and_nothing_else(llm, reference, counts, drafter):
    with drafting(drafter):
        assert_same(run_cases(llm, GROUPS["kinds"][:3]), reference["kinds"][:3])
    assert counts.num_failed_drafts > 0
    assert counts.num_drafted == 0 and counts.num_bare == counts.num_request_steps


def test_counts_can_be_asked_for_from_outside(llm, counts, truth):
    with drafting("hidden", truth):
        run_cases(llm, GROUPS["kinds"][:1])
    [told] = llm.collective_rpc("tree_counts")
    assert told["num_emitted"] == counts.num_emitted > 0
    assert told["accepted_by_rank"] == counts.accepted_by_rank and told["rescue_rate"] > 0


def test_a_seeded_request_with_a_chunked_prompt(llm):
    """Stock vLLM 0.32 ends its engine here on a CPU; the draws of prompt chunks must leave no trace, either."""
    case = Case(LONG, {"temperature": 1.0, "seed": 3, "max_tokens": 12})
    llm.reset_prefix_cache()
    with drafting("merged"):
        [[chunked]] = run_cases(llm, [case])
        [[cached]] = run_cases(llm, [case])
    assert chunked.num_cached == 0 and cached.num_cached > len(case.token_ids(llm.get_tokenizer())) - 384
    assert not chunked.difference(cached)


def test_metrics_of_an_engine_of_one_process(llm, counts, truth):
    def told():
        return {
            metric.name.removeprefix("vllm:tree_"): metric.value
            for metric in llm.get_metrics()
            if metric.name.startswith("vllm:tree_")
        }

    before = told()
    with drafting("hidden", truth):
        [[answer]] = run_cases(llm, GROUPS["kinds"][:1])
    after = told()
    assert after["emitted_tokens"] - before.get("emitted_tokens", 0) == len(answer.token_ids)
    assert after["compaction_bytes"] - before.get("compaction_bytes", 0) == counts.num_moved_bytes > 0
    assert after["sibling_rescue_rate"] == counts.rescue_rate
