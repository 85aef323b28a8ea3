"""``treedecode generate`` on a tiny model: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from transformers import AutoTokenizer

import treedecode as td
from treedecode.trace import read_trace

PROMPT = "the tree"


@pytest.fixture
def generate(run, tiny):
    def generate(*args, stdin=None):
        return run("generate", "--model", tiny, "--max-new-tokens", 24, *args, stdin=stdin)

    return generate


def test_text_to_stdout_numbers_to_stderr(generate, tiny):
    ran = generate(PROMPT)
    (expected,) = td.generate(td.load(str(tiny)), PROMPT, max_new_tokens=24)
    assert (ran.code, ran.out) == (0, expected.text + "\n")
    closing = ran.err.splitlines()[-1]
    assert closing.startswith("24 tokens (length), ")
    for word in ("tokens/s", "E[L]", "forward passes", "drafted", "accepted"):
        assert word in closing


def test_the_prompt_may_come_from_anywhere(generate, tmp_path):
    expected = generate(PROMPT).out
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT + "\n")
    assert generate("--file", file).out == expected
    assert generate("--file", "-", stdin=PROMPT.encode()).out == expected
    assert generate(stdin=f"{PROMPT}\n".encode()).out == expected


def test_only_one_line_break_is_dropped(generate):
    for given in (b"the\n\n", b"the\n\r\n"):
        assert json.loads(generate("--json", stdin=given).out)["prompt"] == "the\n"


def test_line_breaks_of_windows_are_one_line_break(generate, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"the\r\n")
    assert json.loads(generate("--json", "--file", file).out)["prompt"] == "the"


def test_json(generate):
    ran = generate("--json", "--seed", 5, "--temperature", 0.5, "--stop", "zz", PROMPT)
    found = json.loads(ran.out)
    assert ran.code == 0
    assert len(found["token_ids"]) == found["stats"]["num_emitted"] == 24
    assert found["finish_reason"] == "length"
    assert found["prompt"] == PROMPT
    assert found["options"]["seed"] == 5
    assert found["options"]["stop"] == ["zz"]
    assert found["comparison"] is None
    assert {"tokens_per_s", "total_ms", "mean_emitted_per_step"} <= found["stats"].keys()


def test_constraints(generate, tiny):
    plain = json.loads(generate("--json", PROMPT).out)["token_ids"]
    flags = ["--frequency-penalty", 1.5, "--presence-penalty", 0.5, "--bad-word", "ab", "--min-tokens", 9]
    flags += ["--logit-bias", f"{plain[0]}=-inf", "--logit-bias", "7=0.5"]
    ran = generate("--compare", "--json", "--budget", 8, *flags, PROMPT)
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["token_ids"] != plain
    assert plain[0] not in found["token_ids"]
    (expected,) = td.generate(
        td.load(str(tiny)), PROMPT, max_new_tokens=24, budget=0, frequency_penalty=1.5, presence_penalty=0.5,
        logit_bias={plain[0]: float("-inf"), 7: 0.5}, bad_words=["ab"], min_tokens=9,
    )  # fmt: skip
    assert found["token_ids"] == expected.token_ids


@pytest.mark.parametrize("flag", ["--regex", "--grammar", "--json-schema"])
def test_grammars(generate, tmp_path, flag):
    text = {
        "--regex": "(ab|cd){1,3}",
        "--grammar": 'start: "ab" "cd"?',
        "--json-schema": '{"enum": ["ab", "cd"]}',
    }[flag]
    file = tmp_path / "grammar"
    file.write_text(text)
    ran = generate("--compare", "--json", flag, text if flag == "--regex" else file, PROMPT)
    found = json.loads(ran.out)
    assert ran.code == 0
    assert re.fullmatch('"?(ab|cd)+"?', found["text"])
    assert found["finish_reason"] == "stop"
    assert found["options"]["grammar"] == {
        "kind": {"--regex": "regex", "--grammar": "ebnf"}.get(flag, "json"),
        "text": text,
    }


def test_logprobs(generate):
    assert json.loads(generate("--json", PROMPT).out)["logprobs"] is None
    found = json.loads(generate("--json", "--logprobs", 2, PROMPT).out)
    assert [token["token_id"] for token in found["logprobs"]] == found["token_ids"]
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] < 0 for token in found["logprobs"])


@pytest.mark.parametrize("sampling", [(), ("--temperature", 1, "--top-k", 20, "--seed", 3)])
def test_compare(generate, sampling):
    ran = generate("--compare", "--budget", 8, *sampling, PROMPT)
    trees, plain, verdict = ran.err.splitlines()[-3:]
    assert ran.code == 0
    assert trees.startswith("trees: 24 tokens")
    assert plain.startswith("plain: 24 tokens")
    assert "E[L] 1.00, 0 drafted" in plain
    assert verdict.startswith("identical output, ")
    assert verdict.endswith("x the speed of plain decoding")
    comparison = json.loads(generate("--compare", "--json", PROMPT).out)["comparison"]
    assert comparison["identical"] is True
    assert comparison["first_difference"] is None
    assert comparison["speed_ratio"] > 0
    assert comparison["plain"]["stats"]["num_drafted"] == 0


def test_compare_fails_where_the_output_differs(generate, monkeypatch):
    stream = td.stream
    # a broken tree decoder: it continues another prompt
    monkeypatch.setattr(td, "stream", lambda m, p, **o: stream(m, "ab" if o["budget"] else p, **o))
    ran = generate("--compare", PROMPT)
    assert ran.code == 1
    assert "NOT identical: output token 0 is the first that differs" in ran.err
    comparison = json.loads(generate("--compare", "--json", PROMPT).out)["comparison"]
    assert (comparison["identical"], comparison["first_difference"]) == (False, 0)


def test_compare_fails_where_one_output_goes_on(generate, monkeypatch):
    stream = td.stream

    def ends_early_with_trees(model, prompt, **options):
        return stream(model, prompt, **{**options, "max_new_tokens": 20 if options["budget"] else 24})

    monkeypatch.setattr(td, "stream", ends_early_with_trees)
    ran = generate("--compare", PROMPT)
    assert ran.code == 1
    assert "output token 20 is the first" in ran.err


def test_too_short_to_compare_speeds(generate):
    ran = generate("--compare", "--max-new-tokens", 1, PROMPT)
    assert ran.code == 0
    assert "identical output, too short to compare speeds" in ran.err


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_tokens(generate, count):
    ran = generate("--max-new-tokens", count, "--json", PROMPT)
    assert ran.code == 0
    assert len(json.loads(ran.out)["token_ids"]) == count


def test_trace(generate, tmp_path):
    path = tmp_path / "trace.jsonl"
    found = json.loads(generate("--json", "--compare", "--trace", path, PROMPT).out)
    trace = read_trace(path)
    assert trace.header["settings"]["max_new_tokens"] == 24
    emitted = [trace.steps[0].token_ids[0], *(token for step in trace.steps for token in step.emitted_ids)]
    assert emitted == found["token_ids"]
    assert sum(len(step.parents) - 1 for step in trace.steps) == found["stats"]["num_drafted"]


@pytest.fixture
def instruct(tiny, tmp_path):
    folder = tmp_path / "instruct"
    shutil.copytree(tiny, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{{ bos_token }}a{% for m in messages %}{{ m.content }}{% endfor %}b"
    tokenizer.save_pretrained(folder)
    return folder


def test_chat_templates(run, instruct, tiny):
    args = ("generate", "--json", "--max-new-tokens", 8)
    templated = json.loads(run(*args, "--model", instruct, "bc").out)
    by_hand = json.loads(run(*args, "--model", tiny, "abcb").out)
    raw = json.loads(run(*args, "--model", instruct, "--raw", "bc").out)
    plain = json.loads(run(*args, "--model", tiny, "bc").out)
    assert templated["token_ids"] == by_hand["token_ids"]
    assert raw["token_ids"] == plain["token_ids"]
    assert templated["stats"]["num_prompt_tokens"] == by_hand["stats"]["num_prompt_tokens"]


class Interrupted:
    """A stream that Ctrl-C hits after some chunks."""

    def __init__(self, running, num_chunks):
        self._running, self._left = running, num_chunks
        self.close = running.close

    def __iter__(self):
        return self

    def __next__(self):
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        return next(self._running)

    @property
    def generation(self):
        return self._running.generation


def test_ctrl_c_keeps_what_there_is(generate, monkeypatch):
    stream = td.stream
    whole = generate(PROMPT).out
    monkeypatch.setattr(td, "stream", lambda *a, **o: Interrupted(stream(*a, **o), 4))
    ran = generate("--compare", "--budget", 2, PROMPT)
    assert ran.code == 130
    assert len(ran.out) > 1
    assert whole.startswith(ran.out.removesuffix("\n"))
    assert "tokens (interrupted)" in ran.err.splitlines()[-1]
    found = json.loads(generate("--json", PROMPT).out)
    assert found["finish_reason"] == "interrupted"
    assert whole.startswith(found["text"])


def test_ctrl_c_while_comparing(generate, monkeypatch):
    stream = td.stream
    monkeypatch.setattr(
        td, "stream", lambda *a, **o: stream(*a, **o) if o["budget"] else Interrupted(stream(*a, **o), 2)
    )
    ran = generate("--compare", PROMPT)
    assert ran.code == 130
    assert ran.err.splitlines()[-1].startswith("24 tokens (length)")


PROMPTS = ["the tree", "a", "tree of the tree of", "the"]


@pytest.mark.parametrize("flags", [(), ("--batch-size", 1), ("--batch-size", 2, "--budget", 0)])
def test_several_prompts(generate, tiny, tmp_path, flags):
    """From arguments and from a file, each as alone, in order."""
    expected = [td.generate(td.load(str(tiny)), prompt, max_new_tokens=24)[0].text for prompt in PROMPTS]
    ran = generate(*flags, *PROMPTS)
    assert ran.code == 0
    assert ran.out == "".join(f"--- {i} of 4\n{text}\n" for i, text in enumerate(expected, 1))
    assert ran.err.splitlines()[-1].startswith("4 of 4 outputs (4 length), 96 tokens in ")
    file = tmp_path / "prompts.jsonl"
    lines = [json.dumps(PROMPTS[0]), "", *(json.dumps({"prompt": text, "id": 7}) for text in PROMPTS[1:])]
    file.write_text("\ufeff" + "\r\n".join(lines) + "\n", "utf-8")
    ran = generate(*flags, "--json", "--seed", 3, "--file", file)
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [one["index"] for one in found] == [0, 1, 2, 3]
    assert [one["prompt"] for one in found] == PROMPTS
    assert [one["text"] for one in found] == expected
    assert all(one["options"]["seed"] == 3 and one["comparison"] is None for one in found)
    file.write_text(json.dumps(PROMPTS[0]))
    assert generate("--file", file).out == expected[0] + "\n"


class InterruptedBatch:
    """A batch during which Ctrl-C, or what else, comes at a given piece."""

    def __init__(self, running, count, error):
        self._running, self._left, self._error = running, count, error

    def __getattr__(self, name):
        return getattr(self._running, name)

    def __iter__(self):
        return self

    def __next__(self):
        self._left -= 1
        if self._left < 0:
            raise self._error
        return next(self._running)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "no more", "the disk")])
def test_what_is_finished_is_never_lost(generate, monkeypatch, error):
    """The second prompt ends at once, and is held back by the first."""
    original = td.stream_batch

    def stream_batch(model, prompts, batch_size, **options):
        own = options | {"max_new_tokens": [24, 1, 24, 24]}
        return InterruptedBatch(original(model, prompts, batch_size, **own), 5, error)

    monkeypatch.setattr(td, "stream_batch", stream_batch)
    ran = generate("--json", "--budget", 0, "--batch-size", 2, *PROMPTS)
    found = [(one["index"], one["finish_reason"]) for one in map(json.loads, ran.out.splitlines())]
    if isinstance(error, KeyboardInterrupt):
        assert (ran.code, found) == (130, [(0, "interrupted"), (1, "length"), (2, "interrupted")])
        ran = generate("--budget", 0, "--batch-size", 2, *PROMPTS)
        assert ran.err.splitlines()[-1].startswith("3 of 4 outputs (2 interrupted, 1 length), ")
    else:
        assert (ran.code, found) == (2, [(1, "length")])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--compare", "a", "b"], "--compare follows one generation: expected one prompt, got 2"),
        (["--trace", "t.jsonl", "a", "b"], "--trace follows one generation: expected one prompt, got 2"),
        (["--batch-size", "0", "a", "b"], "batch_size must be at least 1, got 0"),
        (["a", ""], "the prompt is empty"),
        (["--file", "p.jsonl", "a"], "as an argument or with --file, not both"),
    ],
)
def test_bad_input_of_several_prompts(generate, monkeypatch, tmp_path, args, words):
    monkeypatch.chdir(tmp_path)
    ran = generate(*args)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "p.jsonl has no prompt"),
        ('"a"\n{', "p.jsonl, line 2 must be JSON"),
        ("[" * 100_000, "p.jsonl, line 1 must be JSON: lists and objects are nested too deeply"),
        ('"a"\n""', "p.jsonl, line 2 must be a text"),
        ('{"text": "a"}', 'p.jsonl, line 1 must be a text, or an object with a text as "prompt"'),
        ("7", "expected at least one character, got 7"),
    ],
)
def test_bad_lines_are_named(generate, tmp_path, content, words):
    file = tmp_path / "p.jsonl"
    file.write_text(content)
    ran = generate("--file", file)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert words in line


def test_an_error_names_its_prompt(generate):
    ran = generate("a", "the tree " * 40000)
    assert ran.code == 2
    assert "the model allows at most" in ran.err and "This was prompt 1 of the batch." in ran.err


def test_ctrl_c_while_loading(generate, monkeypatch):
    def load(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(td, "load", load)
    assert generate(PROMPT).code == 130
