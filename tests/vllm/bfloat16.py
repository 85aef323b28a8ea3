"""``python -m tests.vllm.bfloat16 MODEL FILE``: outputs in bfloat16, and how far each token is from the model's choice.

Every output is put through the engine again as a prompt: prompts are computed by vLLM's own attention, whatever wrote
the tokens.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.cases import ENGINE, ENVIRONMENT, GROUPS
from tests.vllm.drafters import drafting
from tests.vllm.test_faults import no_compaction

Truth = list[tuple[list[int], list[int]]]


def outputs(llm: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What the engine says to the prompts, greedily."""
    from vllm import SamplingParams, TokensPrompt

    params = SamplingParams(temperature=0, max_tokens=32)
    given = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
    return [list(each.outputs[0].token_ids) for each in llm.generate(given, params, use_tqdm=False)]


def gaps(llm: Any, truth: Truth) -> list[list[float]]:
    """How much more probable, in nats, the model's choice is than each output token; 0 where they are the same."""
    from vllm import SamplingParams, TokensPrompt

    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    given = [TokensPrompt(prompt_token_ids=prompt + output) for prompt, output in truth]
    found = []
    for (prompt, output), result in zip(truth, llm.generate(given, params, use_tqdm=False), strict=True):
        rows = result.prompt_logprobs[len(prompt) :]
        best = [max(entry.logprob for entry in row.values()) for row in rows]
        found.append([top - row[token].logprob for top, row, token in zip(best, rows, output, strict=True)])
    return found


def main(model: str, file: str) -> None:
    os.environ.update(ENVIRONMENT)
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    from treedecode.vllm import engine_args

    engine = ENGINE | {"dtype": "bfloat16"}
    llm = LLM(model, **engine)
    prompts = [case.token_ids(llm.get_tokenizer()) for case in GROUPS["kinds"]]
    said = {"stock": outputs(llm, prompts)}
    truth = list(zip(prompts, said["stock"], strict=True))
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    llm = LLM(model, **engine, **engine_args(24, drafter="tests.vllm.drafters:make", max_depth=8, cost="off"))
    with drafting("hidden", truth):
        said["trees"] = outputs(llm, prompts)
        [counts] = llm.collective_rpc("tree_counts")
        llm.reset_prefix_cache()
        with pytest.MonkeyPatch.context() as patch:
            no_compaction(patch)
            said["broken"] = outputs(llm, prompts)
    far = {name: gaps(llm, list(zip(prompts, each, strict=True))) for name, each in said.items()}
    Path(file).write_text(json.dumps([said, far, counts]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
