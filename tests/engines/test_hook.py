from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WatermarkingConfig,
)
from transformers.generation.stopping_criteria import EosTokenCriteria

import treedecode as td
from tests.engines.tiny import VOCAB, make_tiny
from tests.engines.tokenizers import byte_level
from treedecode.engines.prepared import split


@pytest.fixture(scope="module")
def model() -> Any:
    return make_tiny("qwen2")


def prompts() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[0, 0, 1, 5, 6, 5], [1, 9, 8, 7, 9, 8]])  # the first is padded on the left
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


@pytest.mark.parametrize("budget", [0, 6, "auto"])
def test_greedy_equals_plain_generate(model: Any, budget: Any) -> None:
    plain = model.generate(**prompts(), max_new_tokens=40, do_sample=False)
    stop = int(plain[0, 20])
    for eos in (None, stop, [stop, int(plain[1, 30])]):
        options = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": eos}
        expected = model.generate(**prompts(), **options)
        got = model.generate(**prompts(), **options, custom_generate=td.custom_generate, budget=budget)
        assert torch.equal(got, expected)


SAMPLING: dict[str, Any] = {
    "max_new_tokens": 30,
    "do_sample": True,
    "temperature": 0.8,
    "top_k": 30,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
}


def test_sampling_follows_the_torch_seed(model: Any) -> None:
    outputs = []
    for budget in (0, 6, 0):
        torch.manual_seed(3)
        outputs.append(
            model.generate(**prompts(), **SAMPLING, custom_generate=td.custom_generate, budget=budget)
        )
    unseeded = model.generate(**prompts(), **SAMPLING, custom_generate=td.custom_generate, budget=6)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], unseeded)


def test_samples_have_the_distribution_of_plain_generate(model: Any) -> None:
    """First tokens of many calls against those of transformers, where three tokens are likely."""
    options = SAMPLING | {"max_new_tokens": 1, "top_k": 3, "top_p": None, "min_p": None}
    ids = torch.tensor([[1, 9, 8, 7]] * 300)
    torch.manual_seed(0)
    plain = model.generate(ids, **options)[:, -1]
    ours = model.generate(ids, **options, custom_generate=td.custom_generate, budget=0)[:, -1]
    counts = [torch.bincount(tokens, minlength=VOCAB).double() for tokens in (plain, ours)]
    assert int((counts[0] > 0).sum()) == int((counts[1] > 0).sum()) == 3
    assert (counts[0] - counts[1]).abs().max() < 6 * (300 / 2) ** 0.5


@pytest.mark.parametrize("budget", [0, 6])
def test_repetition_penalty_equals_plain_generate(model: Any, budget: int) -> None:
    options = {"max_new_tokens": 40, "do_sample": False, "repetition_penalty": 1.3}
    ids = torch.tensor([[1, 9, 8, 7, 9, 8]])
    expected = model.generate(ids, **options)
    assert torch.equal(
        model.generate(ids, **options, custom_generate=td.custom_generate, budget=budget), expected
    )


class Forgetful(LogitsProcessor):
    """A processor that treedecode cannot know: no token may stand where it stood five tokens before."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores.scatter(1, input_ids[:, -5:-4], -100.0)


class Counting(LogitsProcessor):
    """Gives the same scores for its first calls, and counts them."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.num_calls += 1
        return scores if self.num_calls < 5 else -scores


class Noisy(LogitsProcessor):
    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores + torch.rand_like(scores)


class Summed(LogitsProcessor):
    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores.sum(-1)


class Streamer:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.token_ids += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


def allowed(row: int, ids: torch.Tensor) -> list[int]:
    """Another half of the vocabulary for every row of the batch, and for every length."""
    return list(range((row + len(ids)) % 2, VOCAB, 2))


