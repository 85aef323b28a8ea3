"""Penalties, biases, bad words and min_tokens in the engine: trees equal plain decoding, and that transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from tests.engines.path_faults import FAULTS
from tests.engines.tiny import LONG, PROMPTS, VOCAB, decode, drafters, reference, target_of, tiny
from treedecode.drafters import make_drafter
from treedecode.engines.loop import Decoder
from treedecode.engines.params import SamplingParams
from treedecode.engines.path import Committed, Paths
from treedecode.engines.processors import LogitsProcessors, as_processors
from treedecode.engines.request import Request
from treedecode.testing.drafters import AdversarialDrafter
from treedecode.tree import DraftTree, TreeShape

PROMPT = PROMPTS[LONG]
COUNT = 50


class CountPenalties(LogitsProcessor):
    """Frequency and presence penalty by their definition, which transformers does not have."""

    def __init__(self, num_prompt: int, frequency: float, presence: float) -> None:
        self._num_prompt, self._frequency, self._presence = num_prompt, frequency, presence

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        output = input_ids[:, self._num_prompt :]
        counts = torch.zeros_like(scores).scatter_add_(1, output, torch.ones_like(output, dtype=scores.dtype))
        return scores - self._frequency * counts - self._presence * (counts > 0)


def words() -> list[list[int]]:
    """Pairs and triples that plain decoding says, so that forbidding them matters, and one token."""
    said = reference("qwen3", LONG)
    return [said[0:2], said[5:8], [said[12]], said[20:22]]


CASES: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": 2.0},
    "negative": {"frequency_penalty": -0.4, "presence_penalty": -1.0},
    "bias": {"logit_bias": {3: 2.0, 7: 4.0, 11: float("-inf")}},
    "bad words": {"bad_words_ids": words},
    "all": {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "logit_bias": {3: 2.0},
        "bad_words_ids": words,
        "min_tokens": 9,
    },
}


def options(case: str) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in CASES[case].items()}


def theirs(given: dict[str, Any]) -> dict[str, Any]:
    """The same for transformers' generate."""
    found: dict[str, Any] = {}
    if "logit_bias" in given:
        found["sequence_bias"] = {(token,): bias for token, bias in given["logit_bias"].items()}
    for name in ("repetition_penalty", "bad_words_ids"):
        if name in given:
            found[name] = given[name]
    counts = given.get("frequency_penalty", 0.0), given.get("presence_penalty", 0.0)
    if any(counts):
        found["logits_processor"] = [CountPenalties(len(PROMPT), *counts)]
    return found


@pytest.mark.parametrize("case", CASES)
def test_greedy_equals_transformers(case: str) -> None:
    given, target = options(case), target_of("qwen3", "fused")
    output = tiny("qwen3").generate(
        torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, **theirs(given)
    )
    expected = output[0, len(PROMPT) :].tolist()
    assert expected != reference("qwen3", LONG)[:COUNT]
    assert decode(target, PROMPT, None, 0, count=COUNT, **given) == expected
    for kind, drafter in drafters(PROMPT + expected).items():
        assert decode(target, PROMPT, drafter, count=COUNT, **given) == expected, kind


