"""Load, generate, stream: a tiny Llama with a tokenizer of its own, saved as a folder."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import treedecode as td
from tests.engines.conftest import LIMIT
from tests.engines.tiny import Fixed
from tests.engines.tokenizers import END, byte_level
from treedecode.engines.hf import stream
from treedecode.engines.load import LoadedModel, load
from treedecode.tree import DraftTree, TreeShape

PROMPT = "the end, then the café and the end"


@pytest.fixture(scope="module")
def expected(folder: Path, model: LoadedModel) -> list[int]:
    """What transformers gives for ``PROMPT``."""
    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    ids = torch.tensor([model.tokenizer(PROMPT)["input_ids"]])
    return plain.generate(ids, max_new_tokens=80, do_sample=False)[0, ids.shape[1] :].tolist()


def test_what_was_loaded(model: LoadedModel, folder: Path) -> None:
    assert model.path == folder
    assert (model.device.type, model.dtype) == ("cpu", torch.float64)
    assert (model.implementation, model.linear, model.head) == ("fused", "torch", "float64")
    assert model.config.model_type == "llama"
    assert model.eos_token_ids == {END}  # the checkpoint names none, so the tokenizer's


@pytest.mark.parametrize("implementation", ["auto", "fused", "transformers"])
def test_float32_is_packed(folder: Path, implementation: Any, expected: list[int]) -> None:
    """Tied weights included: head and embedding."""
    stages: list[str] = []

    class Stage:
        def __init__(self, name: str) -> None:
            stages.append(name)

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    packed = load(str(folder), implementation=implementation, progress=Stage)
    assert packed.dtype == torch.float32
    assert packed.linear != "torch"
    assert packed.implementation == ("transformers" if implementation == "transformers" else "fused")
    assert len(stages) == 2
    (generation,) = td.generate(packed, PROMPT, max_new_tokens=40, eos_token_id=None)
    assert generation.token_ids == expected[:40]


@pytest.mark.parametrize("budget", [0, 1, 6, 1024, "auto"])
@pytest.mark.parametrize("drafter", ["merged", "recycling", "suffix", "prompt-lookup"])
def test_generate_equals_transformers(
    model: LoadedModel, expected: list[int], budget: Any, drafter: str
) -> None:
    (generation,) = td.generate(
        model, PROMPT, max_new_tokens=80, budget=budget, drafter=drafter, eos_token_id=None
    )
    assert generation.token_ids == expected
    assert generation.text == model.tokenizer.decode(expected)
    assert generation.finish_reason == "length"
    assert generation.stats.num_emitted == 80
    assert (generation.stats.num_drafted == 0) == (budget == 0) or budget == "auto"


def test_every_form_of_prompt(model: LoadedModel, expected: list[int]) -> None:
    ids = model.tokenizer(PROMPT)["input_ids"]
    other = td.generate(model, "the", max_new_tokens=9)[0].token_ids
    forms: list[tuple[Any, int]] = [
        (PROMPT, 1),
        (ids, 1),
        (tuple(ids), 1),
        (np.array(ids), 1),
        ([PROMPT], 1),
        ([ids], 1),
        ([PROMPT, "the"], 2),
        ([ids, "the"], 2),
    ]
    for prompts, count in forms:
        generations = td.generate(model, prompts, max_new_tokens=9, eos_token_id=None)
        assert [generation.token_ids for generation in generations] == [expected[:9], other][:count]
    assert td.generate(model, []) == []


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("budget", [0, 4, "auto"])
def test_few_tokens(model: LoadedModel, expected: list[int], count: int, budget: Any) -> None:
    (generation,) = td.generate(model, PROMPT, max_new_tokens=count, budget=budget, eos_token_id=None)
    assert (generation.token_ids, generation.finish_reason) == (expected[:count], "length")
    assert generation.stats.num_emitted == count


@pytest.mark.parametrize("budget", [0, 6])
def test_stop_tokens(model: LoadedModel, expected: list[int], budget: int) -> None:
    def run(eos: Any) -> tuple[list[int], str]:
        (made,) = td.generate(model, PROMPT, max_new_tokens=80, budget=budget, eos_token_id=eos)
        return made.token_ids, made.finish_reason

    first, second = expected[20], expected[10]
    until = [expected[: expected.index(token) + 1] for token in (first, second)]
    assert run(None) == (expected, "length")
    assert run(first) == (until[0], "stop")
    assert run([first, second]) == (min(until, key=len), "stop")
    assert run([]) == (expected, "length")


@pytest.mark.parametrize("budget", [0, 6])
def test_stop_strings(model: LoadedModel, expected: list[int], budget: int) -> None:
    text = model.tokenizer.decode(expected)
    options: dict[str, Any] = {"max_new_tokens": 80, "budget": budget, "eos_token_id": None}
    middle = re.findall("[!-~]{2}", text)[-2]  # whole characters, late in the text
    (generation,) = td.generate(model, PROMPT, stop=[middle, "not there"], **options)
    assert generation.text == text[: text.find(middle)]
    assert generation.finish_reason == "stop"
    assert middle in model.tokenizer.decode(generation.token_ids)
    assert middle not in model.tokenizer.decode(generation.token_ids[:-1])
    assert generation.stats.num_emitted == len(generation.token_ids)
    (generation,) = td.generate(model, PROMPT, stop=text[0], **options)
    assert (generation.text, len(generation.token_ids)) == ("", 1)


@pytest.mark.parametrize("budget", [0, 6])
def test_bad_words_are_not_said(model: LoadedModel, expected: list[int], budget: int) -> None:
    """As the tokens of the text, with a space before it and without."""
    said = re.findall("[!-~]{2}", model.tokenizer.decode(expected))[:3]
    options: dict[str, Any] = {"max_new_tokens": 80, "budget": budget, "eos_token_id": None}
    (generation,) = td.generate(model, PROMPT, bad_words=said, **options)
    assert generation.token_ids != expected
    assert not any(word in generation.text for word in said)
    spaced = [model.tokenizer(f" {word}")["input_ids"] for word in said]
    ids = [model.tokenizer(word)["input_ids"] for word in said] + spaced
    assert td.generate(model, PROMPT, bad_words_ids=ids, **options)[0].token_ids == generation.token_ids


@pytest.mark.parametrize("budget", [0, 6])
def test_logits_processors(model: LoadedModel, expected: list[int], budget: int) -> None:
    """One, or several in order."""

    def forbid(token: int) -> Callable[[Any, Any], Any]:
        return lambda ids, scores: scores.index_fill(1, torch.tensor([token]), -math.inf)

    options: dict[str, Any] = {"max_new_tokens": 40, "budget": budget, "eos_token_id": None}
    for tokens in (expected[:1], expected[:3]):
        given = [forbid(token) for token in tokens]
        biased = td.generate(model, PROMPT, logit_bias=dict.fromkeys(tokens, -math.inf), **options)[0]
        (generation,) = td.generate(
            model, PROMPT, logits_processor=given if len(given) > 1 else given[0], **options
        )
        assert generation.token_ids == biased.token_ids != expected[:40]


@pytest.mark.parametrize("budget", [0, 6])
def test_logprobs_come_with_their_tokens(model: LoadedModel, expected: list[int], budget: int) -> None:
    """One per token, in the pieces too, and cut where a stop string cuts."""
    options: dict[str, Any] = {"max_new_tokens": 80, "budget": budget, "eos_token_id": None}
    assert td.generate(model, PROMPT, **options)[0].logprobs is None
    stop = re.findall("[!-~]{2}", model.tokenizer.decode(expected))[-2]
    running = td.stream(model, PROMPT, logprobs=2, stop=stop, **options)
    pieces = [token for chunk in running for token in chunk.logprobs or []]
    generation = running.generation
    assert generation.logprobs == pieces
    assert [token.token_id for token in pieces] == generation.token_ids == expected[: len(pieces)]
    assert all(token.top_ids[0] == token.token_id for token in pieces)  # greedy
    assert all(token.top_logprobs[0] == token.logprob for token in pieces)


@pytest.mark.parametrize("budget", [0, 6])
def test_min_tokens_holds_for_stop_tokens_and_strings(
    model: LoadedModel, expected: list[int], budget: int
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 80, "budget": budget, "min_tokens": 30}
    (generation,) = td.generate(model, PROMPT, eos_token_id=expected[10], **options)
    assert expected[10] not in generation.token_ids[:30]
    text = model.tokenizer.decode(expected)
    early = next(
        word
        for word in re.findall("[!-~]{2}", model.tokenizer.decode(expected[:30]))
        if word not in model.tokenizer.decode(expected[28:])
    )
    (generation,) = td.generate(model, PROMPT, stop=early, eos_token_id=None, **options)
    assert (generation.token_ids, generation.text) == (expected, text)


def test_pieces_add_up(model: LoadedModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 80, "budget": 6, "eos_token_id": None, "stop": "zz"}
    (whole,) = td.generate(model, PROMPT, **options)
    running = stream(model, PROMPT, **options)
    token_ids, text = [], ""
    for chunk in running:
        token_ids += chunk.token_ids
        text += chunk.text
        so_far = running.generation  # may be looked at any time
        assert so_far.token_ids == token_ids
        assert so_far.text.startswith(text)
    assert (token_ids, text) == (whole.token_ids, whole.text)
    assert running.generation.finish_reason == whole.finish_reason
    with pytest.raises(StopIteration):
        next(running)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_interrupted_stream_keeps_what_it_has(model: LoadedModel, expected: list[int], taken: int) -> None:
    running = stream(model, PROMPT, max_new_tokens=80, budget=4, eos_token_id=None)
    chunks = [next(running) for _ in range(taken)]
    running.close()
    generation = running.generation
    count = sum(len(chunk.token_ids) for chunk in chunks)
    assert generation.finish_reason == "interrupted"
    assert generation.token_ids == expected[:count]
    assert generation.text == model.tokenizer.decode(expected[:count])
    assert generation.stats.num_emitted == count
    with pytest.raises(StopIteration):
        next(running)


def test_an_error_inside_a_stream_leaves_a_generation(model: LoadedModel, expected: list[int]) -> None:
    """As Ctrl-C does: the exception passes, what came before it stays."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    running = stream(model, PROMPT, max_new_tokens=80, budget=4, eos_token_id=None, observer=interrupt)
    next(running)
    with pytest.raises(KeyboardInterrupt):
        next(running)
    generation = running.generation
    assert (generation.token_ids, generation.finish_reason) == (expected[:1], "interrupted")


