"""Decode speed of vLLM with trees against stock vLLM, over HTTP: ``python benchmarks/vllm_serve.py MODEL``.

One server per variant, idle while another is asked: trees as ``treedecode serve`` starts them, stock without
speculation, and, at one request alone, stock with n-gram and then with suffix drafts (the latter where
``arctic_inference`` is installed; without its store of earlier answers, which would hold the very answers of the round
before). A run keeps 1, 2, 4, 8 or 16 requests in flight, each replaced by the next prompt when it ends, and counts the
tokens that come while all places are taken: decode tokens, for a single request. Each variant makes the same runs in
turn, at least ``--pairs`` of every size and one per prompt at one request; the order turns from run to run. Texts are
compared with stock's. What requests take from their first token to their last is kept beside: with trees some end early
and others late. It writes ``benchmarks/results/vllm_serve.json``; exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import bisect
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import PROMPTS, geomean_interval, load_prompts, write_result

CONCURRENCY = (1, 2, 4, 8, 16)
START_S = 600
# requests of a run by place, where there are several
ROUNDS = 2
CACHE_BYTES = 1 << 29
# at one request; at more, trees are compared with plain alone
OVER_PLAIN, OVER_STOCK, NEVER_BELOW = 2.0, 1.15, 0.98
SPECULATION: dict[str, dict[str, Any]] = {
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 4,
        "prompt_lookup_min": 2,
    },
    "suffix": {
        "method": "suffix",
        "num_speculative_tokens": 16,
        "suffix_decoding_max_cached_requests": 0,
    },
}


@dataclass(frozen=True)
class Answer:
    """One streamed completion: when its pieces came, how many tokens there were by then, and its text."""

    times: list[float]
    counts: list[int]
    text: str

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return self.times[-1] - self.times[0]

    def num_tokens_at(self, time: float) -> int:
        """Tokens that had come."""
        place = bisect.bisect_right(self.times, time)
        return self.counts[place - 1] if place else 0


class Server:
    """A running server of one variant."""

    def __init__(self, variant: str, model: str, flags: list[str], folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address, self.model = f"http://127.0.0.1:{port}", model
        self._log = folder / f"{variant}.txt"
        command = [sys.executable, "-m", "treedecode", "serve", model]
        if variant != "trees":
            command += ["--budget", "0"]
        if variant in SPECULATION:
            command += ["--speculative-config", json.dumps(SPECULATION[variant])]
        command += ["--host", "127.0.0.1", "--port", str(port), *flags]
        # on a CPU vLLM's own choice leaves one core to the rest, which is half of two
        environment = {"VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}"} | os.environ
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=environment
            )

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + START_S
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start:\n{self._log.read_text()[-3000:]}")
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                    return
            except OSError:
                time.sleep(1)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait(60)

    def complete(self, prompt: str, num_tokens: int) -> Answer:
        """Stream exactly ``num_tokens`` tokens."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        request = urllib.request.Request(
            f"{self.address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        times, counts, pieces = [], [], []
        with urllib.request.urlopen(request, timeout=1800) as answer:
            for line in answer:
                if line.startswith(b"data: {") and (chunk := json.loads(line[6:]))["choices"]:
                    times.append(time.perf_counter())
                    counts.append(chunk["usage"]["completion_tokens"])
                    pieces.append(chunk["choices"][0]["text"])
        return Answer(times, counts, "".join(pieces))

    def run(self, prompts: list[str], width: int, num_tokens: int) -> list[Answer]:
        """Complete all prompts, so many at once."""
        with ThreadPoolExecutor(width) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, num_tokens), prompts))


def tokens_per_s(answers: list[Answer], width: int) -> float:
    """Tokens per second while ``width`` requests are in flight, from their first tokens on until one has no heir."""
    begin = max(answer.times[0] for answer in answers[:width])
    end = sorted(answer.times[-1] for answer in answers)[len(answers) - width]
    return sum(answer.num_tokens_at(end) - answer.num_tokens_at(begin) for answer in answers) / (end - begin)


