"""``python -m tests.vllm.parallel MODEL FILE``: answers and counts of two ranks, each in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.vllm.cases import ENGINE, ENVIRONMENT, GROUPS
from tests.vllm.running import run_cases, to_plain

GROUPS_RUN = ("kinds", "seeded")


def main(model: str, file: str) -> None:
    os.environ.update(ENVIRONMENT)
    # one core for each rank: vLLM's own choice wants a memory node for each
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    from vllm import LLM

    from treedecode.vllm import engine_args

    trees = engine_args(budget=12, cost="off")
    llm = LLM(model, tensor_parallel_size=2, distributed_executor_backend="mp", **ENGINE, **trees)
    answers = {name: to_plain(run_cases(llm, GROUPS[name])) for name in GROUPS_RUN}
    Path(file).write_text(json.dumps([answers, llm.collective_rpc("tree_counts")]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
