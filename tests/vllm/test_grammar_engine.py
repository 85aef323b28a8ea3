"""Structured outputs with trees on the real engine: stock vLLM's output, and more accepted than a chain could."""

from __future__ import annotations

import pytest

from tests.vllm.cases import GROUPS
from tests.vllm.conftest import runner_of
from tests.vllm.drafters import drafting
from tests.vllm.running import run_cases
from tests.vllm.test_engine import assert_same, num_output

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

CASES = GROUPS["grammars"]
STRUCTURED = [index for index, case in enumerate(CASES) if case.grammar]
GREEDY = [index for index in STRUCTURED if "seed" not in CASES[index].params]


@pytest.fixture
def hidden(llm, reference):
    """All outputs, sampled ones too, for drafters that hide them among illegal tokens."""
    tokenizer = llm.get_tokenizer()
    return [
        (case.token_ids(tokenizer), answers[0].token_ids)
        for case, answers in zip(CASES, reference["grammars"], strict=True)
    ]


@pytest.mark.parametrize("drafter", ["hidden", "mixed", "adversary", "merged"])
def test_structured_outputs_are_stock_vllms(llm, reference, hidden, counts, drafter):
    with drafting(drafter, hidden):
        answers = run_cases(llm, CASES)
    assert_same(answers, reference["grammars"])
    assert counts.num_emitted == num_output(answers)
    # illegal nodes are never run
    assert counts.num_drafted > counts.num_verified > 0
    assert any(case[0].finish_reason == "stop" for case in answers)


def test_a_tree_finds_what_a_chain_does_not(llm, reference, hidden, counts):
    cases, expected = ([group[index] for index in GREEDY] for group in (CASES, reference["grammars"]))
    runner, steps = runner_of(llm), {}
    for trees in (True, False):
        counts = runner.reset_counts()
        # as with vLLM's own scheduler: chains
        runner._walks_grammars = trees
        try:
            with drafting("hidden", hidden):
                answers = run_cases(llm, cases)
        finally:
            runner._walks_grammars = True
        assert_same(answers, expected)
        steps[trees] = counts.num_request_steps
        if trees:
            assert counts.accepted_by_rank[1] > 0 and counts.num_moved_bytes > 0
    assert 1.5 * steps[True] < steps[False]


def test_masks_in_the_order_of_nodes_would_be_wrong(llm, reference, hidden, monkeypatch):
    """The fault that vLLM's own scheduler would make: every node masked by the nodes before it."""
    from treedecode.vllm.grammar import KeptTree
    from treedecode.vllm.scheduler import TreeScheduler

    right = TreeScheduler._mask

    def wrong(self, request_id, tree):
        chain = KeptTree(tree.nodes, tuple(range(len(tree.nodes))), tree.token_ids)
        return right(self, request_id, chain)

    monkeypatch.setattr(TreeScheduler, "_mask", wrong)
    with drafting("hidden", hidden):
        answers = run_cases(llm, [CASES[index] for index in GREEDY])
    with pytest.raises(AssertionError):
        assert_same(answers, [reference["grammars"][index] for index in GREEDY])