class Recording(LogitsProcessor):
    """Favours a token that depends on the last three of the path; keeps the shapes of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls.append(tuple(input_ids.shape))
        favoured = input_ids[:, -3:].sum(1, keepdim=True) % VOCAB
        return scores.scatter_add(1, favoured, torch.full_like(scores[:, :1], 6.0))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_any_processor_sees_the_path_of_every_node(temperature: float) -> None:
    target, given = target_of("qwen3", "fused"), {"count": COUNT, "temperature": temperature, "seed": 5}
    expected = decode(target, PROMPT, None, 0, processors=(Recording(),), **given)
    if not temperature:
        output = tiny("qwen3").generate(
            torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False, logits_processor=[Recording()]
        )
        assert output[0, len(PROMPT) :].tolist() == expected
    for kind, drafter in drafters(PROMPT + expected).items():
        assert decode(target, PROMPT, drafter, processors=(Recording(),), **given) == expected, kind
    for fault in FAULTS.values():
        drafter = AdversarialDrafter(PROMPT + expected, VOCAB)
        with fault():
            assert decode(target, PROMPT, drafter, 16, processors=(Recording(),), **given) != expected


def test_nodes_of_one_depth_are_one_call() -> None:
    processor = Recording()
    tree = DraftTree(TreeShape.from_widths([3, 2]), [7, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    stage = LogitsProcessors([processor], padding=[0, 0], shared=False)
    committed = Committed()
    committed.follow([5, 6, 7], 1)
    stage(torch.zeros(10, 20), Paths(tree, committed))
    assert processor.calls == [(1, 5), (3, 6), (6, 7)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda ids: ids, "logits processor <lambda> must take input_ids and scores, got other arguments"),
        (lambda ids, scores, more: scores, "must take input_ids and scores, got other arguments"),
        (3, "logits_processor must be one or more functions of input_ids and scores, got 3"),
        ([None], "logits_processor must be one or more functions of input_ids and scores, got None"),
    ],
)
def test_what_is_no_processor_is_named(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        LogitsProcessors(as_processors(given), (), shared=False)


@pytest.mark.parametrize("case", CASES)
def test_same_seed_same_tokens_with_trees(case: str) -> None:
    given, target = (
        options(case) | {"temperature": 0.9, "seed": 3, "count": COUNT},
        target_of("gemma3", "fused"),
    )
    expected = decode(target, PROMPT, None, 0, **given)
    for kind, drafter in drafters(PROMPT + expected).items():
        assert decode(target, PROMPT, drafter, **given) == expected, kind


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_break_identity(fault: str, temperature: float) -> None:
    given, target = options("all") | {"temperature": temperature, "count": COUNT}, target_of("qwen3", "fused")
    expected = decode(target, PROMPT, None, 0, **given)
    drafter = AdversarialDrafter(PROMPT + expected, VOCAB)
    assert decode(target, PROMPT, drafter, 16, **given) == expected
    with FAULTS[fault]():
        assert decode(target, PROMPT, None, 0, **given) == expected  # a root alone has no ancestors
        assert decode(target, PROMPT, drafter, 16, **given) != expected


def run(
    drafter: Any, budget: int, stop: int, sampling: SamplingParams, count: int = 20
) -> tuple[list[int], Any]:
    decoder = Decoder(
        target_of("llama", "fused"),
        Request(tuple(PROMPT), count, budget, sampling, frozenset([stop])),
        drafter,
    )
    emissions = list(decoder.run())
    return [token for emission in emissions for token in emission.token_ids], emissions[-1].finish_reason


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [0, 1, 2, 3, 4, 5, 8, 16])
def test_case_33(budget: int, temperature: float) -> None:
    """EOS bias +100 with min_tokens 4: four other tokens, then EOS, whatever the tree depth."""
    stop = 9
    sampling = SamplingParams(temperature, logit_bias={stop: 100.0}, min_tokens=4)
    plain, _ = run(None, 0, stop, sampling)
    chosen = [make_drafter("merged"), AdversarialDrafter(PROMPT + plain, VOCAB)] if budget else [None]
    for drafter in chosen:
        tokens, reason = run(drafter, budget, stop, sampling)
        assert (tokens, reason) == (plain, "stop")
        assert len(tokens) == 5
        assert tokens[4] == stop
        assert stop not in tokens[:4]


def test_a_vocabulary_that_is_all_forbidden_is_an_error() -> None:
    """With trees and without; a row that no one gets to may well forbid everything."""
    sampling = SamplingParams(bad_words_ids=[[token] for token in range(VOCAB)])
    for drafter, budget in ((None, 0), (make_drafter("merged"), 4)):
        with pytest.raises(ValueError, match="expected at least one token that may come next, got none"):
            run(drafter, budget, 9, sampling)
    said = reference("llama", LONG)
    # nothing may follow the third token; it comes second
    after = SamplingParams(bad_words_ids=[[said[2], token] for token in range(VOCAB)])
    for drafter, budget in ((None, 0), (AdversarialDrafter(PROMPT + said, VOCAB), 8)):
        with pytest.raises(ValueError, match="expected at least one token that may come next"):
            run(drafter, budget, said[50], after)
        assert run(drafter, budget, said[2], after) == (said[:3], "stop")


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("budget", [0, 6])
@pytest.mark.parametrize(
    ("number", "temperature"), [(math.nan, 0.0), (math.nan, 1.0), (math.inf, 1.0), (1e308, 0.5)]
)
def test_numbers_that_choose_no_token_are_refused(
    number: float, temperature: float, budget: int, logprobs: int | None
) -> None:
    """Sampling gave a token outside the vocabulary, for which the drafter was blamed; greedy gave token 0."""

    def spoil(input_ids: Any, scores: Any) -> Any:
        return scores * 0 + number

    params = SamplingParams(temperature=temperature)
    request = Request(tuple(PROMPT), COUNT, budget, params, processors=(spoil,), num_logprobs=logprobs)
    decoder = Decoder(target_of("qwen3", "fused"), request, make_drafter("merged"))
    with pytest.raises(ValueError, match=r"expected logits to choose from, got (nan|3\.4\S+) as the best"):
        list(decoder.run())


def test_infinity_forces_a_greedy_choice() -> None:
    def force(input_ids: Any, scores: Any) -> Any:
        scores[:, 7] = math.inf
        return scores

    request = Request(tuple(PROMPT), 9, 6, processors=(force,))
    decoder = Decoder(target_of("qwen3", "fused"), request, make_drafter("merged"))
    assert [token for emission in decoder.run() for token in emission.token_ids] == [7] * 9
