"""What a step of this engine costs by its number of rows: measured at start-up, on the runner itself."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from vllm import SamplingParams
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

from treedecode.cost import CostCurve
from treedecode.tree import DraftTree

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = 5.0
_MAX_REPEATS = 5
# Tokens before the root of every request, while costs are measured.
_CONTEXT = 32

T = TypeVar("T")


def agreed(value: T) -> T:
    """The first rank's ``value``, on all ranks of a tensor-parallel group: they must decide alike."""
    group: Any = get_tp_group()
    return value if group.world_size == 1 else group.broadcast_object(value, src=0)


def measure_steps(runner: Any) -> CostCurve:
    """Milliseconds of decoding steps: attention on trees, vocabulary head, sampling and candidates included.

    Made-up requests are run through ``execute_model`` and ``sample_tokens`` as the scheduler would, in as few trees as
    the budget allows, over blocks that no request owns yet. Takes some five seconds; large row counts are left out on
    a slow machine. The least of a few times counts, as other load on the machine only adds. What a step takes because
    it has a tree at all stays in the curve: it need not be convex.

    Args:
        runner: the model runner with its caches set up. Its counters are reset.
    """
    steps = MadeUpSteps(runner)
    began = time.perf_counter()

    def time_is_left(share: float) -> bool:
        return agreed(time.perf_counter() - began < share * _SECONDS)

    times: dict[int, list[float]] = {}
    try:
        for num_rows in _ROWS:
            if not steps.has_room(num_rows) or (len(times) > 1 and not time_is_left(0.5)):
                break
            # a first pass allocates and compiles
            steps.ms(num_rows)
            times[num_rows] = [steps.ms(num_rows)]
        while time_is_left(1.0) and len(times[1]) < _MAX_REPEATS:
            for num_rows in times:
                times[num_rows].append(steps.ms(num_rows))
    finally:
        steps.end()
    least = agreed([min(of_rows) for of_rows in times.values()])
    return CostCurve.fit(list(times), least)


class MadeUpSteps:
    """Runs steps that no user asked for, of requests whose cached tokens were never computed.

    Args:
        runner: the model runner with its caches set up.
        context: tokens before the root of every request.
        chains: drafts are chains and of the scheduler's making, which stock runners know, too.
    """

    def __init__(self, runner: Any, context: int = _CONTEXT, chains: bool = False) -> None:
        self._runner, self._context, self._chains = runner, context, chains
        self._running: set[str] = set()
        self._vocab_size = runner.model_config.get_vocab_size()
        self._tree_rows = 1 + runner.num_spec_tokens
        self._block_sizes = [
            group.kv_cache_spec.block_size for group in runner.kv_cache_config.kv_cache_groups
        ]

    def has_room(self, num_rows: int) -> bool:
        """Whether a step of so many rows fits into the engine's limits and its cache."""
        runner, sizes = self._runner, self._sizes(num_rows)
        # block 0 is vLLM's own
        num_blocks = 1 + sum(sum(self._num_blocks(size)) for size in sizes)
        return (
            num_rows <= runner.max_num_tokens
            and len(sizes) <= runner.max_num_reqs
            and self._context + max(sizes) < runner.max_model_len
            and num_blocks <= runner.kv_cache_config.num_blocks
        )

    def ms(self, num_rows: int) -> float:
        """Milliseconds of one step."""
        output = self._scheduled(num_rows)
        began = time.perf_counter()
        self._runner.execute_model(output)
        self._runner.sample_tokens(None)
        return 1e3 * (time.perf_counter() - began)

    def end(self) -> None:
        """Let the runner forget all of it."""
        output = SchedulerOutput.make_empty()
        output.finished_req_ids = self._running
        self._runner.execute_model(output)
        self._runner.reset_counts()

    def _sizes(self, num_rows: int) -> list[int]:
        whole, rest = divmod(num_rows, self._tree_rows)
        return [self._tree_rows] * whole + [rest] * (rest > 0)

    def _num_blocks(self, size: int) -> list[int]:
        return [-(-(self._context + size) // block_size) for block_size in self._block_sizes]

    def _scheduled(self, num_rows: int) -> SchedulerOutput:
        output = SchedulerOutput.make_empty()
        output.finished_req_ids, self._running = self._running, set()
        next_block = 1
        for number, size in enumerate(self._sizes(num_rows)):
            # names that were not used in the step before
            name = f"treedecode-{num_rows}-{number}-{time.perf_counter_ns()}"
            tree = self._tree(size)
            blocks = []
            for count in self._num_blocks(size):
                blocks.append(list(range(next_block, next_block + count)))
                next_block += count
            output.scheduled_new_reqs.append(
                NewRequestData(
                    req_id=name,
                    prompt_token_ids=[tree.token_tuple[0]] * (self._context + 1),
                    mm_features=[],
                    # one more token only: nothing is drafted, though a drafter of vLLM's runs its first pass
                    sampling_params=SamplingParams(temperature=0.0, max_tokens=1),
                    pooling_params=None,
                    block_ids=tuple(blocks),
                    num_computed_tokens=self._context,
                    lora_request=None,
                )
            )
            output.num_scheduled_tokens[name] = size
            if tree.num_drafted:
                output.scheduled_spec_decode_tokens[name] = list(tree.token_tuple[1:])
                if not self._chains:
                    self._runner.drafter.proposed[name] = tree
            self._running.add(name)
        output.total_num_scheduled_tokens = num_rows
        return output

    def _tree(self, num_nodes: int) -> DraftTree:
        """A spine with a second leaf at every depth, or a chain; tokens that are not likely to be right."""
        parents = [-1, *(max(0, (node - 1) // 2 * 2 - 1) for node in range(1, num_nodes))]
        if self._chains:
            parents = list(range(-1, num_nodes - 1))
        return DraftTree.trusted(parents, [(5 + 7919 * node) % self._vocab_size for node in range(num_nodes)])
