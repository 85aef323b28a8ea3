"""``generate`` and ``stream_batch`` over several prompts: a tiny Llama with a tokenizer, float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import treedecode as td
from tests.engines.tokenizers import END
from treedecode.engines import guidance

PROMPTS = ["the end, then the café and the end", "then", "the the the the the the", "and the end of it", "é"]
OPTIONS: dict[str, Any] = {"max_new_tokens": 30, "eos_token_id": None}


def alone(model: td.LoadedModel, prompt: Any, **options: Any) -> td.Generation:
    """One prompt by itself, plainly."""
    (generation,) = td.generate(model, [prompt], **OPTIONS | {"budget": 0} | options)
    return generation


def same(one: td.Generation, other: td.Generation) -> bool:
    return (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)


@pytest.mark.parametrize("batch_size", [None, 1, 2, 5, 99])
@pytest.mark.parametrize("budget", [0, 6, "auto"])
def test_outputs_are_those_of_single_prompts(model: td.LoadedModel, budget: Any, batch_size: Any) -> None:
    got = td.generate(model, PROMPTS, batch_size=batch_size, budget=budget, **OPTIONS)
    for generation, prompt in zip(got, PROMPTS, strict=True):
        assert same(generation, alone(model, prompt))
        stats = generation.stats
        assert 1 + sum(stats.emitted_per_step) == stats.num_emitted == len(generation.token_ids)
        assert stats.num_forward_passes == stats.num_steps + 1
        assert stats.decode_ms > 0 < stats.prefill_ms
    assert td.generate(model, [], batch_size=batch_size) == []


def test_a_batch_takes_fewer_passes(model: td.LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = type(model.target).forward_batch

    def forward_batch(self: Any, steps: Any, caches: Any) -> Any:
        calls.append(len(steps))
        return original(self, steps, caches)

    monkeypatch.setattr(type(model.target), "forward_batch", forward_batch)
    td.generate(model, PROMPTS, budget=0, **OPTIONS)
    assert calls == [1] * 5 + [5] * 29  # 16 at once is what nobody asks for
    calls.clear()
    td.generate(model, PROMPTS, batch_size=1, budget=0, **OPTIONS)
    assert calls == [1] * 5 * 30


def test_options_by_prompt(model: td.LoadedModel) -> None:
    """CASES 22, through the public door."""
    own = {
        "max_new_tokens": [30, 1, 0, 7, 12],
        "temperature": [0, 1.0, 0, 0.5, 0.8],
        "top_k": (None, 9, None, None, 20),
        "top_p": [None, None, 1.0, 0.9, None],
        "min_p": [None, None, None, None, 0.01],
        "repetition_penalty": [None, None, 1.2, None, 1.1],
        "seed": [0, 1, 2, 3, 4],
        "drafter": ["merged", "suffix", "recycling", "prompt-lookup", "merged"],
    }
    got = td.generate(model, PROMPTS, batch_size=3, budget=6, eos_token_id=None, **own)
    for place, (generation, prompt) in enumerate(zip(got, PROMPTS, strict=True)):
        options = {name: values[place] for name, values in own.items()}
        assert same(generation, alone(model, prompt, **options)), place


def test_log_probabilities_and_grammars_of_rows(model: td.LoadedModel) -> None:
    """Rows that need all logits beside those that do not, and a grammar that follows every row's own path."""
    grammar = "(the|end)( the| end){1,4}"
    for options in ({"logprobs": 2}, {"grammar": grammar, "logprobs": 1, "temperature": [0, 0.8, 0, 1.2, 0]}):
        own = [{n: v[i] if isinstance(v, list) else v for n, v in options.items()} for i in range(5)]
        got = td.generate(model, PROMPTS, batch_size=3, budget=6, **OPTIONS | {"eos_token_id": END} | options)
        for generation, prompt, single in zip(got, PROMPTS, own, strict=True):
            expected = alone(model, prompt, eos_token_id=END, **single)
            assert same(generation, expected)
            assert generation.logprobs and expected.logprobs
            for one, other in zip(generation.logprobs, expected.logprobs, strict=True):
                assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
                assert one.top_ids == other.top_ids


