"""The worker that turns trees on for GPUs: ``--worker-cls treedecode.vllm.gpu_worker.TreeGPUWorker``."""

from __future__ import annotations

from typing import Any, ClassVar

# first, as it checks the version before imports that other versions do not have
from treedecode.vllm.tree_worker import TreeWorkerMixin  # isort: skip

from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from treedecode.vllm.runner import TreeRunnerMixin


class TreeGPUModelRunner(TreeRunnerMixin, GPUModelRunner):
    """vLLM's V1 runner for GPUs, with trees."""


class TreeGPUWorker(TreeWorkerMixin, Worker):
    """vLLM's GPU worker, with the tree runner and the tree attention under the backend name ``CUSTOM``.

    Raises:
        ValueError: trees cannot run with this vLLM or this configuration; said before any weight is loaded.
    """

    device_type: ClassVar[str] = "cuda"
    backend: ClassVar[tuple[AttentionBackendEnum, str]] = (
        AttentionBackendEnum.CUSTOM,
        "treedecode.vllm.gpu_attention.TreeTritonBackend",
    )

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        attention = vllm_config.attention_config
        attention.backend, attention.backend_per_kind = self.backend[0], {}
        # a drafter with a model does not inherit it
        vllm_config.speculative_config.attention_backend = self.backend[0]

    def _make_model_runner(self) -> Any:
        # V2 is refused before: ``check_config``
        runner = TreeGPUModelRunner(self.vllm_config, self.device)
        runner.start_trees()
        return runner
