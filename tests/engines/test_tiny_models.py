"""Tiny random models, float64: not one token differs, whatever is drafted, in every implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engines.tiny import (
    FUSED,
    LONG,
    MAKERS,
    NEW_TOKENS,
    PROMPTS,
    SHORT,
    VOCAB,
    decode,
    drafters,
    greedy,
    make_tiny,
    plain_logprobs,
    reference,
    target_of,
    tiny,
)
from tests.faults import FAULTS
from treedecode.drafters import make_drafter
from treedecode.engines import state
from treedecode.engines.build import build_target
from treedecode.engines.loop import Decoder
from treedecode.engines.request import Request
from treedecode.testing.drafters import AdversarialDrafter

IMPLEMENTATIONS = [(name, "fused") for name in FUSED] + [(name, "transformers") for name in MAKERS]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("name", "implementation"), IMPLEMENTATIONS)
def test_greedy_equals_transformers(name: str, implementation: str, prompt: str) -> None:
    expected = reference(name, prompt)
    assert len(set(expected[-50:])) >= 5, "an output that ends in a constant would test little"
    target = target_of(name, implementation)
    assert target.implementation == implementation
    assert decode(target, PROMPTS[prompt], None, budget=0) == expected
    for kind, drafter in drafters(PROMPTS[prompt] + expected).items():
        assert decode(target, PROMPTS[prompt], drafter) == expected, kind


class Logprobs:
    """An observer that keeps the log probability of every token after the first."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, tree: Any, verified: Any, acceptance: Any, prefix_len: int, step_ms: Any) -> None:
        tops = verified.top_logits[:, 0] - verified.log_norm
        self.values += [float(tops[node]) for node in acceptance.path]


def worst_logprob(implementation: str, output: list[int], seen: Logprobs) -> float:
    """Largest difference from a plain forward pass over the tokens that came out."""
    expected = plain_logprobs(tiny("gemma3"), PROMPTS[LONG], output)[1:]
    return (torch.tensor(seen.values) - expected).abs().max().item()


@pytest.mark.parametrize("implementation", ["fused", "transformers"])
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_planted_faults_break_identity(fault: str | None, implementation: str) -> None:
    """Tokens differ, and so do logprobs, under every fault; without one neither does."""
    expected = reference("gemma3", LONG)
    target = target_of("gemma3", implementation)
    drafter = AdversarialDrafter(PROMPTS[LONG] + expected, VOCAB)
    seen = Logprobs()
    if fault is None:
        output = decode(target, PROMPTS[LONG], drafter, budget=16, observer=seen)
        assert output == expected
        assert worst_logprob(implementation, output, seen) < 1e-5  # observers see float32
        return
    with FAULTS[fault]():
        output = decode(target, PROMPTS[LONG], drafter, budget=16, observer=seen)
    assert output != expected
    assert worst_logprob(implementation, output, seen) > 1e-2


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_prompts_of_several_chunks(name: str, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks shorter and longer than the window, and a last one of a single token."""
    target, expected = target_of(name, implementation), reference(name, LONG)[:30]
    for size in (3, 11, len(PROMPTS[LONG]) - 1):
        monkeypatch.setattr(state, "PREFILL_CHUNK", size)
        assert decode(target, PROMPTS[LONG], make_drafter("merged"), count=30) == expected


def test_long_and_short_requests_in_both_orders() -> None:
    """CASES 10: what one request leaves in the target (rotary tables) must not reach the next."""
    for first, second in ((SHORT, LONG), (LONG, SHORT)):
        target = build_target(tiny("gemma3"), consume=False)
        for prompt in (first, second):
            output = decode(target, PROMPTS[prompt], make_drafter("merged"), count=60)
            assert output == reference("gemma3", prompt)[:60]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {}),
        ("qwen2", {"top_k": 20}),
        ("gemma3", {"top_k": 60, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2}),
    ],
)
def test_same_seed_same_tokens_at_every_budget(name: str, options: dict[str, Any]) -> None:
    prompt, target = PROMPTS[LONG], target_of(name, "fused")
    options = options | {"count": 50, "temperature": 0.9}
    expected = decode(target, prompt, None, 0, seed=3, **options)
    assert decode(target, prompt, None, 0, seed=4, **options) != expected
    for budget in (1, 5, 16):
        for kind, drafter in drafters(prompt + expected).items():
            assert decode(target, prompt, drafter, budget, seed=3, **options) == expected, (kind, budget)


def test_accepted_length_never_falls_with_more_nodes() -> None:
    """CASES 3: the same drafts in a larger tree."""
    steps = []
    for budget in (1, 4, 12):
        request = Request(tuple(PROMPTS[LONG]), NEW_TOKENS, budget)
        decoder = Decoder(target_of("llama", "fused"), request, make_drafter("merged"))
        assert [t for e in decoder.run() for t in e.token_ids] == reference("llama", LONG)
        steps.append(decoder.stats.build(NEW_TOKENS).num_steps)
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("name", FUSED)
@torch.no_grad()
def test_packed_float32_agrees(name: str) -> None:
    model = make_tiny(name).float()
    expected = greedy(model, PROMPTS[SHORT], 40)
    target = build_target(model, consume=True)
    assert target.implementation == "fused"
    assert target.linear_kind != "torch"
    assert decode(target, PROMPTS[SHORT], make_drafter("merged"), count=40) == expected


@pytest.mark.parametrize("implementation", ["fused", "transformers"])
@torch.no_grad()
def test_bfloat16_choices_are_near_the_best(implementation: Any) -> None:
    """Rounding may choose between near ties: each token is within it of the plain model's best."""
    model = make_tiny("llama").bfloat16()
    target = build_target(model, consume=False, implementation=implementation)
    output = decode(target, PROMPTS[LONG], make_drafter("merged"), count=60)
    logits = model(torch.tensor([PROMPTS[LONG] + output[:-1]]), logits_to_keep=60).logits[0].float()
    gap = logits.amax(-1) - logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    assert (gap / logits.abs().amax(-1)).max() < 0.05


def test_the_models_are_not_touched() -> None:
    """Sharing weights with the user's model must leave it as it was."""
    model = make_tiny("gemma3")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    decode(build_target(model, consume=False), PROMPTS[LONG], make_drafter("merged"), count=20)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
