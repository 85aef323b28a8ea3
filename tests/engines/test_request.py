from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from treedecode.engines.params import SamplingParams, check_count
from treedecode.engines.request import (
    AUTO_MAX_DRAFTED,
    MAX_BUDGET,
    Request,
    check_budget,
    check_prompt,
    check_stop_ids,
)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: check_budget(-1), ValueError, "budget must be at least 0, got -1"),
        (lambda: check_budget(10**6), ValueError, "budget must be at most 1024, got 1000000"),
        (lambda: check_budget(2.5), TypeError, "budget must be an integer, got 2.5"),
        (lambda: check_budget(math.nan), TypeError, "budget must be an integer, got nan"),
        (lambda: check_budget(True), TypeError, "budget must be an integer, got True"),
        (lambda: check_budget(None), TypeError, "budget must be an integer, got None"),
        (lambda: check_budget("many"), TypeError, '"auto"'),
        (lambda: check_prompt([], 10, None), ValueError, "the prompt is empty"),
        (lambda: check_prompt([10], 10, None), ValueError, "at most 9, got 10"),
        (lambda: check_prompt([-1], 10, None), ValueError, "at least 0, got -1"),
        (lambda: check_prompt([1.0], 10, None), TypeError, "must be an integer, got 1.0"),
        (lambda: check_prompt([[1]], 10, None), TypeError, r"must be an integer, got \[1\]"),
        (lambda: check_prompt(5, 10, None), TypeError, "text or a sequence of token ids, got 5"),  # type: ignore
        (lambda: check_prompt([1] * 9, 10, 8), ValueError, "has 9 tokens, the model allows at most 8"),
        (lambda: check_stop_ids("word"), TypeError, "eos_token_id must be an integer, got 'w'"),
        (lambda: check_stop_ids([1, None]), TypeError, "eos_token_id must be an integer, got None"),
        (lambda: check_stop_ids(-2), ValueError, "eos_token_id must be at least 0, got -2"),
        (lambda: check_count("n", 3, 4, 5), ValueError, "n must be at least 4, got 3"),
        (lambda: check_count("n", 6, 4, 5), ValueError, "n must be at most 5, got 6"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_good_input_passes() -> None:
    assert check_budget("auto") is None
    assert [check_budget(value) for value in (0, 7, np.int64(3), MAX_BUDGET)] == [0, 7, 3, MAX_BUDGET]
    assert check_prompt(np.array([1, 2]), 10, 2) == (1, 2)
    assert check_prompt(iter([9]), 10, None) == (9,)


def test_stop_tokens_are_none_one_or_several() -> None:
    assert check_stop_ids(None) == check_stop_ids([]) == frozenset()
    assert check_stop_ids(3) == check_stop_ids([3, 3]) == frozenset([3])
    assert check_stop_ids((3, np.int64(4))) == frozenset([3, 4])


def test_the_widest_tree_follows_the_budget() -> None:
    assert Request((1,), 5, 7).max_drafted == 7
    assert Request((1,), 5, 0).max_drafted == 0
    assert Request((1,), 5, None).max_drafted == AUTO_MAX_DRAFTED


def test_numbers_of_any_kind_are_kept_as_pythons_own() -> None:
    """Arrays and tensors too: one rule for all counts."""
    params = SamplingParams(
        top_k=np.int64(3), min_tokens=np.array(2), seed=torch.tensor(5), bad_words_ids=[[np.int32(1)]]
    )
    assert params == SamplingParams(top_k=3, min_tokens=2, seed=5, bad_words_ids=[[1]])
    assert [type(value) for value in (params.top_k, params.min_tokens, params.seed)] == [int] * 3