@dataclass
class Runs:
    """What was measured of some servers at one number of requests at once.

    Attributes:
        width: requests at once.
        speeds: tokens per second of every run, by variant.
        request_s: from first to last token of every request, by variant.
        num_different: texts that differ from stock's.
    """

    width: int
    speeds: dict[str, list[float]] = field(default_factory=dict)
    request_s: dict[str, list[float]] = field(default_factory=dict)
    num_different: int = 0

    def measure(self, servers: dict[str, Server], prompts: list[str], pairs: int, num_tokens: int) -> None:
        """Run the servers in turn."""
        names, size = list(servers), self.width * ROUNDS if self.width > 1 else 1
        for number in range(max(pairs, len(prompts) // size)):
            chosen = [prompts[(number * size + place) % len(prompts)] for place in range(size)]
            texts = {}
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                answers = servers[name].run(chosen, self.width, num_tokens)
                texts[name] = [answer.text for answer in answers]
                self.speeds.setdefault(name, []).append(tokens_per_s(answers, self.width))
                self.request_s.setdefault(name, []).extend(answer.decode_s for answer in answers)
            for of_server in texts.values():
                self.num_different += sum(a != b for a, b in zip(of_server, texts["plain"], strict=True))
        print(f"{self.width} at once: {', '.join(names)} done", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=9, help="At least so many runs of every size.")
    parser.add_argument("--concurrency", type=int, nargs="+", default=CONCURRENCY)
    parser.add_argument("--speculation", nargs="*", choices=list(SPECULATION), default=list(SPECULATION))
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    speculation = list(arguments.speculation)
    if "suffix" in speculation and importlib.util.find_spec("arctic_inference") is None:
        print("suffix is left out: arctic_inference is not installed")
        speculation.remove("suffix")
    prompts = [prompt["turns"][0] for prompt in load_prompts(arguments.prompts)]
    flags = ["--dtype", arguments.dtype, "--max-model-len", "2048", "--max-num-seqs", "16", "--seed", "0"]
    flags += ["--kv-cache-memory-bytes", str(CACHE_BYTES)]  # the servers share the memory
    measured: list[Runs] = []

    @contextmanager
    def started(names: Sequence[str]) -> Iterator[dict[str, Server]]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers = {}
            for name in names:  # one after the other: they measure while they start
                servers[name] = stack.enter_context(Server(name, arguments.model, flags, folder))
                servers[name].wait()
                servers[name].complete(prompts[0], 16)
            yield servers

    def measure(width: int, servers: dict[str, Server]) -> None:
        measured.append(Runs(width))
        measured[-1].measure(servers, prompts, arguments.pairs, arguments.tokens)

    with started(["trees", "plain"]) as ours:
        for width in arguments.concurrency:
            if width > 1 or not speculation:
                measure(width, ours)
        if 1 in arguments.concurrency:
            for name in speculation:  # not all at once: servers take memory
                with started([name]) as stock:
                    measure(1, ours | stock)
    setup = vars(arguments) | {"model": Path(arguments.model).name, "prompts": arguments.prompts.name}
    return report(setup, measured)


def report(setup: dict[str, Any], measured: list[Runs]) -> int:
    """Save and print the speeds and ratios; 1 if a bar is missed."""
    ratios, missed, speeds, seconds = {}, [], {}, {}
    for width in sorted({runs.width for runs in measured}):
        of_width = [runs for runs in measured if runs.width == width]
        names = list(dict.fromkeys(name for runs in of_width for name in runs.speeds))
        for name in names:
            having = [runs for runs in of_width if name in runs.speeds]
            values = [value for runs in having for value in runs.speeds[name]]
            speeds.setdefault(width, {})[name] = statistics.fmean(values)
            taken = [value for runs in having for value in runs.request_s[name]]
            seconds.setdefault(width, {})[name] = statistics.quantiles(taken, n=4)
            if name == "trees":
                continue
            pairs = [
                pair for runs in having for pair in zip(runs.speeds["trees"], runs.speeds[name], strict=True)
            ]
            bar = NEVER_BELOW if width > 1 else OVER_PLAIN if name == "plain" else OVER_STOCK
            ratio = geomean_interval([ours / other for ours, other in pairs])
            ratios[f"trees / {name} at {width}"] = ratio | {"bar": bar}
            if ratio["median"] < bar:
                missed.append(f"trees / {name} at {width}")
    num_different = sum(runs.num_different for runs in measured)
    result = {
        "setup": setup,
        "tokens_per_s": speeds,
        "quartiles_of_request_s": seconds,
        "ratios": ratios,
        "num_different_texts": num_different,
    }
    write_result("vllm_serve", result)
    for width, by_name in speeds.items():
        print(f"{width:3d} at once: " + ", ".join(f"{name} {speed:.1f}/s" for name, speed in by_name.items()))
    for name, ratio in ratios.items():
        print(
            f"{name:24s} {ratio['median']:.2f}, geometric mean {ratio['geomean']:.2f} "
            f"[{ratio['low']:.2f}, {ratio['high']:.2f}], bar {ratio['bar']}"
        )
    print(f"texts that differ from plain: {num_different}; missed: {', '.join(missed) or 'nothing'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
