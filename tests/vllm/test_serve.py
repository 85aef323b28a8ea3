"""``treedecode serve`` over real HTTP: streamed and whole answers equal stock vLLM's."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.vllm.cases import ENGINE, ENVIRONMENT, GROUPS
from treedecode.cost import CostCurve

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

START_S = 400
BAD_INPUT = 2


class Server(NamedTuple):
    address: str
    log: Path

    def metrics(self):
        """The trees' samples on vLLM's endpoint, by name and by the label that is not of every metric."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        assert "vllm:generation_tokens_total" in text  # vLLM's own are still there
        samples = {}
        for name, labels, value in re.findall(r"^vllm:(\w+){(.*)} (\S+)$", text, re.MULTILINE):
            place = re.search(r'(?:depth|rank)="(\d+)"', labels)
            samples[name, place and int(place[1])] = float(value)
        return samples


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def server(model_dir, tmp_path_factory):
    """A server with trees."""
    address = f"http://127.0.0.1:{free_port()}"
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    cost = log.with_name("cost.json")
    cost.write_text(CostCurve([1, 1024], [50.0, 50.1]).to_json())
    flags = ["--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--dtype", ENGINE["dtype"]]
    flags += ["--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8", "--seed", "0"]
    command = [
        sys.executable,
        "-m",
        "treedecode",
        "serve",
        model_dir,
        "--budget",
        "8",
        "--cost",
        str(cost),
        *flags,
    ]
    # the server's own process layout, not that of the tests' engine
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment |= {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOG_STATS_INTERVAL": "0.5"}
    del environment["VLLM_USE_V2_MODEL_RUNNER"]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            try:
                with urllib.request.urlopen(f"{address}/health", timeout=5):
                    break
            except OSError:
                time.sleep(1)
        assert "Trees are on" in log.read_text()
        yield Server(address, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def complete(address, model_dir, prompt_ids, stream, **params):
    body = {"model": model_dir, "prompt": prompt_ids, "max_tokens": 32, "temperature": 0, "stream": stream}
    body |= params
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        if not stream:
            return json.load(answer)["choices"][0]["text"]
        lines = [line.decode().removeprefix("data: ").strip() for line in answer if line.strip()]
    assert lines.pop() == "[DONE]" and len(lines) > 1
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines)


def test_streamed_and_whole_answers_equal_stock_vllm(server, model_dir, reference):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    prompts = [case.token_ids(tokenizer) for case in GROUPS["kinds"]]
    jobs = [(prompt, stream) for prompt in prompts for stream in (False, True)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        texts = list(pool.map(lambda job: complete(server.address, model_dir, *job), jobs))
    expected = [answer.text for [answer] in reference["kinds"] for _ in (False, True)]
    assert texts == expected


def test_metrics_over_http_are_those_of_the_outputs(server, model_dir, reference):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    before = server.metrics()
    # all are exported before the first request
    assert ("tree_budget", None) in before and ("tree_emitted_tokens_total", None) in before
    stop_string = GROUPS["features"][4]
    jobs = [(GROUPS["kinds"][2], {}), (stop_string, {"stop": stop_string.params["stop"], "max_tokens": 24})]
    with ThreadPoolExecutor(len(jobs)) as pool:
        for case, params in jobs:
            pool.submit(
                complete, server.address, model_dir, case.token_ids(tokenizer), stream=False, **params
            )
    after = server.metrics()

    def gained(name, place=None):
        return after.get((f"tree_{name}_total", place), 0) - before.get((f"tree_{name}_total", place), 0)

    answers = [reference["kinds"][2][0], reference["features"][4][0]]
    assert gained("emitted_tokens") == sum(len(answer.token_ids) for answer in answers)
    assert gained("drafted_nodes") >= gained("verified_nodes") >= gained("accepted_nodes")
    assert gained("wasted_nodes") == gained("verified_nodes") - gained("accepted_nodes")
    assert gained("tried_by_rank", 0) >= gained("accepted_by_rank", 0)
    assert len(jobs) <= gained("steps_without_tree") <= gained("steps")  # at least those of the prompts
    # trees were tried for both tests' requests, however they paid
    whole_life = ("drafted_nodes", "verified_nodes", "accepted_nodes", "compaction_bytes", "sibling_rescues")
    assert all(after[f"tree_{name}_total", None] > 0 for name in whole_life[:3])
    assert all((f"tree_{name}_total", None) in after for name in whole_life)
    assert after["tree_tried_by_depth_total", 1] >= after["tree_accepted_by_depth_total", 1] > 0
    assert after["tree_emitted_tokens_per_step", None] > 1
    log = server.log.read_text()
    assert re.search(r"Tree metrics: E\[L\]: [1-9].* steps without a tree: \d+ of [1-9]", log)


def test_verify_finds_a_deployment_exact(server, model_dir):
    """Against the model loaded here, which shares no code with vLLM."""
    command = [
        sys.executable,
        "-m",
        "treedecode",
        "verify",
        model_dir,
        "--endpoint",
        server.address,
        "--json",
    ]
    command += ["--max-new-tokens", "16", "--num-draws", "60", "--prompt", GROUPS["kinds"][2].prompt]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert [finding["check"] for finding in found["findings"]] == ["greedy", "logprobs", "stream", "sampled"]
    assert found["endpoint"]["model"] == model_dir
    assert found["findings"][0]["num_tokens"] == 16
    assert found["findings"][3]["numbers"]["degrees"] > 0


def test_bad_input_ends_before_vllm_starts(model_dir):
    command = [sys.executable, "-m", "treedecode", "serve", model_dir, "--budget", "129"]
    began = time.monotonic()
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == BAD_INPUT and run.stderr.count("\n") == 1 and "at most 128" in run.stderr
    assert time.monotonic() - began < START_S / 4
