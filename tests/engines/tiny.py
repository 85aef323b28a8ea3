"""Tiny random models of the supported families, float64, made in the test."""

from __future__ import annotations

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
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 97
WINDOW = 8
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # large enough that outputs vary
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_MIXED = ["sliding_attention", "sliding_attention", "full_attention"]

MAKERS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_GROUPED, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_GROUPED, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_GROUPED, head_dim=16)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **_GROUPED,
            head_dim=16,
            sliding_window=WINDOW,
            layer_types=_MIXED,
            query_pre_attn_scalar=16,
            tie_word_embeddings=False,  # tied, a random Gemma only repeats its last token
        )
    ),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZES, rotary_pct=0.5)),
}
FUSED = ("llama", "mistral", "qwen2", "qwen3", "gemma3")


def make_tiny(name: str, seed: int = 0) -> Any:
    """A random model in eval mode."""
    torch.manual_seed(seed)
    model = MAKERS[name]().double().eval()
    model.generation_config.pad_token_id = 0
    return model


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """transformers' own greedy output."""
    output = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
    return output[0, len(prompt) :].tolist()
