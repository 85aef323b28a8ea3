"""``treedecode verify``: exit codes, report and JSON, on a tiny model and on servers that lie."""

from __future__ import annotations

import json

import pytest

import treedecode as td
from tests.faults import FAULTS
from treedecode.engines.loop import Decoder
from treedecode.verify import local
from treedecode.verify.results import Finding, Report, Status

PROMPT = ["--prompt", "the tree ab branch the tree ab"]
QUICK = ["--max-new-tokens", "16", "--num-draws", "50"]


def test_exact(run, tiny):
    ran = run("verify", tiny, *PROMPT, *QUICK)
    assert ran.code == 0
    heading, *lines, verdict = [line for line in ran.out.splitlines() if line]
    assert (
        heading.startswith("trees against plain decoding: ") and str(tiny) in heading and "float32" in heading
    )
    assert verdict == "EXACT: 5 checks found no difference"
    assert len(lines) == 1 + 5  # one per check, below the names of the columns
    assert lines[1].startswith("prompt 1  greedy ")
    assert all(" exact " in line for line in lines[1:])


def test_several_prompts_and_files(run, tiny, tmp_path):
    file = tmp_path / "story.txt"
    file.write_text("branch the tree\n")
    ran = run(
        "verify", tiny, *PROMPT, "--prompt", "abc", "--file", file, *QUICK, "--temperature", 0, "--json"
    )
    found = json.loads(ran.out)
    assert [finding["prompt"] for finding in found["findings"][::3]] == ["prompt 1", "prompt 2", "story.txt"]
    assert (found["exact"], found["complete"], found["num_checked"], found["num_differences"]) == (
        True,
        True,
        9,
        0,
    )
    assert found["settings"]["max_new_tokens"] == 16 and found["settings"]["budget"] == 16
    assert found["model"]["dtype"] == "float32" and found["endpoint"] is None
    assert found["findings"][2]["numbers"]["worst_difference"] < 1e-3
    assert set(found["findings"][0]) == {
        "prompt", "check", "status", "detail", "num_tokens", "num_near_ties", "numbers"
    }  # fmt: skip


def test_prompts_of_our_own(run, tiny):
    found = json.loads(run("verify", tiny, "--max-new-tokens", 4, "--temperature", 0, "--json").out)
    assert len({finding["prompt"] for finding in found["findings"]}) == 6
    assert found["exact"]


def test_a_fault_is_one_line_and_exit_code_1(run, tiny):
    with FAULTS["flat position ids"]():
        ran = run("verify", tiny, *PROMPT, "--max-new-tokens", 64, "--temperature", 0)
    assert ran.code == 1
    verdict = ran.out.splitlines()[-1]
    assert verdict.startswith("NOT EXACT: ") and "hostile drafts" in ran.out
    (line,) = (line for line in ran.out.splitlines() if line.strip().startswith("logprobs"))
    assert "DIFFERENT" in line and "0.001 is allowed" in line


def test_ctrl_c_leaves_what_was_found(run, tiny, monkeypatch):
    original, calls = local._Checks.sampled, []

    def sampled(self, seed):
        calls.append(seed)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return original(self, seed)

    monkeypatch.setattr(local._Checks, "sampled", sampled)
    arguments = ["verify", tiny, *PROMPT, *QUICK, "--num-seeds", 3]
    ran = run(*arguments)
    assert ran.code == 130
    assert ran.out.count(" exact ") == 4  # three greedy ones and one seed
    assert "interrupted" in ran.out.splitlines()[-1] and "Traceback" not in ran.err
    calls.clear()
    found = json.loads(run(*arguments, "--json").out)
    assert not found["complete"] and len(found["findings"]) == 4


def test_chat_templates(run, tiny, load_once, monkeypatch):
    """Instruct models get the prompt as a user's turn, unless told otherwise."""
    seen = []
    original = Decoder.of.__func__

    def of(cls, target, request, *rest):
        seen.append(request.prompt_ids)
        return original(cls, target, request, *rest)

    monkeypatch.setattr(Decoder, "of", classmethod(of))
    model = load_once(str(tiny), None, None, None, calibration=None)
    template = "{% for m in messages %}the {{ m.content }} the{% endfor %}"
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    quick = ["--max-new-tokens", 2, "--temperature", 0]
    run("verify", tiny, "--prompt", "abc", *quick)
    run("verify", tiny, "--prompt", "abc", "--raw", *quick)
    turn = model.tokenizer("the abc the", add_special_tokens=False)["input_ids"]
    assert set(map(len, seen)) == {len(turn), len(model.tokenizer("abc")["input_ids"])}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--budget", "0"], ["budget 0", "plain decoding"]),
        (["--budget", "many"], ["--budget", "many"]),
        (["--max-new-tokens", "0"], ["max_new_tokens", "at least 1", "0"]),
        (["--num-draws", "3"], ["num_draws", "at least 50", "3"]),
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--drafter", "oracle"], ["oracle", "merged"]),
        (["--logprob-tolerance", "-1"], ["logprob_tolerance", "-1"]),
        (["--prompt", ""], ["the prompt is empty"]),
        (["--file", "/no/such/file"], ["/no/such/file"]),
        (["--plain-endpoint", "http://localhost:1"], ["--plain-endpoint", "--endpoint URL"]),
        (["--endpoint", "http://localhost:1"], ["--plain-endpoint URL or a MODEL"]),
        (["m", "--endpoint", "http://a", "--budget", "4"], ["--budget", "server"]),
        (["m", "--endpoint", "http://a", "--drafter", "suffix"], ["--drafter", "server"]),
        (["m", "--endpoint", "http://a", "--plain-endpoint", "http://b"], ["MODEL", "--plain-endpoint"]),
        (["--dtype", "float32", "--endpoint", "http://a", "--plain-endpoint", "http://b"], ["--dtype"]),
    ],
)
def test_options_are_checked_before_anything_is_loaded(run, monkeypatch, args, words):
    def load(*_, **__):
        raise AssertionError("loaded a model")

    monkeypatch.setattr(td, "load", load)
    ran = run("verify", *args)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert all(word in ran.err for word in words), ran.err


