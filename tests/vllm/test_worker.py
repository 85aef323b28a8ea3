"""What the worker does after the weights are loaded; no engine is started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from treedecode.cost import CostCurve

pytestmark = pytest.mark.vllm

MEASURED = CostCurve([1, 8], [1.0, 2.0])


@pytest.mark.parametrize(
    ("reads_target", "cost", "planned"),
    [(False, "auto", [MEASURED]), (False, "off", []), (True, "auto", [MEASURED]), (True, "off", [])],
)
def test_trees_of_all_drafters_are_sized_unless_it_is_off(monkeypatch, reads_target, cost, planned):
    from treedecode.vllm import worker
    from treedecode.vllm.drafters.spine import SpineTrees
    from treedecode.vllm.proposer import TreeProposer
    from treedecode.vllm.runner import TreeRunnerMixin

    class Runner(TreeRunnerMixin):
        def __init__(self):
            self.drafter = object.__new__(SpineTrees if reads_target else TreeProposer)
            self.costs = []

        def plan_by(self, cost):
            self.costs.append(cost)

        def start_metrics(self):
            pass

    monkeypatch.setattr(worker.CPUWorker, "compile_or_warm_up_model", lambda self: 0.0)
    monkeypatch.setattr(worker, "self_test", lambda runner: 1)
    monkeypatch.setattr(worker, "measure_steps", lambda runner: MEASURED)
    started = object.__new__(worker.TreeCPUWorker)
    started.model_runner = runner = Runner()
    started.vllm_config = SimpleNamespace(additional_config={"treedecode": {"cost": cost}})
    assert started.compile_or_warm_up_model() == 0.0
    assert runner.costs == planned
