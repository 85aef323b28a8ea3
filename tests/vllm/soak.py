"""``python -m tests.vllm.soak FOLDER FILE``: a thousand streams on a tiny target, many aborted, with few blocks."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from tests.vllm.cases import ENVIRONMENT
from tests.vllm.checkpoints import VOCAB, save_llama
from tests.vllm.conftest import runner_of

NUM_REQUESTS, NUM_CASES, NUM_LIVE, ABORTED = 1000, 40, 16, 0.15
BUDGET = 8
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 192,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "block_size": 32,
    # fewer than eight long requests need: some are preempted
    "num_gpu_blocks_override": 16,
    "kv_cache_memory_bytes": 1 << 24,
    "seed": 0,
}
# Stock vLLM 0.32 ends its engine on a CPU where a seeded request's prompt is cut.
ROOMY = {"max_num_batched_tokens": 2048, "num_gpu_blocks_override": 64}
Case = tuple[list[int], dict[str, Any]]


def cases() -> list[Case]:
    """Prompts with their parameters; greedy and seeded, so that every run of a case has the same tokens."""
    source = random.Random(0)
    made = []
    for index in range(NUM_CASES):
        prompt = [source.randrange(2, VOCAB) for _ in range(source.randrange(1, 110))]
        params = {"max_tokens": source.randrange(1, 70), "ignore_eos": True, "detokenize": False}
        sampled = {"temperature": 0.8, "seed": index} if index % 4 == 3 else {"temperature": 0}
        made.append((prompt, params | sampled))
    return made


def plain_answers(model: str) -> list[list[int]]:
    """What stock vLLM says to every case."""
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(model, **ENGINE | ROOMY)
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in cases()]
    outputs = llm.generate(prompts, [SamplingParams(**params) for _, params in cases()], use_tqdm=False)
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    return answers


def resident_kib() -> int:
    """Memory of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


class Soak:
    """Streams on an engine with trees, ``NUM_LIVE`` at once.

    Attributes:
        streams: tokens that arrived, by request number.
        finished: numbers of requests that ended by themselves.
        aborted: numbers of requests that were aborted.
        resident: memory after every hundred ended requests, in KiB.
    """

    def __init__(self, llm: Any) -> None:
        self.engine = llm.llm_engine
        self.cases, self.random = cases(), random.Random(1)
        self.streams: list[list[int]] = []
        self.finished: list[int] = []
        self.aborted: list[int] = []
        self.resident: list[int] = []
        self._live: set[int] = set()

    def _add(self) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        number = len(self.streams)
        prompt, params = self.cases[number % NUM_CASES]
        sampling = SamplingParams(**params, output_kind=RequestOutputKind.DELTA)
        self.engine.add_request(str(number), TokensPrompt(prompt_token_ids=prompt), sampling)
        self.streams.append([])
        self._live.add(number)

    def _end(self, number: int, among: list[int]) -> None:
        among.append(number)
        self._live.remove(number)
        if (len(self.finished) + len(self.aborted)) % 100 == 0:
            self.resident.append(resident_kib())

    def run(self) -> None:
        """Until every request has ended."""
        # a request lives for some ten steps
        chance = ABORTED / 10
        while self._live or len(self.streams) < NUM_REQUESTS:
            while len(self._live) < NUM_LIVE and len(self.streams) < NUM_REQUESTS:
                self._add()
            for output in self.engine.step():
                number = int(output.request_id)
                self.streams[number] += output.outputs[0].token_ids
                if output.finished:
                    self._end(number, self.finished)
            for number in sorted(self._live):
                if self.random.random() < chance:
                    self.engine.abort_request([str(number)])
                    self._end(number, self.aborted)


def main(folder: str, file: str) -> None:
    os.environ.update(ENVIRONMENT)
    from vllm import LLM

    from treedecode.vllm import engine_args

    model = save_llama(Path(folder) / "target")
    expected = plain_answers(model)
    llm = LLM(model, **ENGINE, **engine_args(BUDGET, cost="off"), disable_log_stats=False)
    runner, soak = runner_of(llm), Soak(llm)
    scheduler = soak.engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    soak.run()
    # the worker hears of the last ended requests in the step after
    soak.engine.step()
    proposer = runner.drafter
    kept = {
        "scheduler": len(scheduler.requests),
        "runner": len(runner.requests),
        "batch": runner.input_batch.num_reqs,
        "drafters": len(proposer._states),
        "rows": len(proposer._early_rows),
        "trees": len(proposer.proposed),
        "texts": len(runner._ends._texts),
        "ended": len(runner._ends._ended),
    }
    [preempted] = [metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions"]
    result = {
        "expected": expected,
        "streams": soak.streams,
        "finished": soak.finished,
        "aborted": soak.aborted,
        "resident_kib": soak.resident,
        "kept": kept,
        "leaked_blocks": free - pool.get_num_free_blocks(),
        "num_preempted": preempted,
        "num_accepted": runner.counts.num_accepted,
    }
    Path(file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