PREPARED: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[4], [5, 6], [9, 8]]},
    {"min_new_tokens": 30, "eos_token_id": list(range(2, 50))},
    {"min_length": 30, "eos_token_id": list(range(2, 50))},
    {"sequence_bias": {(5,): 4.0, (7,): -2.0}},
    {"sequence_bias": {(5, 6): 9.0, (9, 8): -9.0, (7,): 3.0}},
    {"suppress_tokens": list(range(40))},
    {"begin_suppress_tokens": list(range(90))},
    {"forced_eos_token_id": 5, "eos_token_id": 5},
    {"exponential_decay_length_penalty": (9, 1.3), "eos_token_id": [5, 6]},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_repetition_penalty": 3.0},
    {"remove_invalid_values": True, "renormalize_logits": True},
    {"prefix_allowed_tokens_fn": allowed},
    {"watermarking_config": WatermarkingConfig(bias=5.0)},
    {"logits_processor": [Forgetful()]},
    {"logits_processor": [Forgetful(), RepetitionPenaltyLogitsProcessor(1.5)], "no_repeat_ngram_size": 3},
    {"logits_processor": [TemperatureLogitsWarper(0.5)], "sequence_bias": {(5,): 4.0}, "min_new_tokens": 4},
]


@pytest.mark.parametrize("options", PREPARED, ids=lambda options: "-".join(options))
def test_every_processor_is_honoured(model: Any, options: dict[str, Any]) -> None:
    """Whatever ``generate`` prepares or is given, in a padded batch: the tokens of plain ``generate``."""
    options = {"max_new_tokens": 40, "do_sample": False} | options
    expected = model.generate(**prompts(), **options)
    for budget in (0, 6):
        got = model.generate(**prompts(), **options, custom_generate=td.custom_generate, budget=budget)
        assert torch.equal(got, expected), budget


@pytest.mark.parametrize(
    "options",
    [
        {"typical_p": 0.4},
        {"epsilon_cutoff": 0.05},
        {"eta_cutoff": 0.1, "top_k": 0},
        {"top_h": 0.4, "temperature": 1.5},
        {"logits_processor": [Forgetful()], "top_k": 5},
        {"logits_processor": [TopKLogitsWarper(4, min_tokens_to_keep=2)], "renormalize_logits": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_sampled_processors_are_honoured(model: Any, options: dict[str, Any]) -> None:
    """The tokens that can come first are those of plain ``generate``, as often; trees change nothing."""
    options = SAMPLING | {"top_p": None, "min_p": None} | options
    ids = torch.tensor([[1, 9, 8, 7]] * 300)
    torch.manual_seed(0)
    plain = model.generate(ids, **(options | {"max_new_tokens": 1}))[:, -1]
    ours = model.generate(
        ids, **(options | {"max_new_tokens": 1}), custom_generate=td.custom_generate, budget=0
    )[:, -1]
    counts = [torch.bincount(tokens, minlength=VOCAB).double() for tokens in (plain, ours)]
    assert (counts[0] - counts[1]).abs().max() < 6 * (300 / 2) ** 0.5
    often = counts[0] > 12
    assert bool((counts[1][often] > 0).all())
    assert int((counts[1] > 12).sum()) <= int((counts[0] > 0).sum())
    outputs = []
    for budget in (0, 6):
        torch.manual_seed(3)
        outputs.append(
            model.generate(**prompts(), **options, custom_generate=td.custom_generate, budget=budget)
        )
    assert torch.equal(*outputs)


def test_without_trees_a_processor_may_keep_state(model: Any) -> None:
    ids = torch.tensor([[1, 9, 8, 7, 9, 8]])
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False}
    expected = model.generate(ids, **options, logits_processor=[Counting()])
    got = model.generate(
        ids, **options, logits_processor=[Counting()], custom_generate=td.custom_generate, budget=0
    )
    assert torch.equal(got, expected)


def test_what_is_read_from_what_was_prepared() -> None:
    """From the front ours up to the first that is not, from the back ours down to the last; all else in order."""
    penalty, bans = RepetitionPenaltyLogitsProcessor(1.5), NoBadWordsLogitsProcessor([[4], [5, 6]])
    bias = SequenceBiasLogitsProcessor({(5,): 4.0})
    warm, narrow, nucleus = TemperatureLogitsWarper(0.7), TopKLogitsWarper(5), TopPLogitsWarper(0.9)
    end = MinNewTokensLengthLogitsProcessor(6, 3, [2])
    odd = Forgetful()
    whole = [bias, penalty, bans, end, odd, warm, narrow, nucleus]
    given = {
        "logit_bias": {5: 4.0},
        "repetition_penalty": 1.5,
        "bad_words_ids": [(4,), (5, 6)],
        "min_tokens": 3,
    }
    warped = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}
    assert split(whole, True, 6, frozenset([2])) == (given | warped, [odd])
    assert split(whole, False, 6, frozenset([2])) == (given, [odd, warm, narrow, nucleus])
    assert split([odd, *whole[:4]], False, 6, frozenset([2]))[1] == [odd, *whole[:4]]
    assert split([warm, odd], True, 6, frozenset()) == ({"temperature": 1.0}, [warm, odd])
    assert split([narrow, warm], True, 6, frozenset()) == ({"temperature": 0.7}, [narrow])
    assert split([penalty, penalty], False, 6, frozenset()) == ({"repetition_penalty": 1.5}, [penalty])
    longer = SequenceBiasLogitsProcessor({(5, 6): 4.0})
    for kept in (longer, RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=3), end):
        assert split([kept], False, 4, frozenset([2])) == ({}, [kept])


