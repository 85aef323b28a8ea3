from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

import treedecode as td
from tests.engines.tiny import VOCAB, make_tiny
from tests.engines.tokenizers import byte_level


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


class Doubling(LogitsProcessor):
    """A processor that treedecode cannot know."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return 2 * scores


class Streamer:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.token_ids += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


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
    with pytest.raises(ValueError, match="the prompt is empty"):
        model.generate(inputs_embeds=torch.zeros(1, 3, 48).double(), **options)
    with pytest.raises(ValueError, match=r"the prompt has 600 tokens, the model allows at most 512"):
        model.generate(torch.ones(1, 600, dtype=torch.long), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGramLogitsProcessor"),
        ({"bad_words_ids": [[4]]}, "NoBadWordsLogitsProcessor"),
        ({"min_new_tokens": 3, "eos_token_id": 5}, "MinNewTokensLengthLogitsProcessor"),
        ({"do_sample": True, "typical_p": 0.5}, "TypicalLogitsWarper"),
        ({"logits_processor": [Doubling()]}, "Doubling"),
        ({"num_beams": 2}, "num_beams"),
        ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences"),
        ({"max_time": 5.0}, "MaxTimeCriteria"),
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
