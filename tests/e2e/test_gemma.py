"""The real model: every drafter gives transformers' own greedy tokens, and the logprobs of a plain forward."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import treedecode as td
from tests.e2e.conftest import NEW_TOKENS, Reference
from tests.e2e.prompts import PROMPTS
from tests.faults import FAULTS
from treedecode.drafters.base import Drafter
from treedecode.testing.drafters import AdversarialDrafter, RandomDrafter

pytestmark = pytest.mark.real_model

NEAR_TIE = 1e-4  # logit gap below which float32 rounding may decide
LOGPROB_TOLERANCE = 1e-3
DRAFTERS = ("merged", "recycling", "suffix", "prompt-lookup", "adversarial", "random")


def make(name: str, reference: Reference, vocab_size: int) -> str | Drafter:
    if name == "adversarial":
        return AdversarialDrafter(reference.prompt_ids + reference.token_ids, vocab_size)
    return RandomDrafter(vocab_size) if name == "random" else name


def assert_same_tokens(got: list[int], reference: Reference) -> None:
    """Token identity; a first mismatch passes only as a near-tie of the plain model's own logits."""
    if got == reference.token_ids:
        return
    first = next(i for i, (a, b) in enumerate(zip(got, reference.token_ids, strict=False)) if a != b)
    row = reference.logits(got[: first + 1])[-1]
    gap = (row.max() - row[got[first]]).item()
    assert gap < NEAR_TIE, (
        f"token {first}: {got[first]} for {reference.token_ids[first]}, logit gap {gap:.1e}"
    )


def run(gemma: td.LoadedModel, reference: Reference, drafter: str | Drafter, **options: Any) -> td.Generation:
    options = {"max_new_tokens": NEW_TOKENS} | options
    return td.generate(gemma, reference.prompt_ids, drafter=drafter, **options)[0]


def run_with_logprobs(
    gemma: td.LoadedModel, reference: Reference, drafter: str | Drafter, count: int
) -> tuple[list[int], float]:
    """An output, and how far the logprobs of its tokens after the first are from a plain forward's."""
    logprobs: list[float] = []

    def observe(tree: Any, verified: Any, acceptance: Any, prefix_len: int, step_ms: Any) -> None:
        for node in acceptance.path:
            logprobs.append(verified.top_logits[node, 0] - verified.log_norm[node])

    options: dict[str, Any] = {"budget": 16, "max_new_tokens": count, "observer": observe}
    token_ids = run(gemma, reference, drafter, **options).token_ids
    expected = reference.logits(token_ids).log_softmax(-1)
    expected = expected.gather(1, torch.tensor(token_ids)[:, None])[1:, 0].numpy()
    return token_ids, float(np.abs(np.array(logprobs) - expected).max())


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_equals_transformers(
    gemma: td.LoadedModel, references: dict[str, Reference], name: str, prompt: str
) -> None:
    reference = references[prompt]
    budget = 12 if name in ("adversarial", "random") else "auto"
    drafter = make(name, reference, gemma.target.vocab_size)
    generation = run(gemma, reference, drafter, budget=budget)
    assert_same_tokens(generation.token_ids, reference)
    assert generation.stats.num_emitted == len(generation.token_ids)


@pytest.mark.parametrize("prompt", ["story", "json", "long"])
@pytest.mark.parametrize("name", ["merged", "adversarial"])
def test_logprobs_equal_a_plain_forward(
    gemma: td.LoadedModel, references: dict[str, Reference], name: str, prompt: str
) -> None:
    reference = references[prompt]
    drafter = make(name, reference, gemma.target.vocab_size)
    _, worst = run_with_logprobs(gemma, reference, drafter, 64)
    assert worst < LOGPROB_TOLERANCE


def test_long_prompt_is_beyond_the_window(gemma: td.LoadedModel, references: dict[str, Reference]) -> None:
    assert len(references["long"].prompt_ids) > gemma.config.sliding_window


def test_trees_save_forward_passes(gemma: td.LoadedModel, references: dict[str, Reference]) -> None:
    trees = run(gemma, references["json"], "merged")
    plain = run(gemma, references["json"], "merged", budget=0)
    assert trees.token_ids == plain.token_ids
    assert trees.stats.num_steps < 0.6 * plain.stats.num_steps


@pytest.mark.parametrize("prompt", ["story", "code"])
def test_sampling_gives_the_same_tokens_at_every_budget(
    gemma: td.LoadedModel, references: dict[str, Reference], prompt: str
) -> None:
    options = {
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 50,
        "repetition_penalty": 1.1,
        "seed": 7,
        "max_new_tokens": 48,
    }
    outputs = [
        run(gemma, references[prompt], "merged", budget=budget, **options).token_ids
        for budget in (0, 4, 16, "auto")
    ]
    assert outputs[1:] == outputs[:1] * 3
    other = run(gemma, references[prompt], "merged", budget=0, **(options | {"seed": 8})).token_ids
    assert other != outputs[0]


def test_cache_is_allocated_once(gemma: td.LoadedModel, references: dict[str, Reference]) -> None:
    stream = td.stream(gemma, references["json"].prompt_ids, max_new_tokens=24)
    next(stream)
    before = stream.decoder.cache.data_ptrs()
    for _ in stream:
        pass
    assert stream.decoder.cache.data_ptrs() == before


def test_resident_memory(gemma: td.LoadedModel) -> None:
    """At most 1.7 times the weights, pages of files included: packed layers, one head, one embedding table.

    As ``td.load`` does, without the tokenizer: a vocabulary of 262,144 takes 0.3 GB of its own.
    """
    code = f"""
import os, torch, transformers.models.gemma3.modeling_gemma3
from transformers import AutoModelForCausalLM
from treedecode.engines.build import build_target
from treedecode.engines.measure import measure_cost
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")
before = resident()
model = AutoModelForCausalLM.from_pretrained({str(gemma.path)!r}, dtype="auto").eval()
target = build_target(model, consume=True)
del model
measure_cost(target)
print(resident() - before)
"""
    added = int(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )
    weights = (gemma.path / "model.safetensors").stat().st_size
    assert added < 1.7 * weights


# Short prompts never reach the 512-token window, so the fault of counting it by slot needs the long one.
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(gemma: td.LoadedModel, references: dict[str, Reference], fault: str) -> None:
    """Each way to be wrong changes tokens or logprobs: the comparisons above can fail."""
    reference = references["long"]
    drafter = AdversarialDrafter(reference.prompt_ids + reference.token_ids, gemma.target.vocab_size, seed=1)
    with FAULTS[fault]():
        token_ids, worst = run_with_logprobs(gemma, reference, drafter, 40)
    assert token_ids != reference.token_ids[:40] or worst > LOGPROB_TOLERANCE
