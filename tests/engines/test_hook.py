from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import treedecode as td


@pytest.fixture
def model(tiny: Callable[[str], Any]) -> Any:
    return tiny("qwen2")


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


def test_sampling_follows_the_torch_seed(model: Any) -> None:
    outputs = []
    for budget in (0, 6):
        torch.manual_seed(3)
        outputs.append(
            model.generate(
                **prompts(),
                max_new_tokens=30,
                do_sample=True,
                custom_generate=td.custom_generate,
                budget=budget,
            )
        )
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGramLogitsProcessor"),
        ({"num_beams": 2}, "num_beams"),
        ({"max_time": 5.0}, "MaxTimeCriteria"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
    ],
)
def test_what_trees_would_not_honour_is_refused_by_name(
    model: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        model.generate(
            **prompts(), max_new_tokens=5, do_sample=False, custom_generate=td.custom_generate, **options
        )
