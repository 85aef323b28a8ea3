"""Bad input of ``treedecode``: exit code 2 and one line on standard error that says what is wrong."""

from __future__ import annotations

import shutil

import pytest

import treedecode as td


@pytest.fixture
def refused(run):
    def refused(*args, stdin=None):
        ran = run(*args, stdin=stdin)
        assert ran.code == 2
        assert ran.out == ""
        *stages, line = ran.err.splitlines()
        assert all(stage.endswith(" ...") for stage in stages)  # on a slow machine
        assert line.startswith("treedecode: ")
        return line

    return refused


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--max-new-tokens", "-1"], ["max_new_tokens", "at least 0", "-1"]),
        (["--max-new-tokens", "x"], ["--max-new-tokens", "x", "integer"]),
        (["--budget", "-3"], ["budget", "at least 0", "-3"]),
        (["--budget", "1000000"], ["budget", "at most", "1000000"]),
        (["--budget", "many"], ["--budget", '"auto"', "many"]),
        (["--budget", "1.5"], ["--budget", "1.5"]),
        (["--budget", ""], ["--budget"]),
        (["--temperature", "-0.1"], ["temperature", "-0.1"]),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--temperature", "hot"], ["--temperature", "hot"]),
        (["--top-k", "0"], ["top_k", "0"]),
        (["--top-k", "2.5"], ["--top-k", "2.5"]),
        (["--top-p", "0"], ["top_p", "0"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--min-p", "-1"], ["min_p", "-1"]),
        (["--repetition-penalty", "0"], ["repetition_penalty", "0"]),
        (["--frequency-penalty", "3"], ["frequency_penalty", "at most 2", "3"]),
        (["--presence-penalty", "x"], ["--presence-penalty", "x"]),
        (["--logit-bias", "3"], ["--logit-bias", "13=-2.5", "'3'"]),
        (["--logit-bias", "3=x"], ["--logit-bias", "13=-2.5", "'3=x'"]),
        (["--logit-bias", "-3=1"], ["logit_bias", "at least 0", "-3"]),
        (["--bad-word", ""], ["bad_words", "non-empty"]),
        (["--min-tokens", "-1"], ["min_tokens", "at least 0", "-1"]),
        (["--logprobs", "-1", "--json"], ["logprobs", "at least 0", "-1"]),
        (["--logprobs", "1"], ["--logprobs", "--json"]),
        (["--json-schema", "/no/such/file"], ["/no/such/file", "No such file"]),
        (["--grammar", "/no/such/file"], ["/no/such/file", "No such file"]),
        (["--regex", "a", "--grammar", "b"], ["one grammar only", "--json-schema, --regex and --grammar"]),
        (["--seed", "-1"], ["seed", "-1"]),
        (["--drafter", "oracle"], ["oracle", "merged", "recycling", "suffix", "prompt-lookup"]),
        (["--compare", "--budget", "0"], ["--compare", "above 0"]),
        (["--stop", ""], ["stop", "non-empty"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["--model"], ["--model"]),
    ],
)
def test_options_are_checked_before_anything_is_loaded(refused, monkeypatch, args, words):
    def load(*_, **__):
        raise AssertionError("loaded a model")

    monkeypatch.setattr(td, "load", load)
    line = refused("generate", "text", *args)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("args", "stdin", "words"),
    [
        ([""], None, ["the prompt is empty"]),
        ([], b"", ["the prompt is empty"]),
        ([], b"\n", ["the prompt is empty"]),
        ([], None, ["no prompt", "--file"]),
        (["a", "--file", "b"], None, ["not both"]),
        (["--file", "/no/such/file"], None, ["/no/such/file", "No such file"]),
        (["--file", "/"], None, ["cannot read the prompt", "directory"]),
        ([], b"caf\xe9", ["standard input", "UTF-8"]),
        (["caf\udce9"], None, ["the argument", "UTF-8", "0xe9"]),
    ],
)
def test_prompts(refused, args, stdin, words):
    line = refused("generate", *args, stdin=stdin)
    assert all(word in line for word in words), line


def test_a_grammar_that_is_none(refused, tiny):
    line = refused("generate", "--model", tiny, "--regex", "([", "ab")
    assert all(word in line for word in ["the grammar is not valid (regex)", "unclosed character class"]), (
        line
    )


def test_prompt_files_are_utf8(refused, tmp_path):
    file = tmp_path / "latin"
    file.write_bytes(b"caf\xe9")
    assert "must be UTF-8" in refused("generate", "--file", file)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("/no/such/folder", ["no such folder: /no/such/folder"]),
        ("./nowhere", ["no such folder"]),
        ("~nobody-of-this-name", ["no such folder: ~nobody-of-this-name"]),
        ("no-such/model", ["no-such/model", "Hub"]),
        ("two words", ["two words", "Hub id"]),
        ("", ["Hub id"]),
    ],
)
def test_unknown_models(refused, model, words):
    line = refused("generate", "--model", model, "text")
    assert all(word in line for word in words), line


@pytest.fixture
def broken(tiny, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(tiny, folder)
    return folder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, "", "not what it should be"])
def test_broken_models(refused, broken, name, content):
    path = broken / name
    path.unlink() if content is None else path.write_text(content)
    line = refused("generate", "--model", broken, "text")
    assert str(broken) in line


@pytest.mark.parametrize("content", [None, "", "not what it should be"])
def test_broken_tokenizers(refused, broken, content):
    for path in broken.glob("tokenizer*"):
        path.unlink() if content is None else path.write_text(content)
    line = refused("generate", "--model", broken, "text")
    assert str(broken) in line
    assert "tokenizer" in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--device", "abacus"], ["abacus"]),
        (["--dtype", "int8"], ["dtype", "int8"]),
        (["--dtype", "float99"], ["dtype", "float99"]),
        (["--revision", "main"], ["revision", "Hub id"]),
        (["--device", "meta"], ["device", "meta"]),
        (["--dtype", "float8_e4m3fn"], ["dtype", "float8_e4m3fn"]),
        (["--calibration", "/no/such/file"], ["calibration", "/no/such/file", "No such file"]),
        (["--trace", "/no/such/folder/trace"], ["/no/such/folder/trace"]),
        (["--trace", "/"], ["/"]),
    ],
)
def test_what_only_loading_shows(refused, tiny, args, words):
    line = refused("generate", "--model", tiny, "text", *args)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("flag", ["--file", "--calibration"])
def test_inputs_are_not_overwritten(refused, tiny, tmp_path, flag):
    path = tmp_path / "input"
    path.write_text("the tree")
    prompt = [] if flag == "--file" else ["text"]
    line = refused("generate", "--model", tiny, *prompt, flag, path, "--trace", tmp_path / "." / "input")
    assert f"--trace would overwrite the file of {flag}" in line
    assert path.read_text() == "the tree"


@pytest.mark.parametrize("args", [["--stop", ""], ["--device", "abacus"], ["ab " * 300]])
def test_what_is_refused_replaces_no_trace(refused, tiny, tmp_path, args):
    path = tmp_path / "old.jsonl"
    path.write_text("old")
    prompt = [] if len(args) == 1 else ["text"]
    refused("generate", "--model", tiny, "--trace", path, *prompt, *args)
    assert path.read_text() == "old"


def test_prompts_longer_than_the_model_allows(refused, tiny):
    line = refused("generate", "--model", tiny, "ab " * 300)
    assert "256" in line
    assert "prompt" in line


def test_commands(refused, run):
    assert "wrong" in refused("wrong")
    assert "--wrong" in refused("doctor", "--wrong")
    ran = run()
    assert ran.code == 2
    assert "generate" in ran.out