def test_second_call_equals_a_fresh_one(model: LoadedModel, folder: Path) -> None:
    """CASES 16: the first call leaves nothing behind, and neither does one that was closed early."""
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0.8, "seed": 2, "eos_token_id": None}
    first = td.generate(model, PROMPT, **options)[0].token_ids
    td.generate(model, "the end" * 9, max_new_tokens=30)
    running = stream(model, "then", **options)
    next(running)
    running.close()
    assert td.generate(model, PROMPT, **options)[0].token_ids == first
    fresh = load(folder, dtype=torch.float64)
    assert td.generate(fresh, PROMPT, **options)[0].token_ids == first


def test_prompts_up_to_the_longest_sequence(model: LoadedModel) -> None:
    """CASES 9."""
    for left in (0, 1, 2):
        (generation,) = td.generate(model, [1] * (LIMIT - left), max_new_tokens=9, eos_token_id=None)
        assert (len(generation.token_ids), generation.finish_reason) == (left, "length")


def test_budget_zero_makes_no_drafter(model: LoadedModel, expected: list[int]) -> None:
    """CASES 34: not even looked at."""

    class Bomb:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"budget 0 must not touch {name}")

    bomb: Any = Bomb()
    (generation,) = td.generate(model, PROMPT, max_new_tokens=9, budget=0, drafter=bomb, eos_token_id=None)
    assert generation.token_ids == expected[:9]


