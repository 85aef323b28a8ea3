"""Which models become targets, and which are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transformers as hf

from tests.engines.tiny import LONG, PROMPTS, VOCAB, decode, greedy, target_of, tiny
from treedecode.engines.build import build_target
from treedecode.engines.target import UnsupportedModelError
from treedecode.testing.drafters import AdversarialDrafter

SMALL = {"vocab_size": VOCAB, "num_hidden_layers": 2}
LLAMA_LIKE = SMALL | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "mamba": (lambda: hf.MambaForCausalLM(hf.MambaConfig(**SMALL, hidden_size=16)), "'mamba' has layers"),
    "recurrent gemma": (
        lambda: hf.RecurrentGemmaForCausalLM(
            hf.RecurrentGemmaConfig(
                vocab_size=VOCAB,
                num_hidden_layers=3,
                hidden_size=32,
                intermediate_size=48,
                num_attention_heads=2,
                lru_width=32,
                attention_window_size=8,
            )
        ),
        "'recurrent_gemma' has layers",
    ),
    "convolutions": (
        lambda: hf.Lfm2ForCausalLM(hf.Lfm2Config(**LLAMA_LIKE, layer_types=["conv", "full_attention"])),
        r"'lfm2' has layers that are not attention \(conv\)",
    ),
    "encoder-decoder": (
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=VOCAB, d_model=16, d_ff=16, num_layers=1, num_heads=2)
        ),
        "'t5' is an encoder-decoder",
    ),
    "alibi": (
        lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4)),
        "'bloom' does not take position_ids",
    ),
    "alibi with position ids": (
        lambda: hf.FalconForCausalLM(
            hf.FalconConfig(**SMALL, hidden_size=32, num_attention_heads=4, alibi=True)
        ),
        "'falcon' does not take",
    ),
    "alibi, mpt": (
        lambda: hf.MptForCausalLM(hf.MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4)),
        "'mpt' does not take position_ids",
    ),
    "window by slot": (
        lambda: hf.GPTNeoForCausalLM(
            hf.GPTNeoConfig(
                vocab_size=VOCAB,
                hidden_size=32,
                num_layers=2,
                attention_types=[[["global", "local"], 1]],
                num_heads=4,
                window_size=8,
            )
        ),
        "'gpt_neo' has local attention layers",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_by_name(kind: str) -> None:
    make, words = REFUSED[kind]
    with pytest.raises(UnsupportedModelError, match=words):
        build_target(make().eval(), consume=False)


OTHERS: dict[str, Callable[[], Any]] = {
    "key and value heads of two sizes": lambda: hf.DeepseekV3ForCausalLM(
        hf.DeepseekV3Config(
            **LLAMA_LIKE,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=12,
            first_k_dense_replace=2,
        )
    ),
    "learned positions": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCAB,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            initializer_range=0.3,
            bos_token_id=1,
            eos_token_id=None,
        )
    ),
    "windows in a pattern": lambda: hf.Olmo3ForCausalLM(
        hf.Olmo3Config(**(LLAMA_LIKE | {"num_hidden_layers": 4}), sliding_window=8)
    ),
    "soft caps": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(
            **LLAMA_LIKE,
            head_dim=8,
            sliding_window=8,
            final_logit_softcapping=5.0,
            tie_word_embeddings=False,
        )
    ),
    "scaled rotation": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**LLAMA_LIKE, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0})
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_of_model_are_exact(kind: str) -> None:
    hf.set_seed(0)
    model = OTHERS[kind]().double().eval()
    model.generation_config.pad_token_id = 0
    prompt = PROMPTS[LONG]
    expected = greedy(model, prompt, 60)
    drafter = AdversarialDrafter(prompt + expected, VOCAB)
    assert decode(build_target(model, consume=False), prompt, drafter, count=60) == expected


def test_longrope_ends_where_its_factors_change() -> None:
    config = hf.Phi3Config(
        **LLAMA_LIKE,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 64,
        },
    )
    assert build_target(hf.Phi3ForCausalLM(config).eval(), consume=False).max_positions == 64


def test_fused_is_refused_where_there_is_none() -> None:
    with pytest.raises(UnsupportedModelError, match=r"no fused implementation .* 'gpt_neox'"):
        target_of("gpt_neox", "fused")


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"implementation must be .*, got 'fast'"):
        build_target(tiny("llama"), consume=False, implementation="fast")  # type: ignore[arg-type]


def test_auto_takes_fused_where_it_agrees() -> None:
    assert build_target(tiny("llama"), consume=False).implementation == "fused"
    assert build_target(tiny("olmo2"), consume=False).implementation == "transformers"
