"""``python -m tests.vllm.heads FOLDER FILE``: tiny targets plain, with stock speculation, and with trees of all kinds.

Each drafter is watched from the scheduler's side: which tokens were scheduled as its drafts after how many others.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.vllm.cases import ENVIRONMENT
from tests.vllm.checkpoints import VOCAB, save_eagle, save_eagle3, save_llama, save_medusa, save_mimo
from tests.vllm.conftest import runner_of
from tests.vllm.running import Answer, to_plain
from treedecode.cost import CostCurve
from treedecode.shape import TreeShape

DEPTH, WIDTH = 3, 4
METHODS = ("eagle", "eagle3", "mtp", "medusa", "draft_model")
BRANCHES, BRANCH_NODES = 3, 16
NUM_ALIKE = 2
# with sizes by cost, or with steps in which nothing is drafted
SIZED = ("eagle", "medusa", "draft_model")
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


def make(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """By method a target, and the speculative config of its drafter without the number of tokens."""
    llama, mimo = save_llama(folder / "llama"), save_mimo(folder / "mimo")
    models = {
        "draft_model": llama,
        "eagle": save_eagle(folder / "eagle"),
        "eagle3": save_eagle3(folder / "eagle3"),
        "medusa": save_medusa(folder / "medusa", DEPTH),
    }
    made = {method: (llama, {"method": method, "model": model}) for method, model in models.items()}
    return made | {"mtp": (mimo, {"method": "mtp"})}


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
    """What an engine's drafter proposed, by group, request and number of tokens before it.

    Attributes:
        spines: first guesses, one after the other, by ``"group/request/tokens before the root"``.
        seconds: the second guess for the next token, and first guesses after it.
        continued: how many accepted tokens were guessed after an accepted runner-up.
        group: name of the requests that run.
        first_id: id of the group's first request.
    """

    def __init__(self, runner: Any) -> None:
        self.spines: dict[str, list[int]] = {}
        self.seconds: dict[str, list[int]] = {}
        self.continued = 0
        self.group, self.first_id = 0, 0
        self._runner = runner
        self._stock = {
            name: getattr(runner, name) for name in ("execute_model", "_end_walks") if hasattr(runner, name)
        }
        for name in self._stock:
            setattr(runner, name, getattr(self, name))

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        cached = scheduler_output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, tokens in scheduler_output.scheduled_spec_decode_tokens.items():
            tree = getattr(self._runner.drafter, "proposed", {}).get(request_id)
            shape = TreeShape.chain(len(tokens)) if tree is None else tree.shape.prefix(len(tokens))
            key = f"{self.group}/{int(request_id.split('-')[0]) - self.first_id}/{computed[request_id]}"
            guesses = dict(zip(shape.paths[1:], tokens, strict=True))
            for first, found in ((0, self.spines), (1, self.seconds)):
                paths = [(first, *[0] * depth) for depth in range(len(tokens))]
                found[key] = [guesses[path] for path in paths if path in guesses]
        return self._stock["execute_model"](scheduler_output, *args, **kwargs)

    def _end_walks(self, sampled_ids: list[int]) -> Any:
        walks = self._stock["_end_walks"](sampled_ids)
        for tree, walk in zip(self._runner._drafted, walks, strict=True):
            ranks = [tree.shape.rank_tuple[node] for node in walk.path[1:]]
            self.continued += sum(any(ranks[:place]) for place in range(1, len(ranks)))
        return walks


class Pauses:
    """A planner that drafts in every third step alone, and then all."""

    def __init__(self) -> None:
        self._num_steps = 0

    def depth(self, num_requests: int, shape: TreeShape, prefix_len: int) -> int:
        self._num_steps += 1
        return 0 if self._num_steps % 3 else shape.max_depth

    def cut(self, trees: Any, prefix_lens: Any, depth: int) -> Any:
        return {name: tree.prefix(DEPTH * WIDTH) for name, tree in trees.items()}

    def record(self, *step: Any) -> None:
        pass

    def skip(self) -> None:
        pass


def guess_second_first(drafter: Any) -> None:
    """Let a drafter of stock vLLM go on from its second guess for the next token."""
    propose, sample, first = drafter.propose, drafter._greedy_sample, [False]

    def proposing(*args: Any, **kwargs: Any) -> Any:
        first[0] = True
        return propose(*args, **kwargs)

    def sampling(hidden_states: Any) -> Any:
        if not first[0]:
            return sample(hidden_states)
        first[0] = False
        return drafter.model.compute_logits(hidden_states).topk(2).indices[:, 1]

    drafter.propose, drafter._greedy_sample = proposing, sampling


def answer(llm: Any, watch: Watch, groups: Sequence[Sequence[tuple[list[int], dict[str, Any]]]]) -> list[Any]:
    """Answers to groups of requests, group after group."""
    from vllm import SamplingParams, TokensPrompt

    answers = []
    for group, cases in enumerate(groups):
        watch.group = group
        prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt, _ in cases]
        params = [SamplingParams(detokenize=False, **given) for _, given in cases]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        watch.first_id += len(outputs)
        answers += to_plain([[Answer.of(output, output.outputs[0])] for output in outputs])
    return answers


def steep_file(folder: Path) -> str:
    """A cost curve by which no draft pays."""
    file = folder / "steep.json"
    file.write_text(CostCurve([1, 1024], [50.0, 51200.0]).to_json())
    return str(file)


def run(model: str, second: bool = False, pauses: bool = False, **arguments: Any) -> dict[str, Any]:
    """What was answered and drafted, and the counts of an engine with trees.

    Args:
        model: the target.
        second: whether to find out, too, what stock vLLM's drafter says after its second guesses.
        pauses: whether nothing is drafted in most steps.
        arguments: of the engine.
    """
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(model, **ENGINE, **arguments)
    runner = runner_of(llm)
    watch = Watch(runner)
    if pauses:
        runner.drafter.planner = Pauses()
    answers = answer(llm, watch, requests())
    [counts] = llm.collective_rpc("tree_counts") if "worker_cls" in arguments else [None]
    said = {"answers": answers, "spines": watch.spines, "seconds": watch.seconds, "counts": counts}
    if second:
        watch.spines = {}
        llm.reset_prefix_cache()
        guess_second_first(runner.drafter)
        answer(llm, watch, requests()[:NUM_ALIKE])
        said["seconds"] = watch.spines
    del llm, runner
    gc.collect()
    cleanup_dist_env_and_memory()
    return said | {"continued": watch.continued}


def main(folder: str, file: str) -> None:
    """What ``run`` says, by method: of the target alone, with stock speculation, with trees and with branches."""
    os.environ.update(ENVIRONMENT)
    from treedecode.vllm import engine_args

    made = make(Path(folder))
    plain = {target: run(target) for target in {target for target, _ in made.values()}}
    # what is loaded by now stays, and each engine collects garbage several times
    gc.freeze()
    result = {}
    for method, (target, drafter) in made.items():
        chain = {**drafter, "num_speculative_tokens": DEPTH}
        nodes = {**drafter, "num_speculative_tokens": DEPTH * WIDTH}
        result[method] = {
            "plain": plain[target],
            "chain": run(target, method != "medusa", speculative_config=chain, async_scheduling=False),
            "trees": run(target, **engine_args(width=WIDTH, cost="off", speculative_config=nodes)),
        }
        if method in SIZED:
            sizes = {
                cost: engine_args(width=WIDTH, cost=cost, speculative_config=nodes)
                for cost in ("off", "auto", steep_file(Path(folder)))
            }
            pausing, auto, steep = sizes.values()
            result[method] |= {
                "pausing": run(target, pauses=True, **pausing),
                "auto": run(target, **auto),
                "steep": run(target, **steep),
            }
        if method != "medusa":
            more = {**drafter, "num_speculative_tokens": BRANCH_NODES}
            for name, cost in (("branches", "off"), ("sized branches", "auto"))[: 1 + (method in SIZED)]:
                branches = engine_args(width=WIDTH, branches=BRANCHES, cost=cost, speculative_config=more)
                result[method][name] = run(target, **branches)
    Path(file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
