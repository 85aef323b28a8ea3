"""The worker that turns trees on for CPUs: ``--worker-cls treedecode.vllm.worker.TreeCPUWorker``."""

from __future__ import annotations

from typing import Any, ClassVar, cast

# first, as it checks the version before imports that other versions do not have
from treedecode.vllm.tree_worker import TreeWorkerMixin  # isort: skip

from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from treedecode.vllm.runner import TreeRunnerMixin


class TreeCPUModelRunner(TreeRunnerMixin, CPUModelRunner):
    """vLLM's V1 runner for CPUs, with trees."""


class TreeCPUWorker(TreeWorkerMixin, CPUWorker):
    """vLLM's CPU worker, with the tree runner and the tree attention.

    Raises:
        ValueError: trees cannot run with this vLLM or this configuration; said before any weight is loaded.
    """

    device_type: ClassVar[str] = "cpu"
    backend: ClassVar[tuple[AttentionBackendEnum, str]] = (
        AttentionBackendEnum.CPU_ATTN,
        "treedecode.vllm.cpu_attention.TreeCPUBackend",
    )

    def init_device(self) -> None:
        super().init_device()
        runner: Any = self.model_runner
        if type(runner) is not CPUModelRunner:
            raise ValueError(
                f"trees need vLLM's V1 model runner, got {type(runner).__module__}.{type(runner).__qualname__}: "
                "set VLLM_USE_V2_MODEL_RUNNER=0"
            )
        runner.__class__ = TreeCPUModelRunner
        cast(TreeCPUModelRunner, runner).start_trees()
