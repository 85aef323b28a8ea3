"""``treedecode replay``: what it prints, its exit codes, and bad input."""

from __future__ import annotations

import json

import pytest

PROMPT = "the tree of the tree of the"


@pytest.fixture(scope="session")
def cost(tmp_path_factory):
    """Rows cost nothing, so that speed does not decide."""
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    path.write_text('{"rows": [1, 100], "ms": [10, 10]}')
    return path


@pytest.fixture
def dense(run, tiny, tmp_path):
    """A dense trace of a tiny model."""
    path = tmp_path / "dense.jsonl"
    args = ("--max-new-tokens", 60, "--trace", path, "--dense", PROMPT)
    assert run("generate", "--model", tiny, *args).code == 0
    return path


def test_a_dense_trace(run, dense, cost):
    ran = run("replay", dense, "--cost", cost, "--gate", 0)
    assert ran.code in (0, 1)
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0] == "1 dense recording of drafter merged, n = 59 output tokens after the first"
    for name in ("plain", "chain", "leaf siblings 3", "static optimal", "dynamic", "prompt-lookup", "merged"):
        assert sum(line.startswith(name) for line in lines) == 2, name
    assert any(line.startswith("First rejected spine token") for line in lines)
    verdict = next(line for line in lines if line.startswith(("GO: ", "NO-GO: ")))
    assert verdict.startswith("GO") == (ran.code == 0)


def test_exit_codes_follow_the_gate(run, dense, cost):
    log = dense.with_name("log")
    request = {"prompt_ids": [1, 2], "token_ids": list(range(3, 40))}
    request["draft_ids"] = [[[2, token]] for token in request["token_ids"]]
    log.write_text(json.dumps(request) + "\n")
    go = run("replay", log, "--cost", cost)
    assert go.code == 0
    assert "GO: leaf siblings 3 with 4 nodes, E[L] 2.00, 200.0 tokens/s" in go.out
    assert "+1.00 tokens per step over chain with 4 nodes: reaches the gate of 0.30 by 0.70." in go.out
    assert "2.00 times the speed of" in go.out
    assert run("replay", log, "--cost", cost, "--gate", 1.5).code == 1


def test_json(run, dense, cost):
    found = json.loads(run("replay", dense, "--cost", cost, "--budget", "auto, 4", "--json").out)
    assert (found["num_recordings"], found["num_positions"], found["dense"]) == (1, 59, True)
    assert {result["budget"] for result in found["results"]} == {0, 4, "auto"}
    plain = found["results"][0]
    assert (plain["strategy"], plain["mean_emitted"], plain["num_steps"]) == ("plain", 1.0, 59)
    assert plain["tokens_per_s"] == pytest.approx(100.0)
    assert found["verdict"]["gate"] == 0.3
    assert len(found["rescue"]["in_drafter_top"]) == 8
    assert found["cost"] == str(cost)


def test_the_cost_is_in_the_trace(run, dense):
    ran = run("replay", dense, "--draft-ms", 0)
    assert "cost of a step: as measured when the model was loaded; drafting 0.0 ms" in ran.out


def test_a_trace_that_is_not_dense(run, tiny, tmp_path, cost):
    path = tmp_path / "live.jsonl"
    run("generate", "--model", tiny, "--max-new-tokens", 40, "--budget", 8, "--trace", path, PROMPT)
    ran = run("replay", path, "--cost", cost, "--budget", "8")
    assert "as recorded" in ran.out
    assert "--dense" in ran.out
    found = json.loads(run("replay", path, "--cost", cost, "--budget", "8", "--json").out)
    results = {result["strategy"]: result for result in found["results"]}
    assert results["as recorded"]["num_steps"] == results["merged"]["num_steps"]
    assert results["merged"]["basis"] == "exact"


def test_dense_needs_a_trace(run, tiny):
    for args in (["--dense"], ["--dense", "--trace", "t", "--compare"]):
        ran = run("generate", "--model", tiny, "text", *args)
        assert ran.code == 2
        assert "--dense records a trace" in ran.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--budget", "0"], ["--budget", "from 1 to 1024"]),
        (["--budget", "4,x"], ["--budget", "4,x"]),
        (["--budget", ""], ["--budget"]),
        (["--budget", "9999"], ["--budget", "9999"]),
        (["--budget", "²"], ["--budget", "²"]),
        (["--width", "0"], ["--width", "0"]),
        (["--gate", "-1"], ["--gate", "-1"]),
        (["--gate", "nan"], ["--gate", "nan"]),
        (["--draft-ms", "-1"], ["--draft-ms", "-1"]),
        (["--cost", "/no/such/file"], ["/no/such/file", "No such file"]),
        (["--cost", "LOG"], ["is no cost file"]),
        ([], ["what a step costs", "--cost FILE"]),
        (["/no/such/trace"], ["/no/such/trace", "No such file"]),
        (["/"], ["/", "directory"]),
        (["BROKEN"], ["broken, line 2", "token_ids"]),
    ],
)
def test_bad_input(run, tmp_path, args, words):
    log, broken = tmp_path / "log", tmp_path / "broken"
    log.write_text('{"prompt_ids": [1], "token_ids": [1, 2, 3]}\n')
    broken.write_text(log.read_text() + '{"prompt_ids": [1], "token_ids": [1, "x"]}\n')
    named = {"LOG": log, "BROKEN": broken}
    ran = run("replay", log, *(named.get(arg, arg) for arg in args))
    assert ran.code == 2
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    assert line.startswith("treedecode: ")
    assert all(word in line for word in words), line


def test_no_files(run):
    ran = run("replay")
    assert ran.code == 2
    assert "'traces'" in ran.err
