"""What the worker does after the weights are loaded; no engine is started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from treedecode.cost import CostCurve

pytestmark = pytest.mark.vllm

MEASURED = CostCurve([1, 8], [1.0, 2.0])


@pytest.mark.parametrize("module", ["worker.TreeCPUWorker", "gpu_worker.TreeGPUWorker"])
@pytest.mark.parametrize(
    ("reads_target", "cost", "planned"),
    [(False, "auto", [MEASURED]), (False, "off", []), (True, "auto", [MEASURED]), (True, "off", [])],
)
def test_trees_of_all_drafters_are_sized_unless_it_is_off(monkeypatch, reads_target, cost, planned, module):
    from vllm.utils.import_utils import resolve_obj_by_qualname

    from treedecode.vllm import tree_worker
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

    worker = resolve_obj_by_qualname(f"treedecode.vllm.{module}")
    monkeypatch.setattr(worker.__mro__[2], "compile_or_warm_up_model", lambda self: 0.0)
    monkeypatch.setattr(tree_worker, "self_test", lambda runner: 1)
    monkeypatch.setattr(tree_worker, "measure_steps", lambda runner: MEASURED)
    started = object.__new__(worker)
    started.model_runner = runner = Runner()
    started.vllm_config = SimpleNamespace(additional_config={"treedecode": {"cost": cost}})
    assert started.compile_or_warm_up_model() == 0.0
    assert runner.costs == planned


@pytest.fixture
def gpu_worker(monkeypatch):
    """The module, with vLLM's own start and our checks of the machine left out."""
    from treedecode.vllm import gpu_worker, tree_worker

    def start(self, vllm_config, local_rank):
        self.vllm_config, self.local_rank = vllm_config, local_rank

    monkeypatch.setattr(tree_worker, "check_config", lambda config, device_type: None)
    monkeypatch.setattr(gpu_worker.Worker, "__init__", start)
    return gpu_worker


def test_a_gpu_worker_chooses_our_backend_for_target_and_drafter(gpu_worker):
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    attention = SimpleNamespace(backend=AttentionBackendEnum.TRITON_ATTN, backend_per_kind={"x": "y"})
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(distributed_executor_backend="mp"),
        attention_config=attention,
        speculative_config=SimpleNamespace(attention_backend=None),
    )
    worker = gpu_worker.TreeGPUWorker(config, 3)
    assert (worker.vllm_config, worker.local_rank) == (config, 3)
    assert attention.backend is AttentionBackendEnum.CUSTOM and not attention.backend_per_kind
    assert config.speculative_config.attention_backend is AttentionBackendEnum.CUSTOM


def test_a_gpu_worker_registers_the_backend_before_vllm_looks_for_it(gpu_worker, monkeypatch):
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from treedecode.vllm.gpu_attention import TreeTritonBackend

    seen = []
    monkeypatch.setattr(
        gpu_worker.Worker, "init_device", lambda self: seen.append(AttentionBackendEnum.CUSTOM.get_class())
    )
    object.__new__(gpu_worker.TreeGPUWorker).init_device()
    AttentionBackendEnum.CUSTOM.clear_override()
    assert seen == [TreeTritonBackend]


def test_a_gpu_worker_makes_the_tree_runner(gpu_worker, monkeypatch):
    calls = []
    runner = gpu_worker.TreeGPUModelRunner
    monkeypatch.setattr(gpu_worker.GPUModelRunner, "__init__", lambda self, *args: calls.append(args))
    monkeypatch.setattr(runner, "start_trees", lambda self: calls.append("started"))
    worker = object.__new__(gpu_worker.TreeGPUWorker)
    worker.vllm_config, worker.device = "config", "device"
    assert type(worker._make_model_runner()) is runner
    assert calls == [("config", "device"), "started"]
