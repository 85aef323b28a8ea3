"""``treedecode serve`` over real HTTP: streamed and whole answers equal stock vLLM's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.vllm.cases import ENGINE, ENVIRONMENT, GROUPS

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

START_S = 400
BAD_INPUT = 2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def server(model_dir, tmp_path_factory):
    """Base address of a server with trees."""
    address = f"http://127.0.0.1:{free_port()}"
    log = tmp_path_factory.mktemp("serve") / "log.txt"
    flags = ["--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--dtype", ENGINE["dtype"]]
    flags += ["--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8", "--seed", "0"]
    command = [sys.executable, "-m", "treedecode", "serve", model_dir, "--budget", "8", *flags]
    # the server's own process layout, not that of the tests' engine
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    environment["VLLM_LOGGING_LEVEL"] = "INFO"
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
        yield address
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def complete(address, model_dir, prompt_ids, stream):
    body = {"model": model_dir, "prompt": prompt_ids, "max_tokens": 32, "temperature": 0, "stream": stream}
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
        texts = list(pool.map(lambda job: complete(server, model_dir, *job), jobs))
    expected = [answer.text for [answer] in reference["kinds"] for _ in (False, True)]
    assert texts == expected


def test_bad_input_ends_before_vllm_starts(model_dir):
    command = [sys.executable, "-m", "treedecode", "serve", model_dir, "--budget", "129"]
    began = time.monotonic()
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == BAD_INPUT and run.stderr.count("\n") == 1 and "at most 128" in run.stderr
    assert time.monotonic() - began < START_S / 4
