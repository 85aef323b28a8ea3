"""What the scheduler and the steps tell the workers, their proposers and planners, through copies and processes."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import torch

from treedecode.tree import DraftTree
from treedecode.vllm.grammar import KeptTree
from treedecode.vllm.notes import SchedulerNotes, SentDrafts

pytestmark = pytest.mark.vllm


def test_notes_travel_with_vllms_own_message():
    from vllm.v1.core.sched.output import SchedulerOutput

    output = SchedulerOutput.make_empty()
    assert SchedulerNotes.of(output) == SchedulerNotes()
    notes = SchedulerNotes({"a": KeptTree((2,), (0,), (7,))}, forgets=True)
    notes.send_with(output)
    assert SchedulerNotes.of(pickle.loads(pickle.dumps(output))) == notes


def test_a_reset_of_the_prefix_cache_is_told_once(monkeypatch):
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler

    from treedecode.vllm.scheduler import TreeScheduler

    monkeypatch.setattr(Scheduler, "__init__", lambda self: None)
    monkeypatch.setattr(Scheduler, "schedule", lambda self: SchedulerOutput.make_empty())
    monkeypatch.setattr(Scheduler, "reset_prefix_cache", lambda self, *flags: flags)
    made = TreeScheduler()
    made.requests = {}
    assert not SchedulerNotes.of(made.schedule()).forgets
    assert made.reset_prefix_cache(True) == (True,)
    assert SchedulerNotes.of(made.schedule()).forgets
    assert not SchedulerNotes.of(made.schedule()).forgets


def test_ended_requests_are_forgotten_in_the_same_order_on_all_ranks(monkeypatch):
    from treedecode.vllm.runner import TreeRunnerMixin

    class Stock:
        def _update_states(self, output):
            return "stock"

    class Runner(TreeRunnerMixin, Stock):
        pass

    calls = []
    runner = Runner()
    runner.drafter = SimpleNamespace(forget=calls.append, clear_shared=lambda: calls.append("clear"))
    runner._ends = SimpleNamespace(forget=lambda request_id: None)
    passed_on = []
    runner.counts, runner._metrics = "counts", SimpleNamespace(record=passed_on.append)
    output = SimpleNamespace(finished_req_ids={"b", "c", "a", "d"}, scheduled_new_reqs=[])
    assert runner._update_states(output) == "stock" and calls == ["a", "b", "c", "d"]
    assert passed_on == ["counts"]
    SchedulerNotes(forgets=True).send_with(output)
    runner._update_states(output)
    assert calls[4:] == ["a", "b", "c", "d", "clear"]


def worker_drafts(token_ids, proposed, structured=(), walks=True):
    """What the worker hands to the scheduler of ``token_ids``, a list or a tensor, by requests a and b."""
    from vllm.v1.outputs import DraftTokenIds

    from treedecode.vllm.runner import TreeRunnerMixin

    class Stock:
        def take_draft_token_ids(self):
            rows = token_ids if isinstance(token_ids, list) else token_ids.tolist()
            return DraftTokenIds(["a", "b"], rows)

    class Runner(TreeRunnerMixin, Stock):
        def _params(self, request_id):
            return SimpleNamespace(structured_outputs=request_id if request_id in structured else None)

    runner = Runner()
    runner._draft_token_ids, runner._walks_grammars = token_ids, walks
    runner.drafter = SimpleNamespace(proposed=proposed)
    return runner.take_draft_token_ids()


def test_parents_go_along_with_the_drafts_of_structured_requests():
    tree = DraftTree.trusted([-1, 0, 0, 1], [5, 1, 2, 3])
    drafts = worker_drafts([[1, 2, 3], [1, 2, 3]], {"a": tree, "b": tree}, structured="a")
    assert drafts.draft_token_ids == [[1, 2, 3], [1, 2, 3]] and drafts.parents == {"a": [0, 0, 1]}
    # not the tree that these tokens are of
    assert worker_drafts([[1, 2], [3]], {"a": tree}, structured="ab").parents == {}
    assert not hasattr(worker_drafts([[1, 2, 3], []], {"a": tree}, structured="a", walks=False), "parents")


def test_vllms_zeros_near_the_limit_are_no_drafts():
    drafts = worker_drafts(torch.zeros(2, 4, dtype=torch.int32), {})
    assert drafts.req_ids == ["a", "b"] and drafts.draft_token_ids == [[], []]


def sampled(executor, output):
    """A worker's step, sent to the executor's process."""
    from treedecode.vllm.tree_worker import TreeWorkerMixin

    class Stock:
        def sample_tokens(self, grammar_output):
            return output

        def take_draft_token_ids(self):
            return None

    class Worker(TreeWorkerMixin, Stock):
        pass

    worker = object.__new__(Worker)
    worker._sends_drafts = executor
    return pickle.loads(pickle.dumps(worker.sample_tokens(None)))


def test_drafts_come_with_what_was_sampled_where_the_executor_reads_them():
    from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

    def output():
        return ModelRunnerOutput(["a"], {"a": 0}, [[3]])

    assert SentDrafts.of(sampled(True, output())) == SentDrafts(None)
    assert SentDrafts.of(sampled(False, output())) is None
    # shared by all steps of the process
    assert SentDrafts.of(sampled(True, EMPTY_MODEL_RUNNER_OUTPUT)) is None


def test_the_executor_asks_for_drafts_only_where_none_were_sent(monkeypatch):
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor
    from vllm.v1.outputs import DraftTokenIds

    from treedecode.vllm.executor import TreeExecutor

    outputs, asked = [SimpleNamespace(), SimpleNamespace(), SimpleNamespace()], []
    drafts = DraftTokenIds(["a"], [[1, 2]])
    SentDrafts(drafts).send_with(outputs[0])
    SentDrafts(None).send_with(outputs[1])
    monkeypatch.setattr(MultiprocExecutor, "sample_tokens", lambda self, grammar: outputs[grammar])
    monkeypatch.setattr(MultiprocExecutor, "take_draft_token_ids", lambda self: asked.append(1) or "asked")
    executor = object.__new__(TreeExecutor)
    monkeypatch.setattr(TreeExecutor, "__del__", lambda self: None, raising=False)
    taken = []
    for step in range(3):
        assert executor.sample_tokens(step) is outputs[step]
        taken.append(executor.take_draft_token_ids())
    assert taken == [drafts, None, "asked"] and len(asked) == 1
    # a step that sampled nothing
    assert executor.take_draft_token_ids() == "asked"


@pytest.mark.parametrize(("fits", "skipped"), [(True, []), (False, ["skip"])])
def test_where_vllm_does_not_draft_the_planner_is_told(fits, skipped):
    from treedecode.vllm.runner import TreeRunnerMixin

    class Stock:
        def _input_fits_in_drafter(self, metadata):
            return fits

    class Runner(TreeRunnerMixin, Stock):
        pass

    calls, runner = [], Runner()
    planner = SimpleNamespace(skip=lambda: calls.append("skip"))
    runner.drafter = SimpleNamespace(reads_target=True, planner=planner)
    assert runner._input_fits_in_drafter("metadata") is fits and calls == skipped
    runner.drafter.planner = None
    assert runner._input_fits_in_drafter("metadata") is fits
    runner.drafter.reads_target = False
    assert runner._input_fits_in_drafter("metadata") and not runner._input_fits_in_drafter(None)
