"""The counters of the trees for Prometheus and the log.

What trees do is only known in the worker, and vLLM's own statistics have no place for it on their way to the API
server. Prometheus' client library has one: with ``PROMETHEUS_MULTIPROC_DIR`` set, processes write their metrics into
that folder, and vLLM's ``/metrics`` collects all that is there. ``treedecode serve`` sets it. In an engine of one
process the metrics are in the process's registry, which ``LLM.get_metrics`` reads.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter as CounterDict
from functools import cache

import vllm.envs as envs
from prometheus_client import REGISTRY, Counter, Gauge
from vllm.logger import init_logger

from treedecode.vllm.counts import TreeCounts

# vLLM shows the messages of loggers below its own
logger = init_logger(f"vllm.{__name__}")

_LABELS = ("model_name", "engine")

_COUNTERS = {
    "num_request_steps": ("steps", "Steps that emitted tokens, one per request and engine step."),
    "num_bare": ("steps_without_tree", "Steps in which a request had no draft."),
    "num_emitted": ("emitted_tokens", "Tokens of the outputs; over vllm:tree_steps this is E[L]."),
    "num_drafted": ("drafted_nodes", "Nodes that drafters proposed."),
    "num_verified": ("verified_nodes", "Drafted nodes that the target ran."),
    "num_accepted": ("accepted_nodes", "Drafted nodes that were accepted."),
    "num_wasted": ("wasted_nodes", "Drafted nodes that the target ran and that were not accepted."),
    "num_missed": ("first_child_misses", "Visited nodes with drafts whose first child was wrong."),
    "num_rescued": ("sibling_rescues", "Of these, nodes at which another child was right."),
    "num_failed_drafts": ("failed_drafts", "Drafts that were lost to an error of their drafter."),
    "num_moved_bytes": ("compaction_bytes", "Bytes of keys and values moved behind accepted nodes."),
}
_BY_PLACE = {
    "tried_by_depth": ("tried_by_depth", "depth", "Visited nodes with drafts, by the drafts' depth."),
    "accepted_by_depth": ("accepted_by_depth", "depth", "Accepted nodes by depth."),
    "tried_by_rank": ("tried_by_rank", "rank", "Drafts below visited nodes, by rank among siblings."),
    "accepted_by_rank": ("accepted_by_rank", "rank", "Accepted nodes by rank among siblings."),
}
_GAUGES = {
    "last_budget": ("budget", "Drafted nodes of the last engine step, all requests together."),
    "emitted_per_step": ("emitted_tokens_per_step", "E[L] since the start."),
    "rescue_rate": ("sibling_rescue_rate", "Sibling rescues over first-child misses since the start."),
}


@cache
def _collectors() -> dict[str, Counter | Gauge]:
    """One set per process, by the counts' names: Prometheus refuses a second one."""
    made: dict[str, Counter | Gauge] = {}
    for field, (name, text) in _COUNTERS.items():
        made[field] = Counter(f"vllm:tree_{name}", text, _LABELS, registry=None)
    for field, (name, label, text) in _BY_PLACE.items():
        made[field] = Counter(f"vllm:tree_{name}", text, (*_LABELS, label), registry=None)
    for field, (name, text) in _GAUGES.items():
        made[field] = Gauge(f"vllm:tree_{name}", text, _LABELS, registry=None, multiprocess_mode="mostrecent")
    return made


class TreeMetrics:
    """Passes counters on to Prometheus after every step and, from time to time, to the log.

    Args:
        model_name: as vLLM serves it.
        engine: index of the engine among data-parallel ones.
    """

    def __init__(self, model_name: str, engine: int) -> None:
        self._labels = model_name, str(engine)
        self._counts: TreeCounts | None = None
        self._passed_on_at = self._logged_at = time.monotonic()

    def record(self, counts: TreeCounts, interval_s: float = 0.0) -> None:
        """Pass on what was counted since the last time; a line is logged every ``VLLM_LOG_STATS_INTERVAL`` seconds.

        Args:
            counts: the engine's, in general the same object at every call; others start from zero.
            interval_s: seconds since the last time before which nothing is done.
        """
        now = time.monotonic()
        if now - self._passed_on_at < interval_s:
            return
        self._passed_on_at = now
        if counts is not self._counts:
            if self._counts is None:
                # not before: vLLM empties the registry of its metrics while an engine is made
                self._register()
            self._counts, self._passed_on, self._logged = counts, TreeCounts(), TreeCounts()
        new, self._passed_on = counts.since(self._passed_on), counts.copy()
        collectors = _collectors()
        for field in _COUNTERS:
            if amount := getattr(new, field):
                collectors[field].labels(*self._labels).inc(amount)
        for field in _BY_PLACE:
            for place, amount in getattr(new, field).items():
                collectors[field].labels(*self._labels, str(place)).inc(amount)
        for field in _GAUGES:
            gauge = collectors[field].labels(*self._labels)
            assert isinstance(gauge, Gauge)
            gauge.set(getattr(counts, field))
        if now - self._logged_at >= envs.VLLM_LOG_STATS_INTERVAL:
            recent = counts.since(self._logged)
            self._logged, self._logged_at = counts.copy(), now
            if recent.num_request_steps:
                logger.info("Tree metrics: %s", log_line(recent))

    def _register(self) -> None:
        for field, collector in _collectors().items():
            with contextlib.suppress(ValueError):  # an engine before this one has registered it
                REGISTRY.register(collector)
            if field not in _BY_PLACE:
                collector.labels(*self._labels)


def log_line(counts: TreeCounts) -> str:
    """The counters in one line of text."""
    return (
        f"E[L]: {counts.emitted_per_step:.2f}, drafted: {counts.num_drafted}, verified: {counts.num_verified}, "
        f"wasted: {counts.num_wasted} nodes, "
        f"acceptance by depth: {_rates(counts.tried_by_depth, counts.accepted_by_depth)}, "
        f"by sibling rank: {_rates(counts.tried_by_rank, counts.accepted_by_rank)}, "
        f"sibling rescue rate: {counts.rescue_rate:.3f}, compaction: {counts.num_moved_bytes} bytes, "
        f"budget: {counts.last_budget} nodes, steps without a tree: {counts.num_bare} of {counts.num_request_steps}"
    )


def _rates(tried: CounterDict[int], accepted: CounterDict[int]) -> str:
    return ", ".join(f"{accepted[place] / tried[place]:.3f}" for place in sorted(tried)) or "none"
