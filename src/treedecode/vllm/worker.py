"""The worker class that turns trees on: ``--worker-cls treedecode.vllm.worker.TreeCPUWorker``."""

from __future__ import annotations

from typing import Any, cast

from treedecode.vllm.compat import check_config, check_signatures, check_version

# before the imports that other versions do not have
check_version()

from vllm.logger import init_logger  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend  # noqa: E402
from vllm.v1.attention.selector import _cached_get_attn_backend  # noqa: E402
from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # noqa: E402
from vllm.v1.worker.cpu_worker import CPUWorker  # noqa: E402

from treedecode.vllm.config import TreeOptions  # noqa: E402
from treedecode.vllm.measure import measure_steps  # noqa: E402
from treedecode.vllm.runner import TreeRunnerMixin  # noqa: E402
from treedecode.vllm.selftest import self_test  # noqa: E402

# vLLM shows the messages of loggers below its own
logger = init_logger(f"vllm.{__name__}")

_BACKEND = "treedecode.vllm.cpu_attention.TreeCPUBackend"


class TreeCPUModelRunner(TreeRunnerMixin, CPUModelRunner):
    """vLLM's V1 runner for CPUs, with trees."""


class TreeCPUWorker(CPUWorker):
    """vLLM's CPU worker, with the tree runner and the tree attention.

    Raises:
        ValueError: trees cannot run with this vLLM or this configuration; said before any weight is loaded.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check_signatures()
        check_config(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)

    def init_device(self) -> None:
        # Another engine of this process may have chosen its backend before.
        register_backend(AttentionBackendEnum.CPU_ATTN, _BACKEND)
        _cached_get_attn_backend.cache_clear()
        super().init_device()
        runner: Any = self.model_runner
        if type(runner) is not CPUModelRunner:
            raise ValueError(
                f"trees need vLLM's V1 model runner, got {type(runner).__module__}.{type(runner).__qualname__}: "
                "set VLLM_USE_V2_MODEL_RUNNER=0"
            )
        runner.__class__ = TreeCPUModelRunner
        cast(TreeCPUModelRunner, runner).start_trees()

    def compile_or_warm_up_model(self) -> Any:
        times = super().compile_or_warm_up_model()
        runner = cast(TreeCPUModelRunner, self.model_runner)
        num_kinds = self_test(runner)
        options = TreeOptions.of(self.vllm_config.additional_config)
        if options.cost != "off":
            cost = options.saved_cost() or measure_steps(runner)
            runner.plan_by(cost)
            logger.info("Trees are sized by the cost of steps: %s", cost.to_json())
        runner.start_metrics()
        logger.info("Trees are on; the self-test passed on %d kinds of attention layers.", num_kinds)
        return times

    def tree_counts(self) -> dict[str, Any]:
        """What the trees did so far: the fields and rates of ``TreeCounts``.

        For ``llm.collective_rpc("tree_counts")``: one dictionary per rank.
        """
        return cast(TreeCPUModelRunner, self.model_runner).counts.to_dict()