def test_a_trace_tells_every_step(model: LoadedModel, expected: list[int], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with td.TraceWriter(path) as trace:
        (generation,) = td.generate(
            model, PROMPT, max_new_tokens=30, budget=5, eos_token_id=None, trace=trace
        )
    header, *steps = [json.loads(line) for line in path.read_text().splitlines()]
    assert header["prompt_ids"] == model.tokenizer(PROMPT)["input_ids"]
    assert generation.token_ids == expected[:30]
    assert [token for step in steps for token in step["emitted_ids"]] == expected[1:30]
    assert len(steps) == generation.stats.num_steps
    for step in steps:
        assert len(step["parents"]) == len(step["token_ids"]) == len(step["top_ids"])
        assert [step["top_ids"][node][0] for node in step["path"]] == step["emitted_ids"]
        assert all(logprob <= 0 for row in step["top_logprobs"] for logprob in row)


def chain(*token_ids: int) -> Any:
    return DraftTree(TreeShape.chain(len(token_ids) - 1), list(token_ids))


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"budget": -1}, ValueError, "budget must be at least 0, got -1"),
    ({"budget": 10**9}, ValueError, "budget must be at most 1024, got 1000000000"),
    ({"budget": 2.0}, TypeError, "budget must be an integer, got 2.0"),
    ({"budget": True}, TypeError, "budget must be an integer, got True"),
    ({"budget": "lots"}, TypeError, "budget must be an integer, got 'lots'; or \"auto\""),
    ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be at least 0, got -1"),
    ({"max_new_tokens": 1.5}, TypeError, "max_new_tokens must be an integer, got 1.5"),
    ({"max_new_tokens": None}, TypeError, "max_new_tokens must be an integer, got None"),
    ({"temperature": -0.5}, ValueError, "temperature must be at least 0, got -0.5"),
    ({"temperature": math.nan}, ValueError, "temperature must be at least 0, got nan"),
    ({"temperature": "hot"}, TypeError, "temperature must be a number, got 'hot'"),
    ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
    ({"top_p": 0}, ValueError, "top_p must be above 0 and at most 1, got 0"),
    ({"top_p": 2}, ValueError, "top_p must be above 0 and at most 1, got 2"),
    ({"min_p": -0.1}, ValueError, "min_p must be at least 0 and at most 1, got -0.1"),
    ({"repetition_penalty": 0}, ValueError, "repetition_penalty must be above 0, got 0"),
    ({"frequency_penalty": 3}, ValueError, "frequency_penalty must be at least -2 and at most 2, got 3"),
    ({"logit_bias": {10**6: 1}}, ValueError, "logit_bias token ids must be at most .*, got 1000000"),
    ({"bad_words": [""]}, ValueError, r"bad_words must be one or more non-empty strings, got \[''\]"),
    ({"bad_words": 3}, TypeError, "bad_words must be one or more non-empty strings, got 3"),
    ({"bad_words_ids": [[10**6]]}, ValueError, "bad_words_ids token ids must be at most .*, got 1000000"),
    ({"min_tokens": -1}, ValueError, "min_tokens must be at least 0, got -1"),
    ({"logprobs": -1}, ValueError, "logprobs must be at least 0, got -1"),
    ({"logprobs": 10**6}, ValueError, "logprobs must be at most .*, got 1000000"),
    ({"logprobs": True}, TypeError, "logprobs must be an integer, got True"),
    ({"logits_processor": 3}, TypeError, "logits_processor must be one or more functions .*, got 3"),
    ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    ({"seed": 1.0}, TypeError, "seed must be an integer, got 1.0"),
    ({"stop": ""}, ValueError, "stop must be one or more non-empty strings, got ''"),
    ({"stop": ["a", ""]}, ValueError, "stop must be one or more non-empty strings"),
    ({"stop": ["a", 3]}, TypeError, "stop must be one or more non-empty strings"),
    ({"stop": 3}, TypeError, "stop must be one or more non-empty strings, got 3"),
    ({"eos_token_id": "x"}, TypeError, "eos_token_id must be an integer, got 'x'"),
    ({"eos_token_id": -3}, ValueError, "eos_token_id must be at least 0, got -3"),
    ({"drafter": "psychic"}, ValueError, "drafter must be one of merged, .*, got 'psychic'"),
    ({"drafter": 3}, TypeError, "a drafter must have name, begin"),
    ({"drafter": None}, TypeError, "a drafter must have name, begin.*, got NoneType"),
    ({"drafter": "psychic", "budget": 0}, ValueError, "drafter must be one of merged, .*, got 'psychic'"),
    ({"budget": np.array([3, 4])}, TypeError, r"budget must be an integer, got \[3, 4\]"),
    ({"eos_token_id": b"ab"}, TypeError, "eos_token_id must be one or more integers, got b'ab'"),
    ({"eos_token_id": np.array([1.0, 2.0])}, TypeError, "eos_token_id must be an integer, got 1.0"),
    ({"bad_words_ids": [b"ab"]}, TypeError, "must be a sequence of token ids, got b'ab'"),
    ({"stop": "\udcff"}, ValueError, "stop must be Unicode text: character 0"),
    ({"trace": "x.jsonl"}, TypeError, "trace must be a treedecode.TraceWriter, got 'x.jsonl'"),
    ({"observer": 3}, TypeError, "observer must be a function .*, got 3"),
]


