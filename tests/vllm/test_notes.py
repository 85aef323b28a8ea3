"""What the scheduler with trees tells the workers, through copies and processes."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from treedecode.vllm.grammar import KeptTree
from treedecode.vllm.notes import SchedulerNotes

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
    output = SimpleNamespace(finished_req_ids={"b", "c", "a", "d"}, scheduled_new_reqs=[])
    assert runner._update_states(output) == "stock" and calls == ["a", "b", "c", "d"]
    SchedulerNotes(forgets=True).send_with(output)
    runner._update_states(output)
    assert calls[4:] == ["a", "b", "c", "d", "clear"]