def test_stop_strings_end_rows_of_their_own(model: td.LoadedModel) -> None:
    """CASES 26: text and tokens end in the middle of a step, and the slot goes to the next prompt."""
    whole = [alone(model, prompt) for prompt in PROMPTS]
    stop = [whole[0].text[8:10], whole[3].text[3:5]]
    expected = [alone(model, prompt, stop=stop) for prompt in PROMPTS]
    assert {one.finish_reason for one in expected} == {"stop", "length"}
    for budget in (0, 8):
        got = td.generate(model, PROMPTS, batch_size=2, budget=budget, stop=stop, **OPTIONS)
        assert all(map(same, got, expected))


def test_pieces_come_as_they_are_made_and_add_up(model: td.LoadedModel) -> None:
    running = td.stream_batch(model, PROMPTS, batch_size=3, budget=6, **OPTIONS)
    token_ids: list[list[int]] = [[] for _ in PROMPTS]
    texts, order = [""] * len(PROMPTS), []
    for index, chunk in running:
        order.append(index)
        token_ids[index] += chunk.token_ids
        texts[index] += chunk.text
        assert running.generations[index].token_ids == token_ids[index]
    assert order[:6] == [0, 1, 2, 0, 1, 2]  # prompts first, then one step after the other
    expected = [alone(model, prompt) for prompt in PROMPTS]
    assert (token_ids, texts) == ([one.token_ids for one in expected], [one.text for one in expected])
    assert all(map(same, running.generations, expected))
    with pytest.raises(StopIteration):
        next(running)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_what_is_interrupted_keeps_what_is_finished(model: td.LoadedModel, batch_size: int) -> None:
    """As Ctrl-C does in the caller's loop: finished prompts are whole, the others as far as they came."""
    running = td.stream_batch(model, PROMPTS, batch_size=batch_size, budget=0, **OPTIONS)
    for index, _ in running:
        if index == 2:
            break
    running.close()
    got, expected = running.generations, [alone(model, prompt) for prompt in PROMPTS]
    assert same(got[0], expected[0]) and same(got[1], expected[1])
    assert [one.finish_reason for one in got[2:]] == ["interrupted"] * 3
    assert [one.token_ids for one in got[2:]] == [expected[2].token_ids[:1], [], []]
    with pytest.raises(StopIteration):
        next(running)