@pytest.mark.parametrize("budget", [0, 6])
def test_streamers_get_what_plain_generate_gives_them(model: Any, budget: int) -> None:
    ids = torch.tensor([[1, 9, 8, 7, 9, 8]])
    plain, ours = Streamer(), Streamer()
    options = {"max_new_tokens": 40, "do_sample": False}
    model.generate(ids, **options, streamer=plain)
    bound = functools.partial(td.custom_generate, streamer=ours)
    model.generate(ids, **options, custom_generate=bound, budget=budget)
    assert (ours.token_ids, ours.ended) == (plain.token_ids, plain.ended)


@pytest.mark.parametrize("budget", [0, 6])
def test_stop_strings_equal_plain_generate(model: Any, budget: int) -> None:
    tokenizer = byte_level()
    ids = torch.tensor([[1, 9, 8, 7, 9, 8]])
    options: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False}
    text = tokenizer.decode(model.generate(ids, **options)[0, 6:])
    bound = functools.partial(td.custom_generate, tokenizer=tokenizer, budget=budget)
    for stop in (text[12:14], [text[20], text[25:27]]):
        expected = model.generate(ids, **options, stop_strings=stop, tokenizer=tokenizer)
        assert expected.shape[1] < 46
        assert torch.equal(model.generate(ids, **options, stop_strings=stop, custom_generate=bound), expected)


def test_stop_strings_need_a_bound_tokenizer(model: Any) -> None:
    with pytest.raises(ValueError, match=r"stop_strings need the tokenizer.*functools\.partial"):
        model.generate(
            **prompts(),
            max_new_tokens=5,
            do_sample=False,
            stop_strings="x",
            custom_generate=td.custom_generate,
        )


@pytest.mark.parametrize("budget", [0, 6])
def test_every_stopping_criterion_is_asked_after_every_token(model: Any, budget: int) -> None:
    ids = torch.tensor([[1, 9, 8, 7, 9, 8]])
    options: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    tokenizer, whole = byte_level(), model.generate(ids, **options)[0]
    across = tokenizer.decode(whole[5:8])  # begins in the prompt
    seen: list[list[int]] = []

    def twelve(input_ids: torch.Tensor, scores: Any) -> torch.Tensor:
        seen.append(input_ids[0].tolist())
        return torch.full((len(input_ids),), input_ids.shape[1] >= 12)

    ours = {"custom_generate": td.custom_generate, "budget": budget}
    for criterion, length in (
        (MaxLengthCriteria(9), 9),
        (MaxLengthCriteria(3), 7),  # asked after a token, not before
        (EosTokenCriteria(int(whole[15])), None),
        (StopStringCriteria(tokenizer, [across]), 8),
        (MaxTimeCriteria(1000.0), 46),
        (MaxTimeCriteria(0.0), 7),
        (twelve, 12),
    ):
        given = {"stopping_criteria": StoppingCriteriaList([criterion])}
        expected = model.generate(ids, **options, **given)
        assert length is None or expected.shape[1] == length
        assert torch.equal(model.generate(ids, **options, **given, **ours), expected), criterion
    assert seen[-1] == whole[:12].tolist()
    # in a batch a row stops where it stops alone, though generate lets it run on unless it is EOS that ends it
    given = {"stopping_criteria": StoppingCriteriaList([StopStringCriteria(tokenizer, [across])])}
    padded = prompts() | {"input_ids": prompts()["input_ids"].flip(0)}
    padded["attention_mask"] = padded["attention_mask"].flip(0)
    rows = model.generate(**padded, **options, **given, **ours)
    assert rows[0].tolist() == whole[:8].tolist() + [0] * 38
    assert torch.equal(rows[1], model.generate(**padded, **options)[1])