def test_unknown_models(run):
    ran = run("verify", "/no/such/folder")
    assert ran.code == 2 and "no such folder" in ran.err.splitlines()[-1]


def test_two_servers(run, serve):
    trees, plain = serve(), serve(key=1)
    arguments = ["verify", "--endpoint", trees.url, "--plain-endpoint", plain.url + "/v1/", *QUICK]
    ran = run(*arguments, "--prompt", "a")
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.splitlines()[0] == f"trees of {trees.url} (small) against {plain.url} (small)"
    assert ran.out.splitlines()[-1] == "EXACT: 4 checks found no difference"
    trees.now(wrong_at=3)
    ran = run(*arguments, "--prompt", "a", "--json")
    found = json.loads(ran.out)
    assert ran.code == 1 and not found["exact"]
    assert found["endpoint"] == {"url": trees.url, "model": "small"}
    assert {finding["check"] for finding in found["findings"] if finding["status"] == "DIFFERENT"} == {
        "greedy"
    }


@pytest.mark.parametrize(
    ("does", "args", "words"),
    [
        ({"secret": "k"}, [], ["--endpoint http", "401", "--api-key", "OPENAI_API_KEY"]),
        ({"secret": "k"}, ["--api-key", "wrong"], ["401", "--api-key"]),
        ({}, ["--served-model", "large"], ["'large'", "small, other", "--served-model"]),
        ({"logprobs": "none"}, [], ["gives no logprobs", "--no-logprobs"]),
        ({"logprobs": "refused"}, [], ["not supported by this model", "--no-logprobs"]),
        ({"stream": "cut"}, [], ["without [DONE]"]),
        ({"stream": "error"}, [], ["out of memory"]),
        ({"broken": "hello"}, [], ["JSON", "hello"]),
        ({"broken": "{}"}, [], ["without choices"]),
    ],
)
def test_servers_that_cannot_be_verified(run, serve, monkeypatch, does, args, words):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = serve(**does)
    ran = run(
        "verify", "--endpoint", server.url, "--plain-endpoint", server.url, "--prompt", "a", *QUICK, *args
    )
    assert ran.code == 2 and ran.out == ""
    line = ran.err.splitlines()[-1]
    assert line.startswith("treedecode: ") and server.url in line
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9", ["cannot be reached", "running"]),
        ("localhost:8000", ["no URL", "http://HOST:PORT"]),
        ("ftp://localhost", ["no URL", "http://HOST:PORT"]),
    ],
)
def test_urls_without_a_server(run, url, words):
    ran = run("verify", "--endpoint", url, "--plain-endpoint", url)
    assert (ran.code, ran.out) == (2, "")
    line = ran.err.splitlines()[-1]
    assert f"--endpoint {url}" in line and all(word in line for word in words), line


def test_a_path_that_is_not_there(run, serve):
    url = serve().url + "/wrong"
    ran = run("verify", "--endpoint", url, "--plain-endpoint", url)
    assert ran.code == 2 and "404" in ran.err and "/v1/models" in ran.err


def test_the_key_is_sent(run, serve, monkeypatch):
    server = serve(secret="k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    quick = ["--prompt", "a", "--max-new-tokens", 4, "--temperature", 0]
    assert run("verify", "--endpoint", server.url, "--plain-endpoint", server.url, *quick).code == 0


def test_verdicts():
    exact, tie, wrong, skipped = (
        Finding("p", status.name, status, "", num_near_ties=int(status is Status.NEAR_TIE))
        for status in Status
    )
    assert Report((exact, skipped)).verdict == "EXACT: 1 checks found no difference"
    assert Report((exact, tie)).verdict.endswith("but for 1 near tie within rounding")
    assert Report((tie, tie)).verdict.endswith("but for 2 near ties within rounding")
    assert Report((exact, tie)).exact and not Report((exact, wrong)).exact and not Report((skipped,)).exact
    assert Report((skipped,)).verdict == "NOTHING CHECKED"
    assert "1 of 2" in Report((exact, wrong)).verdict
