"""What a user sets: the budget, the drafter and the depth, and how vLLM is told."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from treedecode.cost_file import read_cost
from treedecode.drafters import DRAFTERS, SHARING_DRAFTERS, SharedStore, make_drafter
from treedecode.drafters.base import Drafter
from treedecode.surface import Cost
from treedecode.topology import count
from treedecode.vllm.drafters.methods import check_method, own_drafter
from treedecode.vllm.installed import is_cpu_build

CPU_WORKER = "treedecode.vllm.worker.TreeCPUWorker"
GPU_WORKER = "treedecode.vllm.gpu_worker.TreeGPUWorker"
WORKERS = (CPU_WORKER, GPU_WORKER)
PROPOSER = "treedecode.vllm.proposer.TreeProposer"
SCHEDULER = "treedecode.vllm.scheduler.TreeScheduler"
EXECUTOR = "treedecode.vllm.executor.TreeExecutor"
# vLLM's own limit on drafts per request and step.
MAX_BUDGET = 128
DEFAULT_BUDGET = 12
DEFAULT_WIDTH = 3
# Key in vLLM's additional_config.
CONFIG_KEY = "treedecode"


@dataclass(frozen=True)
class TreeOptions:
    """Settings beyond vLLM's own, in ``additional_config["treedecode"]``.

    Attributes:
        drafter: a name of ``treedecode.drafters.DRAFTERS``, or ``"package.module:factory"``, where ``factory()`` gives
            a fresh ``Drafter`` for every request.
        max_depth: deepest drafted node.
        cost: what steps cost, by which trees are sized: ``"auto"`` measures it at start-up, ``"off"`` sizes none, so
            that every tree has up to ``budget`` nodes, and a path reads a ``CostCurve`` or ``CostSurface`` in JSON, or
            a saved calibration.
        width: candidates after every node that one of vLLM's own drafters drafts on; 1 is a chain.
        branches: nodes of one depth that one of vLLM's own drafters drafts on, in one pass; 1 is a spine with leaves.
        shared_contexts: most contexts of ended requests' outputs that the drafters merged, recycling and suffix draft
            from, half a kilobyte each; 0 keeps none.

    Raises:
        TypeError, ValueError: a value that cannot be meant.
    """

    drafter: str = "merged"
    max_depth: int = 32
    cost: str = "auto"
    width: int = DEFAULT_WIDTH
    branches: int = 1
    shared_contexts: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.drafter, str):
            raise TypeError(f"drafter must be a name, got {self.drafter!r} ({type(self.drafter).__name__})")
        if self.drafter not in DRAFTERS and ":" not in self.drafter:
            raise ValueError(
                f"drafter must be one of {', '.join(DRAFTERS)}, or 'package.module:factory' for your own; "
                f"got {self.drafter!r}"
            )
        count(self.max_depth, "max_depth", minimum=1)
        if not isinstance(self.cost, str):
            raise TypeError(
                f"cost must be auto, off or a path, got {self.cost!r} ({type(self.cost).__name__})"
            )
        count(self.width, "width", minimum=1)
        count(self.branches, "branches", minimum=1)
        if count(self.shared_contexts, "shared_contexts") and self.drafter not in SHARING_DRAFTERS:
            raise ValueError(
                f"shared_contexts needs one of the drafters {', '.join(SHARING_DRAFTERS)}, got {self.drafter!r}: "
                "leave out --shared-contexts"
            )

    @classmethod
    def of(cls, additional_config: object) -> TreeOptions:
        """Read the options from vLLM's ``additional_config``; those not given keep their defaults.

        Raises:
            ValueError: an option that does not exist.
        """
        given = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, Mapping) else {}
        if not isinstance(given, Mapping):
            raise ValueError(f"additional_config[{CONFIG_KEY!r}] must map options to values, got {given!r}")
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(
                f"additional_config[{CONFIG_KEY!r}] has the options {', '.join(known)}; got {unknown}"
            )
        return cls(**given)

    def drafter_factory(self, store: SharedStore | None = None) -> Callable[[], Drafter]:
        """What makes a fresh drafter.

        Args:
            store: what it is to draft from, too; for the drafters that can.

        Raises:
            ValueError: the module or the factory does not exist, or it makes no drafter.
        """
        if store is not None:
            sharing = SHARING_DRAFTERS[self.drafter]
            return lambda: sharing(store)
        if self.drafter in DRAFTERS:
            return DRAFTERS[self.drafter]
        module, _, name = self.drafter.partition(":")
        try:
            factory = getattr(importlib.import_module(module), name)
            make_drafter(factory())
        except (ImportError, AttributeError, TypeError) as error:
            raise ValueError(f"drafter {self.drafter!r} cannot be made: {error}") from error
        return factory

    def saved_cost(self) -> Cost | None:
        """The cost that was read from a file; None where none was named.

        Raises:
            ValueError: the file cannot be read, or holds no cost.
        """
        if self.cost in ("auto", "off"):
            return None
        try:
            return read_cost(self.cost).cost
        except (OSError, ValueError) as error:
            raise ValueError(
                f"cost must be auto, off or a file, and {self.cost!r} is none: {error}"
            ) from error


def check_budget(budget: int) -> int:
    """Return ``budget``, the drafted nodes per request and step, if vLLM can take it.

    Raises:
        TypeError, ValueError: it is no integer, negative, or over vLLM's own limit.
    """
    if count(budget, "budget") > MAX_BUDGET:
        raise ValueError(
            f"budget must be at most {MAX_BUDGET}, vLLM's limit of drafts per step, got {budget}"
        )
    return budget


def engine_args(
    budget: int = DEFAULT_BUDGET,
    drafter: str = "merged",
    max_depth: int = 32,
    cost: str = "auto",
    width: int = DEFAULT_WIDTH,
    branches: int = 1,
    shared_contexts: int = 0,
    speculative_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments that turn trees on in vLLM: ``LLM(model, **engine_args())``.

    The worker is the one for the installed vLLM: of its CPU build, or of GPUs.

    Args:
        budget: most drafted nodes per request and step; 0 gives no argument at all: stock plain decoding.
        drafter: as ``TreeOptions``.
        max_depth: as ``TreeOptions``.
        cost: as ``TreeOptions``.
        width: as ``TreeOptions``.
        branches: as ``TreeOptions``.
        shared_contexts: as ``TreeOptions``.
        speculative_config: vLLM's, with the method and model of a drafter of vLLM's to draft the trees' spines in place
            of ``drafter``. Its ``num_speculative_tokens``, if given, counts drafted nodes and takes the place of
            ``budget``. Methods ``ngram`` and ``suffix`` stand for treedecode's own drafters.

    Raises:
        TypeError, ValueError: a value that cannot be meant.
    """
    options = TreeOptions(drafter, max_depth, cost, width, branches, shared_contexts)
    if check_budget(budget) == 0:
        return {}
    given = {"num_speculative_tokens": budget, **(speculative_config or {})}
    check_budget(given["num_speculative_tokens"])
    matcher = own_drafter(speculative_config) if speculative_config else None
    if speculative_config is not None and matcher is None:
        check_method(given.get("method"))
        # vLLM turns it on by itself for these methods
        chosen: dict[str, Any] = {"speculative_config": given, "async_scheduling": False}
    else:
        options = replace(options, drafter=matcher) if matcher else options
        nodes = given["num_speculative_tokens"]
        own = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": nodes}
        chosen = {"speculative_config": own}
    return {
        "worker_cls": CPU_WORKER if is_cpu_build() else GPU_WORKER,
        "scheduler_cls": SCHEDULER,
        **chosen,
        "additional_config": {CONFIG_KEY: asdict(options)},
    }


def is_named(cls: object, name: str) -> bool:
    """Whether ``cls``, a class or the name that vLLM was given for it, is the class of that qualified name."""
    return cls == name or (isinstance(cls, type) and f"{cls.__module__}.{cls.__qualname__}" == name)


def is_tree_scheduler(scheduler_cls: object) -> bool:
    """Whether vLLM's ``scheduler_cls`` is ours, which follows trees with a grammar and tells workers of resets."""
    return is_named(scheduler_cls, SCHEDULER)
