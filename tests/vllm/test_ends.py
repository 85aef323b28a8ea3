"""Walks end where vLLM ends the request: tokens, limits, repetitions and stop strings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from treedecode.accept import accept_greedy
from treedecode.tree import DraftTree

pytestmark = pytest.mark.vllm

WORDS = ["the", "cat", "sat", "on", "mat"]
MAX_MODEL_LEN = 20


def word_tokenizer(*args, **kwargs):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*WORDS, "?"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")


@pytest.fixture
def ends(monkeypatch):
    from treedecode.vllm import ends as module

    monkeypatch.setattr(module, "cached_tokenizer_from_config", word_tokenizer)
    return module.RequestEnds(SimpleNamespace(max_model_len=MAX_MODEL_LEN))


def request(output=(), prompt_len=3, **params):
    from vllm import SamplingParams

    return SimpleNamespace(
        sampling_params=SamplingParams(**{"max_tokens": 16, **params}),
        num_prompt_tokens=prompt_len,
        prompt_token_ids=[0] * prompt_len,
        prompt_embeds=None,
        output_token_ids=list(output),
    )


def accepted(tokens):
    """A walk that accepted all of a chain and emitted ``tokens``."""
    chain = DraftTree.trusted(range(-1, len(tokens) - 1), (9, *tokens[:-1]))
    return accept_greedy(chain, tokens)


@pytest.mark.parametrize(
    ("one", "tokens", "kept"),
    [
        (request(), [1, 2, 3, 4], 4),
        (request(stop_token_ids=[3]), [1, 2, 3, 4], 3),
        (request(output=[1, 1], max_tokens=4), [1, 2, 3, 4], 2),
        (request(output=[1, 1], prompt_len=15), [1, 2, 3, 4], 3),
        (request(stop=["sat on"]), [1, 2, 3, 4], 3),
        (request(output=[2], stop=["sat on"]), [3, 1, 1], 1),
        (request(output=[2], stop=["sat on"], min_tokens=4), [3, 1, 2, 3, 4], 4),
        (request(stop=["mat"], stop_token_ids=[2]), [1, 2, 4, 4], 2),
    ],
)
def test_where_a_walk_is_cut(ends, one, tokens, kept):
    walk = accepted(tokens)
    cut = ends.cut("a", one, walk)
    assert cut.token_ids == tokens[:kept]
    assert (cut is walk) == (kept == len(tokens))


def test_an_end_of_sequence_token(ends):
    one = request()
    one.sampling_params._eos_token_id = 2
    assert ends.cut("a", one, accepted([1, 2, 3])).token_ids == [1, 2]


def test_a_repetition(ends):
    from vllm.sampling_params import RepetitionDetectionParams

    pattern = RepetitionDetectionParams(max_pattern_size=2, min_pattern_size=2, min_count=3)
    one = request(output=[1, 2, 1], repetition_detection=pattern)
    assert ends.cut("a", one, accepted([2, 1, 2, 1, 2])).token_ids == [2, 1, 2]


def test_a_stop_string_over_two_steps_ends_the_request_once(ends):
    one = request(stop=["sat on"])
    assert ends.cut("a", one, accepted([1, 2])).token_ids == [1, 2] and not ends.has_ended("a")
    one.output_token_ids += [1, 2]
    assert ends.cut("a", one, accepted([3, 4])).token_ids == [3] and ends.has_ended("a")
    ends.forget("a")
    assert not ends.has_ended("a")


def test_a_request_that_was_seen_late(ends):
    one = request(output=[1, 2], stop=["sat on"])
    assert ends.cut("a", one, accepted([3, 4])).token_ids == [3]
    # the id again, with another output than before
    assert ends.cut("a", request(output=[4], stop=["mat the"]), accepted([0, 1])).token_ids == [0]
