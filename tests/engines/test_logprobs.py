"""Log probabilities of emitted tokens: those of one plain forward pass, whatever is drafted and asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engines.tiny import LONG, PROMPTS, VOCAB, plain_logprobs, reference, target_of, tiny
from tests.faults import FAULTS
from treedecode.drafters import make_drafter
from treedecode.engines.logprobs import TokenLogprobs
from treedecode.engines.loop import Decoder
from treedecode.engines.params import SamplingParams
from treedecode.engines.request import Request
from treedecode.testing.drafters import AdversarialDrafter

PROMPT = PROMPTS[LONG]
COUNT = 40
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_k": 20, "seed": 4},
    "penalised": {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "logit_bias": {5: 3.0}},
}


def run(
    implementation: str, drafter: Any, budget: int, count: int, settings: dict[str, Any]
) -> tuple[list[int], list[TokenLogprobs], int]:
    request = Request(tuple(PROMPT), COUNT, budget, SamplingParams(**settings), num_logprobs=count)
    decoder = Decoder(target_of("gemma3", implementation), request, drafter)
    emissions = list(decoder.run())
    tokens = [token for emission in emissions for token in emission.token_ids]
    logprobs = [token for emission in emissions for token in emission.logprobs or []]
    return tokens, logprobs, decoder.stats.build(len(tokens)).num_forward_passes


def worst(tokens: list[int], logprobs: list[TokenLogprobs]) -> float:
    """Largest distance from a plain forward pass over the output."""
    expected = plain_logprobs(tiny("gemma3"), PROMPT, tokens)
    return (torch.tensor([token.logprob for token in logprobs]) - expected).abs().max().item()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("implementation", ["fused", "transformers"])
@torch.no_grad()
def test_equal_a_plain_forward(implementation: str, settings: str) -> None:
    given = SETTINGS[settings]
    expected, _, _ = run(implementation, None, 0, 0, given)
    passes = []
    for drafter, budget in ((None, 0), (AdversarialDrafter(PROMPT + expected, VOCAB), 12)):
        tokens, logprobs, num_passes = run(implementation, drafter, budget, 5, given)
        assert tokens == [token.token_id for token in logprobs] == expected
        assert worst(tokens, logprobs) < 1e-5
        logits = tiny("gemma3")(torch.tensor([PROMPT + tokens[:-1]]), logits_to_keep=COUNT).logits[0]
        tops = logits.log_softmax(-1).topk(5)
        assert [token.top_ids for token in logprobs] == [tuple(row) for row in tops.indices.tolist()]
        got = torch.tensor([token.top_logprobs for token in logprobs])
        torch.testing.assert_close(got, tops.values.float(), rtol=0, atol=1e-5)
        passes.append(num_passes)
    assert passes[0] == COUNT > passes[1]  # one pass per step, and no other


def test_none_of_the_likeliest_is_fine() -> None:
    tokens, logprobs, _ = run("fused", make_drafter("merged"), 8, 0, {})
    assert tokens == reference("gemma3", LONG)[:COUNT]
    assert all(token.top_ids == token.top_logprobs == () for token in logprobs)
    assert worst(tokens, logprobs) < 1e-5


@pytest.mark.parametrize("fault", FAULTS)
@torch.no_grad()
def test_planted_faults_are_seen(fault: str) -> None:
    expected = reference("gemma3", LONG)
    with FAULTS[fault]():
        tokens, logprobs, _ = run("fused", AdversarialDrafter(PROMPT + expected, VOCAB), 16, 1, {})
    assert tokens != expected[:COUNT] or worst(tokens, logprobs) > 1e-3
