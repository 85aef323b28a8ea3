"""``python -m tests.vllm.heads FOLDER FILE METHOD...``: tiny targets plain, with stock speculation, and with trees.

Each drafter is watched from the scheduler's side: which tokens were scheduled as its drafts after how many others.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from tests.vllm.cases import ENVIRONMENT
from tests.vllm.checkpoints import VOCAB, save_eagle, save_eagle3, save_llama, save_medusa, save_mimo
from tests.vllm.conftest import runner_of
from tests.vllm.running import Answer, to_plain

DEPTH, WIDTH = 3, 4
METHODS = ("eagle", "eagle3", "mtp", "medusa", "draft_model")
NUM_ALIKE = 2
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 8,
    # smaller than the longest prompts: chunked prefill beside decoding
    "max_num_batched_tokens": 96,
    "kv_cache_memory_bytes": 1 << 26,
    "seed": 0,
}


def make(method: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """A target, and the speculative config of its drafter without the number of tokens."""
    if method == "mtp":
        target = save_mimo(folder / "target")
        return target, {"method": "mtp"}
    target = save_llama(folder / "target")
    head = folder / "head"
    if method == "draft_model":
        return target, {"method": method, "model": target}
    if method == "medusa":
        return target, {"method": method, "model": save_medusa(head, DEPTH)}
    return target, {"method": method, "model": {"eagle": save_eagle, "eagle3": save_eagle3}[method](head)}


def requests() -> list[list[tuple[list[int], dict[str, Any]]]]:
    """Groups of prompts and sampling parameters.

    Only ``NUM_ALIKE`` groups get the same spines from stock speculation: in the third, a request runs into the model's
    limit; the last mixes greedy and sampled requests, which stock speculation samples wrongly on a CPU.
    """
    source = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [source.randrange(2, VOCAB) for _ in range(length)]

    greedy = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    sampled = {**greedy, "temperature": 0.8, "seed": 5}
    return [
        [(prompt(length), greedy) for length in (3, 20, 100)],
        # alone: where a prompt is cut depends on the other requests' drafts, and vLLM's drafters on where it is cut
        [(prompt(130), greedy)],
        [(prompt(225), {**greedy, "max_tokens": 60}), (prompt(12), greedy)],
        [
            (prompt(17), {**greedy, "frequency_penalty": 0.7, "logprobs": 2}),
            (prompt(9), sampled),
            (prompt(30), greedy),
        ],
    ]


class Watch:
    """The spines that an engine's drafter proposed, by group, request and number of tokens before them.

    Attributes:
        spines: drafted tokens by ``"group/request/tokens before the root"``.
        group: name of the requests that run.
        first_id: id of the group's first request.
    """

    def __init__(self, runner: Any) -> None:
        self.spines: dict[str, list[int]] = {}
        self.group, self.first_id = 0, 0
        execute_model = runner.execute_model

        def watched(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            cached = scheduler_output.scheduled_cached_reqs
            computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            for request_id, tokens in scheduler_output.scheduled_spec_decode_tokens.items():
                tree = getattr(runner.drafter, "proposed", {}).get(request_id)
                ranks = [0] * len(tokens) if tree is None else tree.shape.rank_tuple[1 : len(tokens) + 1]
                key = f"{self.group}/{int(request_id.split('-')[0]) - self.first_id}/{computed[request_id]}"
                self.spines[key] = [token for token, rank in zip(tokens, ranks, strict=True) if not rank]
            return execute_model(scheduler_output, *args, **kwargs)

        runner.execute_model = watched


def run(model: str, **arguments: Any) -> dict[str, Any]:
    """Answers, spines by place, and the counts of an engine with trees."""
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(model, **ENGINE, **arguments)
    watch, answers = Watch(runner_of(llm)), []
    for group, cases in enumerate(requests()):
        watch.group, watch.first_id = group, len(answers)
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in cases]
        params = [SamplingParams(detokenize=False, **given) for _, given in cases]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        answers += to_plain([[Answer.of(output, output.outputs[0])] for output in outputs])
    [counts] = llm.collective_rpc("tree_counts") if "worker_cls" in arguments else [None]
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    return {"answers": answers, "spines": watch.spines, "counts": counts}


def three_runs(method: str, folder: Path) -> dict[str, Any]:
    """What ``run`` says of the target alone, with stock speculation, and with trees."""
    from treedecode.vllm import engine_args

    target, drafter = make(method, folder)
    chain = {**drafter, "num_speculative_tokens": DEPTH}
    nodes = {**drafter, "num_speculative_tokens": DEPTH * WIDTH}
    return {
        "plain": run(target),
        "chain": run(target, speculative_config=chain, async_scheduling=False),
        "trees": run(target, **engine_args(width=WIDTH, speculative_config=nodes)),
    }


def main(folder: str, file: str, methods: list[str]) -> None:
    os.environ.update(ENVIRONMENT)
    result = {method: three_runs(method, Path(folder) / method) for method in methods}
    Path(file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
