"""The requests that stock vLLM and the trees must answer alike: groups of requests that run together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.e2e.prompts import PROMPTS

# Two paragraphs more than a window, and not at a block's end.
LONG = PROMPTS["long"]
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 32,
    # smaller than the long prompts: chunked prefill beside decoding
    "max_num_batched_tokens": 384,
    "seed": 0,
    # else windowed layers keep no block beyond the prompt, and none that trees wrote could be read again
    "prefix_cache_retention_interval": None,
}
COLOURS = "(red|green|blue), (red|green|blue) and (small|large)"
# In this process, so that tests can break the code that runs.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True)
class Case:
    """One request: a prompt (text, cut to ``num_prompt`` tokens if given, or tokens) and SamplingParams' arguments."""

    prompt: str | list[int]
    params: dict[str, Any] = field(default_factory=dict)
    num_prompt: int | None = None
    grammar: dict[str, Any] | None = None

    def token_ids(self, tokenizer: Any) -> list[int]:
        ids = tokenizer.encode(self.prompt) if isinstance(self.prompt, str) else self.prompt
        return ids[: self.num_prompt]

    def sampling_params(self) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        grammar = {"structured_outputs": StructuredOutputsParams(**self.grammar)} if self.grammar else {}
        return SamplingParams(**{"temperature": 0, "max_tokens": 24, **self.params, **grammar})


def _kinds() -> list[Case]:
    names = ("story", "code", "repeat", "long")
    return [Case(PROMPTS[name], {"logprobs": 2, "max_tokens": 32}) for name in names]


def _features() -> list[Case]:
    story, listing, repeat = PROMPTS["story"], PROMPTS["list"], PROMPTS["repeat"]
    return [
        Case(story, {"frequency_penalty": 1.5, "logprobs": 1}),
        Case(listing, {"presence_penalty": 1.2}),
        Case(repeat, {"repetition_penalty": 1.4, "frequency_penalty": 0.3}),
        Case(repeat, {"bad_words": ["mat", " sat on"]}),
        Case(repeat, {"stop": ["on the"]}),
        Case(listing, {"stop_token_ids": [107], "min_tokens": 18}),
        Case(listing, {"stop_token_ids": [107]}),
        Case(story, {"allowed_token_ids": list(range(600, 9000)), "logprobs": 1}),
        Case(listing, {"max_tokens": 1}),
        Case(listing, {"max_tokens": 2}),
        Case(listing, {"ignore_eos": True, "max_tokens": 7}),
        Case("The colour is", {}, grammar={"regex": COLOURS}),
    ]


def _grammars() -> list[Case]:
    """Structured outputs beside requests without; all end within their tokens but the first."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    sums = 'root ::= term ("+" term)*\nterm ::= "x" | "y" | [1-9] [0-9]?'
    story, listing = PROMPTS["story"], PROMPTS["list"]
    return [
        Case(listing, {"max_tokens": 30}, grammar={"regex": "([a-z]{2,6} ){12,20}"}),
        Case("A person in JSON: ", {"max_tokens": 48, "logprobs": 2}, grammar={"json": person}),
        Case(
            "Is the sky blue? Answer:", {}, grammar={"choice": ["yes, it is", "yes, it was", "no, it is not"]}
        ),
        Case("A sum: 1+", {"max_tokens": 16}, grammar={"grammar": sums}),
        Case(story, {"logprobs": 1}),
        Case("The colour is", {"temperature": 0.9, "seed": 21}, grammar={"regex": COLOURS}),
        Case(
            "A person in JSON: ", {"temperature": 1.0, "seed": 22, "max_tokens": 48}, grammar={"json": person}
        ),
        Case(story, {"frequency_penalty": 1.2, "max_tokens": 20}, grammar={"regex": "[a-z ]{10,60}"}),
        Case(story, {"temperature": 0.8, "seed": 23}),
    ]


def _seeded() -> list[Case]:
    story, code, repeat = PROMPTS["story"], PROMPTS["code"], PROMPTS["repeat"]
    return [
        Case(story, {"temperature": 1.0, "seed": 11}),
        Case(code, {"temperature": 0.7, "top_p": 0.9, "seed": 12, "logprobs": 1}),
        Case(repeat, {"temperature": 0.8, "top_k": 20, "seed": 13, "n": 2}),
        Case(repeat, {"temperature": 0.9, "frequency_penalty": 0.8, "seed": 14}),
        Case(repeat, {"temperature": 0.3, "seed": 15, "min_tokens": 12, "stop_token_ids": [107]}),
        Case(repeat, {}),
    ]


def _many() -> list[Case]:
    """32 at once: prompts of all kinds and lengths, one of a single token, one that ends at the model's limit."""
    texts = list(PROMPTS.values())
    cases = []
    for index in range(30):
        params: dict[str, Any] = {"max_tokens": 6 + index % 11}
        if index % 5 == 1:
            params["frequency_penalty"] = 0.5
        if index % 7 == 2:
            params["logprobs"] = 1
        if index % 6 == 3:
            params |= {"temperature": 0.8, "seed": index}
        cases.append(Case(texts[index % len(texts)], params, num_prompt=16 + 5 * index))
    cases.append(Case(PROMPTS["story"], {"max_tokens": 20}, num_prompt=1))
    cases.append(Case(LONG + LONG, {"max_tokens": 100}, num_prompt=1009))
    return cases


GROUPS = {
    "kinds": _kinds(),
    "features": _features(),
    "seeded": _seeded(),
    "many": _many(),
    "grammars": _grammars(),
}

# A request, then its prompt and output as the prompt of another: long enough that the output fills a block of 128.
FIRST_TURN = Case(LONG, {"max_tokens": 90}, num_prompt=180)
SECOND_TURN = {"max_tokens": 16, "logprobs": 2}