@pytest.mark.parametrize(("options", "error", "words"), BAD)
def test_bad_options_are_named(
    model: LoadedModel, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        td.stream(model, PROMPT, **options)
    with pytest.raises(error, match=words):
        td.generate(model, [PROMPT, PROMPT], **options)


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", ValueError, "the prompt is empty"),
        ([[]], ValueError, "the prompt is empty: expected at least one token"),
        ([[1, 10**6]], ValueError, "prompt token ids must be at most .*, got 1000000"),
        ([[1, -1]], ValueError, "prompt token ids must be at least 0, got -1"),
        ([[1.0]], TypeError, "prompt token ids must be an integer, got 1.0"),
        ([[True]], TypeError, "prompt token ids must be an integer, got True"),
        ([["a"]], TypeError, "prompt token ids must be an integer, got 'a'"),
        ([[1] * (LIMIT + 1)], ValueError, "the prompt has 257 tokens, the model allows at most 256"),
        (["fine", ""], ValueError, "the prompt is empty"),
        ([5, [1]], TypeError, r"prompt token ids must be an integer, got \[1\]"),
        (None, TypeError, "prompts must be text or a sequence of token ids, got None"),
        (3, TypeError, "prompts must be text or a sequence of token ids, got 3"),
        (b"abc", TypeError, "prompts must be text or a sequence of token ids, got b'abc'"),
        ([b"abc"], TypeError, "a prompt must be text or a sequence of token ids, got b'abc'"),
        ([bytearray(b"abc")], TypeError, "a prompt must be text or a sequence of token ids, got bytearray"),
        ({1, 2}, TypeError, "prompts must be text or a sequence of token ids, got {1, 2}"),
        ({"a": 1}, TypeError, "prompts must be text or a sequence of token ids, got {'a': 1}"),
        (torch.tensor([1.0, 2.0]), TypeError, "prompt token ids must be an integer, got 1.0"),
        ("a\udcff", ValueError, "the prompt must be Unicode text: character 1 is the lone surrogate"),
    ],
)
def test_bad_prompts_are_named(model: LoadedModel, prompt: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        td.generate(model, prompt, max_new_tokens=3)


@pytest.mark.parametrize("wrap", [np.array, torch.tensor])
def test_arrays_and_tensors_are_token_ids(model: LoadedModel, wrap: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": None}
    expected = [made.token_ids for made in td.generate(model, [[1, 2, 3], [4]], **options)]

    def said(prompts: Any, **changes: Any) -> list[list[int]]:
        return [made.token_ids for made in td.generate(model, prompts, **(options | changes))]

    assert said(wrap([1, 2, 3])) == said([wrap(token) for token in (1, 2, 3)]) == expected[:1]
    assert said([wrap([1, 2, 3]), wrap([4])]) == expected
    assert said(wrap([[1, 2, 3], [1, 2, 3]])) == expected[:1] * 2
    stop = expected[0][2]
    assert said([1, 2, 3], eos_token_id=wrap([stop]))[0][-1] == stop


def test_models_are_checked() -> None:
    with pytest.raises(TypeError, match=r"model must be what treedecode.load returns, got 'default'"):
        td.stream("default", PROMPT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompts", "options"),
    [
        (PROMPT, {"stop": ""}),
        (PROMPT, {"drafter": "psychic"}),
        (PROMPT, {"logits_processor": [lambda: None]}),
        ([PROMPT, PROMPT], {}),
        ("", {}),
    ],
)
def test_what_is_refused_replaces_no_trace(
    model: LoadedModel, tmp_path: Path, prompts: Any, options: dict[str, Any]
) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text("old")
    with td.TraceWriter(path) as trace, pytest.raises((ValueError, TypeError)):
        td.generate(model, prompts, trace=trace, **options)
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda context: chain(context.token_ids[-1] ^ 1, 3), ValueError, "'fixed' must root its tree"),
        (
            lambda context: chain(context.token_ids[-1], 10**6),
            ValueError,
            "'fixed' proposed token 1000000, the target's vocabulary has .* must share one vocabulary",
        ),
        (lambda context: None, TypeError, "'fixed' must propose a DraftTree, got NoneType"),
    ],
)
def test_bad_drafters_are_named(model: LoadedModel, make: Any, error: type[Exception], words: str) -> None:
    """CASES 35 among them."""
    with pytest.raises(error, match=words):
        td.generate(model, PROMPT, max_new_tokens=9, drafter=Fixed(make), budget=4, eos_token_id=None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "abacus"}, "device 'abacus' is not available here"),
        ({"dtype": "float33"}, "dtype must be float32, .*, got 'float33'"),
        ({"dtype": torch.int64}, "dtype must be float32, .*, got torch.int64"),
        ({"dtype": "float8_e4m3fn"}, "dtype must be float32, .*, got 'float8_e4m3fn'"),
        ({"device": "meta"}, "device must be one that computes, .*, got 'meta'"),
        ({"implementation": "fast"}, "implementation must be .*, got 'fast'"),
    ],
)
def test_bad_load_options_are_named(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load(folder, **options)


def test_folders_that_hold_no_model_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(td.ModelNotFoundError):
        load(tmp_path / "nowhere")
    byte_level().save_pretrained(tmp_path)
    with pytest.raises(td.ModelNotFoundError):
        load(tmp_path)
    only_weights = tmp_path / "weights"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(only_weights)
    with pytest.raises(td.ModelNotFoundError, match="tokenizer"):
        load(only_weights)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_autocast_is_refused(folder: Path, implementation: Any, batch: int) -> None:
    """Tokens of products in another dtype than the weights' are those of no plain decoding of ours."""
    model = load(folder, implementation=implementation)
    prompts, options = [PROMPT] * batch, {"max_new_tokens": 12, "eos_token_id": None}
    expected = td.generate(model, prompts, **options)
    running = td.stream_batch(model, prompts, **options)
    next(running)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(
            ValueError, match=r"no torch.autocast for cpu, got one to bfloat16; .*dtype=\"bfloat"
        ):
            td.generate(model, prompts, **options)
        with pytest.raises(ValueError, match=r"torch\.autocast"):
            for _ in running:  # entered between the steps
                pass
        with pytest.raises(ValueError, match=r"torch\.autocast"):
            load(folder, implementation=implementation)
        with torch.autocast("cpu", enabled=False):
            inside = td.generate(model, prompts, **options)
    assert [one.token_ids for one in inside] == [one.token_ids for one in expected]


@pytest.mark.parametrize("dense", [1, "yes", None, np.True_])
def test_dense_is_a_truth_value(model: LoadedModel, tmp_path: Path, dense: Any) -> None:
    """Anything else would stand in the header of a trace that replay then refuses."""
    with td.TraceWriter(tmp_path / "trace") as trace, pytest.raises(TypeError, match="dense must be True or"):
        td.generate(model, PROMPT, trace=trace, dense=dense)
    assert not (tmp_path / "trace").exists()