@pytest.mark.parametrize("count", [1, 2])
def test_few_tokens(model: Any, count: int) -> None:
    options = {"max_new_tokens": count, "do_sample": False}
    got = model.generate(**prompts(), **options, custom_generate=td.custom_generate, budget=6)
    assert torch.equal(got, model.generate(**prompts(), **options))


def test_weights_that_change_are_seen() -> None:
    """Training steps, loaded states, other dtypes: the target kept on the model is made again."""
    model = make_tiny("qwen3")
    ids = torch.tensor([[1, 9, 8, 7]])

    def both() -> list[torch.Tensor]:
        options = {"max_new_tokens": 30, "do_sample": False}
        return [
            model.generate(ids, **options),
            model.generate(ids, **options, custom_generate=td.custom_generate, budget=5),
        ]

    assert torch.equal(*both())
    optimiser = torch.optim.SGD(model.parameters(), lr=2.0)
    model(ids, labels=ids).loss.backward()
    optimiser.step()
    before, after = both()
    assert torch.equal(before, after)
    model.load_state_dict(make_tiny("qwen3", seed=2).state_dict())
    assert not torch.equal(both()[0], before)
    assert torch.equal(*both())
    before = both()[0]
    norm = model.model.norm.weight
    norm.data.mul_(torch.linspace(0.1, 6, len(norm)).double())  # counts no version
    assert not torch.equal(both()[0], before)
    assert torch.equal(*both())
    before = both()[0]
    model.model.layers[0].register_forward_hook(lambda module, inputs, hidden: hidden * 1.5)
    assert not torch.equal(both()[0], before)
    assert torch.equal(*both())


def test_bad_input_is_named(model: Any) -> None:
    options: dict[str, Any] = {
        "do_sample": False,
        "max_new_tokens": 3,
        "custom_generate": td.custom_generate,
    }
    with pytest.raises(ValueError, match="budget must be at least 0, got -1"):
        model.generate(**prompts(), **options, budget=-1)
    with pytest.raises(ValueError, match=r"drafter must be one of .*, got 'psychic'"):
        model.generate(**prompts(), **options, drafter="psychic")
    embeds = torch.zeros(1, 3, 48).double()
    with pytest.raises(ValueError, match="expected input_ids alone, got inputs_embeds as well"):
        model.generate(inputs_embeds=embeds, **options)
    with pytest.raises(ValueError, match="expected input_ids alone, got inputs_embeds as well"):
        model.generate(torch.ones(1, 3, dtype=torch.long), inputs_embeds=embeds, **options)
    with pytest.raises(ValueError, match=r"the prompt has 600 tokens, the model allows at most 512"):
        model.generate(torch.ones(1, 600, dtype=torch.long), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidanceLogitsProcessor keeps state of its own"),
        ({"logits_processor": [Counting()]}, "logits processor Counting does not do the same twice"),
        ({"logits_processor": [Noisy()]}, "logits processor Noisy does not do the same twice"),
        ({"logits_processor": [Summed()]}, r"Summed must return scores of shape \[1, 97\].*got \[1\]"),
        ({"num_beams": 2}, "num_beams"),
        ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
    ],
)
def test_what_trees_would_not_honour_is_refused_by_name(
    model: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        model.generate(
            **prompts(),
            **({"max_new_tokens": 5, "do_sample": False, "custom_generate": td.custom_generate} | options),
        )
