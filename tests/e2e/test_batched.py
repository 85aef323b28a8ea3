"""The real model in batches: every prompt gives what it gives alone, which is transformers' own greedy output."""

from __future__ import annotations

import pytest

import treedecode as td
from tests.e2e.conftest import Reference
from tests.e2e.test_gemma import assert_same_tokens

pytestmark = pytest.mark.real_model

NAMES = ("story", "json", "long", "noise")
COUNT = 32


@pytest.mark.parametrize(("budget", "batch_size"), [(0, 4), (6, 4), ("auto", 3)])
def test_prompts_of_a_batch_equal_single_ones(
    gemma: td.LoadedModel, references: dict[str, Reference], budget: int | str, batch_size: int
) -> None:
    """One of them longer than the sliding window; near-ties as in the tests of single prompts."""
    chosen = [references[name] for name in NAMES]
    prompts = [reference.prompt_ids for reference in chosen]
    batch = td.generate(gemma, prompts, batch_size=batch_size, budget=budget, max_new_tokens=COUNT)
    for generation, reference in zip(batch, chosen, strict=True):
        expected = Reference(reference.model, reference.prompt_ids, reference.token_ids[:COUNT])
        assert_same_tokens(generation.token_ids, expected)
        (alone,) = td.generate(gemma, [reference.prompt_ids], budget=budget, max_new_tokens=COUNT)
        assert_same_tokens(alone.token_ids, expected)


def test_sampled_prompts_of_a_batch_equal_single_ones(
    gemma: td.LoadedModel, references: dict[str, Reference]
) -> None:
    """CASES 22 on the real model."""
    prompts = [references[name].prompt_ids for name in NAMES]
    own = {"temperature": [0, 1.0, 0, 0.5], "seed": [0, 1, 2, 3], "top_k": [None, 50, None, 20]}
    batch = td.generate(gemma, prompts, budget=4, max_new_tokens=16, **own)
    for place, (generation, prompt) in enumerate(zip(batch, prompts, strict=True)):
        options = {name: values[place] for name, values in own.items()}
        (alone,) = td.generate(gemma, [prompt], budget=0, max_new_tokens=16, **options)
        assert generation.token_ids == alone.token_ids