def test_what_follows_one_request_runs_one_at_a_time(model: td.LoadedModel) -> None:
    seen: list[int] = []
    got = td.generate(model, PROMPTS[:2], observer=lambda *step: seen.append(step[3]), budget=0, **OPTIONS)
    assert same(got[1], alone(model, PROMPTS[1]))
    lengths = [len(model.tokenizer(prompt)["input_ids"]) for prompt in PROMPTS[:2]]
    assert seen == [first + step for first in lengths for step in range(29)]
    drafter = td.make_drafter("suffix")
    got = td.generate(model, PROMPTS, drafter=drafter, budget=4, **OPTIONS)
    assert same(got[4], alone(model, PROMPTS[4]))
    got = td.generate(model, PROMPTS[:2], drafter=[drafter, "merged"], batch_size=2, budget=4, **OPTIONS)
    assert same(got[1], alone(model, PROMPTS[1]))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.0}, TypeError, r"batch_size must be an integer, got 2\.0"),
        ({"seed": [1, 2]}, ValueError, "seed must be one value or one per prompt: expected 5, got 2"),
        ({"temperature": [0, 0, 0, 0, -1]}, ValueError, "temperature must be at least 0, got -1"),
        ({"batch_size": 2, "observer": print}, ValueError, r"observer follows one.*expected batch_size=1"),
        ({"batch_size": 2, "dense": True}, ValueError, r"dense follows one request.*, got 2"),
        (
            {"batch_size": 2, "drafter": td.make_drafter("suffix")},
            ValueError,
            "a drafter object follows one request at a time",
        ),
        (
            {"drafter": ["suffix"] * 4},
            ValueError,
            "drafter must be one value or one per prompt: expected 5, got 4",
        ),
    ],
)
def test_bad_options_are_named(
    model: td.LoadedModel, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        td.generate(model, PROMPTS, **options)


def test_one_drafter_given_twice_is_refused(model: td.LoadedModel) -> None:
    drafter = td.make_drafter("suffix")
    with pytest.raises(ValueError, match=r"one request at a time.*prompts 0 and 1"):
        td.generate(model, PROMPTS[:2], drafter=[drafter, drafter])


@pytest.mark.parametrize("batch_size", [None, 1])
def test_an_exception_says_which_prompt_it_is_about(model: td.LoadedModel, batch_size: Any) -> None:
    """Of what judges a prompt's rows, in any step, and of the prompt itself."""
    long = model.tokenizer(PROMPTS[2])["input_ids"]

    def late(input_ids: Any, scores: Any) -> Any:
        if input_ids[0, : len(long)].tolist() == long and input_ids.shape[1] > len(long) + 2:
            raise ZeroDivisionError("too late")
        return scores

    options = OPTIONS | {"batch_size": batch_size, "budget": 0}
    with pytest.raises(ZeroDivisionError, match="too late") as caught:
        td.generate(model, PROMPTS, logits_processor=late, **options)
    assert caught.value.__notes__ == ["This was prompt 2 of the batch."]
    with pytest.raises(ValueError, match="the prompt is empty") as empty:
        td.generate(model, ["the", ""], **options)
    assert empty.value.__notes__ == ["This was prompt 1 of the batch."]


@pytest.mark.parametrize("prompts", [[], PROMPTS])
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temperature": -1}, ValueError, "temperature must be at least 0, got -1"),
        ({"drafter": "psychic"}, ValueError, "drafter must be one of"),
        ({"grammar": "("}, ValueError, "the grammar is not valid"),
        ({"grammar": "a+", "eos_token_id": None}, ValueError, "a grammar ends with a stop token"),
        ({"logit_bias": {9999: 1.0}}, ValueError, "logit_bias token ids must be at most"),
        ({"dense": 1}, TypeError, "dense must be True or False, got 1"),
        ({"trace": "trace.jsonl"}, TypeError, "trace must be a treedecode.TraceWriter"),
        ({"colour": "red"}, TypeError, "colour"),
    ],
)
def test_what_all_prompts_share_is_no_fault_of_one(
    model: td.LoadedModel, prompts: list[str], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    """And is refused where there is no prompt at all."""
    with pytest.raises(error, match=words) as caught:
        td.generate(model, prompts, **options)
    assert not hasattr(caught.value, "__notes__")


def test_options_of_no_prompt(model: td.LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seed must be one value or one per prompt: expected 0, got 1"):
        td.generate(model, [], seed=[1])
    with pytest.raises(ValueError, match="holds one generation: expected one prompt, got 0"):
        td.generate(model, [], trace=td.TraceWriter(tmp_path / "trace"))
    with pytest.raises(TypeError, match=r"model must be what treedecode\.load returns"):
        td.generate("default", [], grammar="a")  # type: ignore[arg-type]
    assert td.generate(model, [], seed=[], temperature=[], grammar="a+") == []


def test_a_value_of_one_prompt_is_its_own_fault(model: td.LoadedModel) -> None:
    with pytest.raises(ValueError, match="temperature must be at least 0") as caught:
        td.generate(model, PROMPTS, temperature=[0, 0, 0, -1, 0])
    assert caught.value.__notes__ == ["This was prompt 3 of the batch."]


def test_a_grammar_is_compiled_once(model: td.LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    original = guidance.LLGuidanceGrammar

    def counted(*args: Any) -> Any:
        compiled.append(args)
        return original(*args)

    monkeypatch.setattr(guidance, "LLGuidanceGrammar", counted)
    options: dict[str, Any] = {"grammar": "(the|end)( the| end){1,4}", "max_new_tokens": 20}
    together = td.generate(model, PROMPTS, **options)
    assert len(compiled) == 1
    assert all(
        same(one, td.generate(model, p, **options)[0]) for one, p in zip(together, PROMPTS, strict=True)
    )
