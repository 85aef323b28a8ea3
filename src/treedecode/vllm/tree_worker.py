"""What the workers of all devices share: checks before, a self-test after the weights are loaded, sizes and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from treedecode.vllm.compat import check_config, check_version
from treedecode.vllm.signatures import check_signatures

# before the imports that other versions do not have
check_version()

from vllm.logger import init_logger  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend  # noqa: E402
from vllm.v1.attention.selector import _cached_get_attn_backend  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402

from treedecode.vllm.config import EXECUTOR, TreeOptions, is_named  # noqa: E402
from treedecode.vllm.measure import measure_steps  # noqa: E402
from treedecode.vllm.notes import SentDrafts  # noqa: E402
from treedecode.vllm.runner import TreeRunnerMixin  # noqa: E402
from treedecode.vllm.selftest import self_test  # noqa: E402

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker as _Base
else:
    _Base = object

# vLLM shows the messages of loggers below its own
logger = init_logger(f"vllm.{__name__}")


class TreeWorkerMixin(_Base):
    """To stand before a worker of vLLM whose runner is a ``TreeRunnerMixin``.

    Attributes:
        device_type: of the class's devices.
        backend: the name under which the tree attention is registered, and its class.

    Raises:
        ValueError: trees cannot run with this vLLM or this configuration; said before any weight is loaded.
    """

    device_type: ClassVar[str]
    backend: ClassVar[tuple[AttentionBackendEnum, str]]

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check_signatures(self.device_type)
        check_config(vllm_config, self.device_type)
        super().__init__(vllm_config, *args, **kwargs)
        self._sends_drafts = is_named(vllm_config.parallel_config.distributed_executor_backend, EXECUTOR)

    def init_device(self) -> None:
        # Another engine of this process may have chosen its backend before.
        register_backend(*self.backend)
        _cached_get_attn_backend.cache_clear()
        super().init_device()

    @property
    def _tree_runner(self) -> TreeRunnerMixin:
        return cast(TreeRunnerMixin, self.model_runner)

    def compile_or_warm_up_model(self) -> Any:
        times = super().compile_or_warm_up_model()
        runner = self._tree_runner
        num_kinds = self_test(runner)
        options = TreeOptions.of(self.vllm_config.additional_config)
        if options.cost != "off":
            cost = options.saved_cost() or measure_steps(runner)
            runner.plan_by(cost)
            logger.info("Trees are sized by the cost of steps: %s", cost.to_json())
        runner.start_metrics()
        logger.info("Trees are on; the self-test passed on %d kinds of attention layers.", num_kinds)
        return times

    def sample_tokens(self, grammar_output: Any) -> Any:
        output = super().sample_tokens(grammar_output)
        if self._sends_drafts and isinstance(output, ModelRunnerOutput) and output.req_ids:
            SentDrafts(self.take_draft_token_ids()).send_with(output)
        return output

    def tree_counts(self) -> dict[str, Any]:
        """What the trees did so far: the fields and rates of ``TreeCounts``.

        For ``llm.collective_rpc("tree_counts")``: one dictionary per rank.
        """
        return self._tree_runner.counts.to_dict()
