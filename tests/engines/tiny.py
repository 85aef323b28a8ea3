"""Tiny random models of the supported families, float64, made in the test, and ways to run them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from treedecode.drafters import DRAFTERS, make_drafter
from treedecode.drafters.base import DraftContext
from treedecode.engines.build import build_target
from treedecode.engines.loop import Decoder
from treedecode.engines.params import SamplingParams
from treedecode.engines.request import Request
from treedecode.engines.state import StepObserver
from treedecode.engines.target import Target
from treedecode.testing.drafters import AdversarialDrafter, RandomDrafter

VOCAB = 97
WINDOW = 8
NEW_TOKENS = 200
SHORT, LONG = "shorter than the window", "longer than the window"
PROMPTS = {SHORT: [1, 5, 9, 5], LONG: [1, *range(20, 50), 21, 22, 23]}
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # large enough that outputs vary
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = _SIZES | {"num_key_value_heads": 2}
_MIXED = ["sliding_attention", "full_attention"]

MAKERS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=16)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **GROUPED,
            head_dim=16,
            sliding_window=WINDOW,
            layer_types=_MIXED,
            query_pre_attn_scalar=16,
            tie_word_embeddings=False,  # tied, a random Gemma only repeats its last token
        )
    ),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZES, rotary_pct=0.5)),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**GROUPED)),
}
FUSED = ("llama", "mistral", "qwen2", "qwen3", "gemma3")


@functools.cache
def tiny(name: str) -> Any:
    """The random model of a family, in eval mode, made once; do not change it."""
    return make_tiny(name)


def make_tiny(name: str, seed: int = 1) -> Any:
    """A random model of one's own."""
    torch.manual_seed(seed)
    model = MAKERS[name]().double().eval()
    model.generation_config.pad_token_id = 0
    return model


@functools.cache
def target_of(name: str, implementation: str) -> Target:
    """What runs a tiny model, made once."""
    return build_target(tiny(name), consume=False, implementation=implementation)  # type: ignore[arg-type]


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """transformers' own greedy output."""
    output = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
    return output[0, len(prompt) :].tolist()


@functools.cache
def reference(name: str, prompt: str) -> list[int]:
    """transformers' own greedy output for a prompt of ``PROMPTS``."""
    return greedy(tiny(name), PROMPTS[prompt], NEW_TOKENS)


@torch.no_grad()
def plain_logprobs(model: Any, prompt: list[int], output: list[int]) -> torch.Tensor:
    """Log probabilities that one plain forward pass gives to every token of an output."""
    logits = model(torch.tensor([prompt + output[:-1]]), logits_to_keep=len(output)).logits[0]
    return logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]


def decode(
    target: Target,
    prompt: list[int],
    drafter: Any,
    budget: int = 12,
    count: int = NEW_TOKENS,
    observer: StepObserver | None = None,
    processors: tuple[Any, ...] = (),
    **sampling: Any,
) -> list[int]:
    """Tokens that the engine gives."""
    request = Request(tuple(prompt), count, budget, SamplingParams(**sampling), processors=processors)
    decoder = Decoder(target, request, drafter, observer=observer)
    return [token for emission in decoder.run() for token in emission.token_ids]


class Fixed:
    """Proposes what it is told to."""

    name = "fixed"

    def __init__(self, make: Callable[[DraftContext], Any]) -> None:
        self._make = make

    def begin(self, prompt_ids: list[int]) -> None: ...

    def propose(self, context: DraftContext) -> Any:
        return self._make(context)


def drafters(truth: list[int]) -> dict[str, Any]:
    """One of every kind."""
    known = {name: make_drafter(name) for name in DRAFTERS}
    return known | {"random": RandomDrafter(VOCAB), "adversarial": AdversarialDrafter(truth, VOCAB)}
