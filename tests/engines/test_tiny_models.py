"""Tiny random models, float64: not one token differs, whatever is drafted, in every implementation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.engines.tiny import FUSED, MAKERS, VOCAB, greedy
from tests.faults import FAULTS
from treedecode.drafters import DRAFTERS, make_drafter
from treedecode.engines.build import build_target
from treedecode.engines.loop import Decoder
from treedecode.engines.request import Request
from treedecode.engines.sampling import SamplingParams
from treedecode.engines.target import Target, UnsupportedModelError
from treedecode.testing.drafters import AdversarialDrafter, RandomDrafter

NEW_TOKENS = 200
PROMPTS = {"shorter than the window": [1, 5, 9, 5], "longer than the window": [1, *range(20, 50), 21, 22, 23]}


@functools.cache
def target_of(name: str, implementation: str) -> Target:
    from tests.engines.tiny import make_tiny

    return build_target(make_tiny(name), consume=False, implementation=implementation)  # type: ignore[arg-type]


@functools.cache
def reference(name: str, prompt: str) -> list[int]:
    from tests.engines.tiny import make_tiny

    return greedy(make_tiny(name), PROMPTS[prompt], NEW_TOKENS)


def decode(
    target: Target,
    prompt: list[int],
    drafter: Any,
    budget: int = 12,
    count: int = NEW_TOKENS,
    **sampling: Any,
) -> list[int]:
    decoder = Decoder(target, Request(tuple(prompt), count, budget, SamplingParams(**sampling)), drafter)
    return [token for emission in decoder.run() for token in emission.token_ids]


def drafters(truth: list[int]) -> dict[str, Any]:
    known = {name: make_drafter(name) for name in DRAFTERS}
    return known | {"random": RandomDrafter(VOCAB), "adversarial": AdversarialDrafter(truth, VOCAB)}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, "fused") for name in FUSED] + [(name, "transformers") for name in MAKERS],
)
def test_greedy_equals_transformers(name: str, implementation: str, prompt: str) -> None:
    expected = reference(name, prompt)
    assert len(set(expected)) > 3, "a constant output would test little"
    target = target_of(name, implementation)
    assert target.implementation == implementation
    assert decode(target, PROMPTS[prompt], None, budget=0) == expected
    for kind, drafter in drafters(PROMPTS[prompt] + expected).items():
        assert decode(target, PROMPTS[prompt], drafter) == expected, kind


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_break_identity(fault: str) -> None:
    prompt = "longer than the window"
    expected = reference("gemma3", prompt)
    drafter = AdversarialDrafter(PROMPTS[prompt] + expected, VOCAB)
    with FAULTS[fault]():
        assert decode(target_of("gemma3", "fused"), PROMPTS[prompt], drafter, budget=16) != expected


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 20}, {"top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2}]
)
def test_same_seed_same_tokens_at_every_budget(options: dict[str, Any]) -> None:
    prompt = PROMPTS["longer than the window"]
    for name in ("llama", "gemma3"):
        target = target_of(name, "fused")
        outputs = []
        for budget in (0, 1, 5, 16):
            for drafter in drafters(prompt).values() if budget else [None]:
                outputs.append(
                    decode(target, prompt, drafter, budget, 60, temperature=0.9, seed=3, **options)
                )
        assert all(output == outputs[0] for output in outputs)
        assert decode(target, prompt, None, 0, 60, temperature=0.9, seed=4, **options) != outputs[0]


def test_accepted_length_never_falls_with_more_nodes() -> None:
    """CASES 3: the same drafts in a larger tree."""
    prompt = PROMPTS["longer than the window"]
    expected = reference("llama", "longer than the window")
    steps = []
    for budget in (1, 4, 12):
        decoder = Decoder(
            target_of("llama", "fused"),
            Request(tuple(prompt), NEW_TOKENS, budget),
            make_drafter("merged"),
        )
        assert [t for e in decoder.run() for t in e.token_ids] == expected
        steps.append(decoder.stats.build(NEW_TOKENS).num_steps)
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            lambda: MambaForCausalLM(MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2)),
            "mamba",
        ),
        (
            lambda: BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4)),
            "bloom",
        ),
        (
            lambda: T5ForConditionalGeneration(
                T5Config(vocab_size=VOCAB, d_model=16, d_ff=16, num_layers=1, num_heads=2)
            ),
            "encoder-decoder",
        ),
    ],
)
def test_refused_by_name(model: Callable[[], Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        build_target(model().eval(), consume=False)


def test_fused_is_refused_where_there_is_none() -> None:
    with pytest.raises(UnsupportedModelError, match="gpt_neox"):
        target_of("gpt_neox", "fused")


@torch.no_grad()
def test_packed_float32_target_agrees(tiny: Callable[[str], Any]) -> None:
    for name in FUSED:
        model = tiny(name).float()
        expected = greedy(model, PROMPTS["shorter than the window"], 40)
        target = build_target(model, consume=True)
        assert target.linear_kind == "onednn-prepacked"
        assert (
            decode(target, PROMPTS["shorter than the window"], make_drafter("merged"), count=40) == expected
        )
