"""The proposer: a drafter per request, limits kept, failures contained, rows handed on in order."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from treedecode.accept import Acceptance
from treedecode.drafters.base import VerifiedRows
from treedecode.tree import DraftTree

pytestmark = pytest.mark.vllm

VOCAB = 100


class Script:
    """Proposes a fixed tree below the root and notes what it is told."""

    name = "script"
    parents, tokens = (-1, 0, 0, 1, 3), (None, 11, 12, 13, 14)

    def begin(self, prompt_ids):
        self.prompt_ids, self.contexts = prompt_ids, []

    def propose(self, context):
        self.contexts.append((list(context.token_ids), context.max_depth, context.rows))
        return DraftTree.build(self.parents, [context.token_ids[-1], *self.tokens[1:]])[0]


def make_proposer(drafter=f"{__name__}:Script", budget=8, max_depth=6, **options):
    from treedecode.vllm.proposer import TreeProposer

    return TreeProposer(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=budget),
            additional_config={"treedecode": {"drafter": drafter, "max_depth": max_depth, **options}},
            model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB),
        )
    )


def propose(proposer, requests, sampled=None):
    """``requests``: (id, prompt length, tokens so far, depth limit, chain)."""
    from treedecode.vllm.proposer import RequestLimits

    proposer.prepare(
        [RequestLimits(name, prompt, depth, chain) for name, prompt, _, depth, chain in requests]
    )
    width = max(len(tokens) for _, _, tokens, _, _ in requests)
    table = np.zeros((len(requests), width), np.int32)
    for row, (_, _, tokens, _, _) in enumerate(requests):
        table[row, : len(tokens)] = tokens
    lengths = np.array([len(tokens) for _, _, tokens, _, _ in requests])
    return proposer.propose(sampled or [[1]] * len(requests), lengths, table)


def test_drafts_and_limits_by_request():
    proposer = make_proposer()
    drafts = propose(
        proposer,
        [
            ("whole", 2, [5, 6, 7], 9, False),
            ("shallow", 2, [5, 6, 7], 1, False),
            ("full", 2, [5, 6, 7], 0, False),
            ("grammar", 2, [5, 6, 7], 9, True),
        ],
    )
    assert drafts == [[11, 12, 13, 14], [11, 12], [], [11, 13, 14]]
    assert set(proposer.proposed) == {"whole", "shallow", "grammar"}
    assert proposer.proposed["grammar"].shape.parent_tuple == (-1, 0, 1, 2)
    assert propose(make_proposer(budget=3), [("a", 1, [5, 6], 9, False)]) == [[11, 12, 13]]
    assert propose(make_proposer(max_depth=2), [("a", 1, [5, 6], 9, False)]) == [[11, 12, 13]]


def test_a_prompt_chunk_gets_no_draft():
    proposer = make_proposer()
    requests = [("a", 4, [5, 6], 9, False), ("b", 1, [5, 6], 9, False)]
    assert propose(proposer, requests, sampled=[[], [6]]) == [[], [11, 12, 13, 14]]


def test_rows_and_tokens_reach_the_drafter_of_their_request():
    proposer = make_proposer()
    rows = [
        VerifiedRows(DraftTree.root_only(i), i, (0,), np.zeros((1, 1), np.int64), np.zeros((1, 1)))
        for i in range(4)
    ]
    proposer.observe({"a": rows[0], "b": rows[1]})
    proposer.observe({"a": rows[2]})
    propose(proposer, [("a", 2, [5, 6, 7], 9, False), ("b", 1, [8, 9], 9, False)])
    proposer.observe({"a": rows[3]})
    propose(proposer, [("a", 2, [5, 6, 7, 11, 30], 9, False)])
    first, second = (proposer._states[name].drafter for name in "ab")
    assert first.prompt_ids == [5, 6]
    assert [context[0] for context in first.contexts] == [[5, 6, 7], [5, 6, 7, 11, 30]]
    assert [context[2] for context in first.contexts] == [(rows[0], rows[2]), (rows[3],)]
    assert second.contexts == [([8, 9], 6, (rows[1],))]


def test_an_ended_request_is_forgotten_and_its_id_can_return():
    proposer = make_proposer()
    propose(proposer, [("a", 2, [5, 6, 7], 9, False)])
    proposer.forget("a")
    assert not proposer._states and not proposer.proposed
    propose(proposer, [("a", 1, [50, 60], 9, False)])
    assert proposer._states["a"].drafter.prompt_ids == [50]


class Failing(Script):
    """Fails for prompts that start with a small token, each in a way of its own."""

    def propose(self, context):
        kind, root = self.prompt_ids[0], context.token_ids[-1]
        if kind == 1:
            raise ZeroDivisionError("by design")
        if kind == 2:
            return [root, 3]
        if kind == 3:
            return DraftTree.build([-1, 0], [root + 1, 3])[0]
        if kind == 4:
            return DraftTree.build([-1, 0], [root, VOCAB])[0]
        return super().propose(context)


def test_a_failure_costs_one_request_its_tree():
    proposer = make_proposer(f"{__name__}:Failing")
    requests = [(str(kind), 1, [kind, 20], 9, False) for kind in range(1, 6)]
    assert propose(proposer, requests) == [[], [], [], [], [11, 12, 13, 14]]
    assert proposer.counts.num_failed_drafts == 4
    propose(proposer, requests)
    assert proposer.counts.num_failed_drafts == 8 and len(proposer._reported) == 3


class Scored(Script):
    """Scores its nodes: for prompts that start with 1 with logits, else with log reach."""

    def propose(self, context):
        tree = super().propose(context)
        scores = [0.0, 1000.0, 9.0, 8.0, 7.0] if self.prompt_ids[0] == 1 else [0.0, -0.1, -2.0, -0.3, -0.9]
        return DraftTree(tree.shape, tree.token_ids, scores)


def test_the_planner_cuts_what_all_requests_drafted():
    from treedecode.batch_budget import BatchPlanner
    from treedecode.cost import CostCurve

    proposer = make_proposer(f"{__name__}:Scored")
    proposer.planner = BatchPlanner(CostCurve([1, 100], [10.0, 10.01]), max_rows=5)
    requests = [
        ("a", 1, [5, 20], 9, False),
        ("logits", 1, [1, 20], 9, False),
        ("ended", 1, [5, 20], -1, False),
    ]
    drafts = [[]]
    for _ in range(8):  # the guard measures plain steps first
        root = DraftTree.root_only(20)
        walked = {name: (root, Acceptance([0], [20], 0)) for name in ("a", "logits")}
        proposer.planner.record(walked, 10.0, 0.0)
        drafts = propose(proposer, requests)
    # five rows: the two roots, and the three likeliest nodes in an order that stays a tree
    assert drafts == [[11, 12, 13], [], []] and set(proposer.proposed) == {"a"}
    assert proposer.counts.num_failed_drafts > 0 and proposer.counts.num_drafted > 0


def test_no_drafter_is_asked_while_plain_steps_are_measured():
    from treedecode.batch_budget import BatchPlanner
    from treedecode.cost import CostCurve

    proposer = make_proposer()
    proposer.planner = BatchPlanner(CostCurve([1, 100], [10.0, 10.01]), max_rows=50)
    assert propose(proposer, [("a", 1, [5, 20], 9, False)]) == [[]]
    assert not proposer.drafts and not proposer._states


def test_requests_draft_from_what_ended_ones_have_left():
    proposer = make_proposer("suffix", shared_contexts=100)
    first, again = ("first", 2, [8, 9, 20, 21, 22, 23], 9, False), [("again", 2, [8, 9, 20], 9, False)]
    assert propose(proposer, [first]) == [[]]
    # while it runs it shares nothing
    assert propose(proposer, again) == [[]]
    proposer.forget("again")
    proposer.forget("first")
    [drafts] = propose(proposer, [("later", 2, [7, 7, 20], 9, False)])
    assert drafts[:3] == [21, 22, 23]
    proposer.clear_shared()
    proposer.forget("later")
    assert propose(proposer, [("last", 1, [20], 9, False)]) == [[]]


def test_nothing_is_shared_unless_asked_for():
    proposer = make_proposer("suffix")
    propose(proposer, [("first", 2, [8, 9, 20, 21, 22, 23], 9, False)])
    proposer.forget("first")
    proposer.clear_shared()
    assert propose(proposer, [("later", 2, [7, 7, 20], 9, False)]) == [[]]
