"""A step with a tree in vLLM against stock vLLM's step with a chain: ``python benchmarks/vllm_step.py MODEL``.

Two engines in processes of their own, stock and with trees, run made-up steps of one request in turn, after contexts of
64, 1,024 and 8,192 tokens: forward pass, sampling and walk, as the scheduler would ask for them; neither drafts. The
stock engine verifies chains of the same number of tokens. The time that a runner takes to note a new request is left
out, as a decoding step has none. Writes ratios by pair to ``benchmarks/results/vllm_step.json``; exits with 1 if a
median is above 1.08.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common import median_interval, write_result

CONTEXTS, ROWS, BAR = (64, 1024, 8192), (8, 16, 32), 1.08
CACHE_BYTES = 2 << 30
# before a step: threads of the other engine may still wait busily for work
PAUSE_S = 0.05


class NoDrafts:
    """A drafter of vLLM's kind that has none."""

    def __init__(self, vllm_config: object) -> None:
        del vllm_config

    def load_model(self, *args: object, **kwargs: object) -> None:
        """Nothing to load."""

    def propose(self, sampled_token_ids: list[list[int]], *args: object, **kwargs: object) -> list[list[int]]:
        """No drafts."""
        return [[] for _ in sampled_token_ids]


def serve(pipe: Any, model: str, dtype: str, trees: bool) -> None:
    """An engine of this process: answers (rows, context, chain) by milliseconds, until None."""
    cores = f"0-{(os.cpu_count() or 1) - 1}"
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_LOGGING_LEVEL": "WARNING"}
    from treedecode.vllm import engine_args
    from treedecode.vllm.fixes import name_of_the_cpu_build

    name_of_the_cpu_build()
    from vllm import LLM

    from treedecode.vllm.measure import MadeUpSteps

    budget = max(ROWS) - 1
    own = {"method": "custom_class", "model": "vllm_step.NoDrafts", "num_speculative_tokens": budget}
    llm = LLM(
        model,
        dtype=dtype,
        max_model_len=max(CONTEXTS) + 2 * max(ROWS),
        max_num_seqs=4,
        kv_cache_memory_bytes=CACHE_BYTES,
        **(engine_args(budget, cost="off") if trees else {"speculative_config": own}),
    )
    executor: Any = llm.llm_engine.model_executor
    runner = executor.driver_worker.worker.model_runner
    noted = timed_part(runner, "_update_states")
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        rows, context, chain = asked
        noted.clear()
        step_ms = MadeUpSteps(runner, context, chain).ms(rows)
        pipe.send(step_ms - 1e3 * sum(noted))


def timed_part(owner: Any, name: str) -> list[float]:
    """Seconds of every call of a method from now on."""
    method: Callable[..., Any] = getattr(owner, name)
    taken: list[float] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            taken.append(time.perf_counter() - began)

    setattr(owner, name, call)
    return taken


class Engine:
    """An engine in a process of its own."""

    def __init__(self, model: str, dtype: str, trees: bool) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, model, dtype, trees), daemon=True).start()
        self._pipe.recv()

    def ms(self, rows: int, context: int, chain: bool) -> float:
        """Milliseconds of one step."""
        time.sleep(PAUSE_S)
        self._pipe.send((rows, context, chain))
        return self._pipe.recv()

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    stock, ours = (Engine(arguments.model, arguments.dtype, trees) for trees in (False, True))
    cells, num_missed = [], 0
    for context in CONTEXTS:
        for rows in ROWS:
            times = []
            for pair in range(arguments.pairs + 2):
                if pair % 2:
                    tree_ms, own_ms = ours.ms(rows, context, False), ours.ms(rows, context, True)
                    chain_ms = stock.ms(rows, context, True)
                else:
                    chain_ms, own_ms = stock.ms(rows, context, True), ours.ms(rows, context, True)
                    tree_ms = ours.ms(rows, context, False)
                if pair >= 2:  # compiled and allocated by now
                    times.append((tree_ms, own_ms, chain_ms))
            cell = {
                "context": context,
                "rows": rows,
                "tree_over_stock_chain": median_interval([tree / chain for tree, _, chain in times]),
                "chain_over_stock_chain": median_interval([own / chain for _, own, chain in times]),
                "tree_ms": median_interval([tree for tree, _, _ in times]),
                "stock_chain_ms": median_interval([chain for _, _, chain in times]),
            }
            cells.append(cell)
            ratio = cell["tree_over_stock_chain"]
            num_missed += ratio["median"] > BAR
            print(
                f"context {context}, {rows} rows: tree / stock chain {ratio['median']:.3f} "
                f"[{ratio['low']:.3f}, {ratio['high']:.3f}], {cell['tree_ms']['median']:.1f} ms",
                flush=True,
            )
    for engine in (stock, ours):
        engine.close()
    setup = {"model": Path(arguments.model).name, "dtype": arguments.dtype, "pairs": arguments.pairs}
    write_result("vllm_step", {"bar": BAR, "setup": setup, "cells": cells})
    return int(num_missed > 0)


if __name__ == "__main__":
    sys.exit(main())
