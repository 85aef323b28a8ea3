"""Checks trees on one NVIDIA GPU in one run of a few minutes, and writes what it found as JSON.

    python scripts/gpu_check.py --output gpu_check.json                    # the attention kernel alone: needs Triton
    python scripts/gpu_check.py --output gpu_check.json --model some/model # and vLLM with trees against stock vLLM

Nothing is installed or downloaded but the model. Exit code 0: all checks passed; 1: one failed, the JSON says which.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from treedecode.attention.paged import PlacedTree, pack_trees
from treedecode.attention.paged_triton import tree_attention
from treedecode.shape import TreeShape
from treedecode.testing.paged import SCALE, UNTOUCHED, PagedBatch, paged_batch

# A kernel's largest error against float64, by type; the numbers are of order one.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
# Two steps of bfloat16 at the size of logits: so far apart may a token be from the model's own choice.
NEAR_TIE_NAT = 0.25
BUDGET = 12
CONTEXTS = (64, 1024, 8192)
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "1, 2, 3, 4, 5, 6, 7,",
    "List the months of the year: January, February, March,",
    "Once upon a time there was a king who",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "Water boils at a temperature of",
    "import numpy as np\n\ndef mean(values):\n",
)


def main() -> int:
    """Run what the arguments ask for; see the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the JSON to write")
    parser.add_argument("--model", help="folder or Hub name for vLLM; without it vLLM is not started")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu with TRITON_INTERPRET=1: no timings")
    parser.add_argument("--tokens", type=int, default=128, help="per prompt")
    parser.add_argument("--engine", choices=["stock", "trees"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        arguments.output.write_text(json.dumps(run_engine(arguments)))
        return 0
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error(
            "no CUDA device is visible to PyTorch; --device cpu with TRITON_INTERPRET=1 checks without one"
        )
    began = time.perf_counter()
    report: dict[str, Any] = {"environment": environment(arguments), "kernel": check_kernel(arguments.device)}
    if arguments.device == "cuda":
        report["kernel_ms"] = time_kernel()
    if arguments.model:
        report["engine"] = check_engine(arguments)
    passed = [case["passed"] for case in report["kernel"]] + [report.get("engine", {}).get("passed", True)]
    report |= {"passed": all(passed), "seconds": round(time.perf_counter() - began, 1)}
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{sum(passed)} of {len(passed)} checks passed; {arguments.output}")
    return 0 if report["passed"] else 1


def environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Versions and device."""
    found = {"python": platform.python_version(), "command": " ".join(sys.argv)}
    for package in ("treedecode", "torch", "triton", "vllm"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["device"] = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu, interpreted"
    return found


def attend(batch: PagedBatch, placed: list[PlacedTree], **settings: Any) -> torch.Tensor:
    """The kernel's output."""
    output = torch.full_like(batch.query, UNTOUCHED)
    trees = pack_trees(placed, batch.query.device)
    parts = (batch.query, batch.key, batch.value, *batch.caches, batch.table)
    tree_attention(*parts, trees, output, SCALE, **settings)
    return output


def check_kernel(device: str) -> list[dict[str, Any]]:
    """The kernel against dense float64: types, windows, head ratios and sizes, block sizes, soft caps, splits."""
    shapes = [TreeShape.from_widths([3, 3]), TreeShape.chain(7), TreeShape.star(16), TreeShape.chain(0)]
    large = [TreeShape.leaf_siblings(depth=32, width=4)]
    cases: list[tuple[list[TreeShape], list[int], dict[str, Any], dict[str, Any]]] = []
    for dtype in TOLERANCE:
        if dtype == torch.bfloat16 and device == "cpu":
            continue  # Triton's interpreter multiplies the bits of bfloat16 as integers
        for block_size in (16, 32):
            for window in (None, 4, 40):
                made = {"dtype": dtype, "block_size": block_size}
                cases.append((shapes, [0, 107, 64, 5], made, {"window": window}))
        for heads, head_size in (((8, 1), 256), ((6, 2), 80), ((7, 1), 128), ((4, 4), 64)):
            made = {"dtype": dtype, "heads": heads, "head_size": head_size}
            cases.append((shapes, [3, 300, 64, 0], made, {"soft_cap": 5.0, "num_splits": 3}))
        cases.append((large, [200], {"dtype": dtype, "heads": (8, 2), "head_size": 128}, {}))
    found = []
    for trees, prefixes, made, settings in cases:
        batch = paged_batch(trees, prefixes, **made).to(device)
        expected = batch.expected(settings.get("window"), settings.get("soft_cap", 0.0))
        error = float((attend(batch, batch.placed, **settings).double() - expected).abs().max())
        described = {name: str(value) for name, value in {**made, **settings}.items()}
        found.append({**described, "max_error": error, "passed": error < TOLERANCE[made["dtype"]]})
    return found


def time_kernel() -> list[dict[str, float]]:
    """Milliseconds of the attention of one layer: a tree, and a chain of as many nodes."""
    from triton.testing import do_bench

    tree = TreeShape.leaf_siblings(depth=4, width=3)
    found = []
    for requests in (1, 8):
        for context in CONTEXTS:
            made = {"heads": (32, 8), "head_size": 128, "dtype": torch.bfloat16}
            batch = paged_batch([tree] * requests, [context] * requests, **made).to("cuda")
            chains = [
                PlacedTree(
                    placed.request, placed.first_row, placed.prefix_len, TreeShape.chain(tree.num_drafted)
                )
                for placed in batch.placed
            ]
            row: dict[str, float] = {"requests": requests, "context": context}
            for name, placed in (("tree", batch.placed), ("chain", chains)):
                row[name] = median_ms(do_bench, batch, placed)
            found.append(row)
    return found


def median_ms(do_bench: Callable[..., Any], batch: PagedBatch, placed: list[PlacedTree]) -> float:
    """One call of the kernel, without packing the trees."""
    trees, output = pack_trees(placed, "cuda"), torch.empty_like(batch.query)
    parts = (batch.query, batch.key, batch.value, *batch.caches, batch.table)
    return do_bench(lambda: tree_attention(*parts, trees, output, SCALE), return_mode="median")


def run_engine(arguments: argparse.Namespace) -> dict[str, Any]:
    """Answers and seconds of one engine; in a process of its own, so that its memory is free afterwards."""
    from vllm import LLM, SamplingParams

    from treedecode.vllm import engine_args

    trees = engine_args(BUDGET) if arguments.engine == "trees" else {}
    llm = LLM(arguments.model, max_model_len=2048, gpu_memory_utilization=0.6, seed=0, **trees)
    params = SamplingParams(temperature=0.0, max_tokens=arguments.tokens, logprobs=5, ignore_eos=True)
    llm.generate(list(PROMPTS), params, use_tqdm=False)  # compiles and warms up
    began = time.perf_counter()
    outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
    batch_seconds = time.perf_counter() - began
    began = time.perf_counter()
    llm.generate([PROMPTS[0]], params, use_tqdm=False)
    answers = [
        {
            "token_ids": list(output.outputs[0].token_ids),
            "logprobs": [
                {token: entry.logprob for token, entry in place.items()}
                for place in output.outputs[0].logprobs
            ],
        }
        for output in outputs
    ]
    found = {
        "answers": answers,
        "batch_seconds": batch_seconds,
        "single_seconds": time.perf_counter() - began,
    }
    return found | ({"counts": llm.collective_rpc("tree_counts")[0]} if trees else {})


def check_engine(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trees against stock vLLM without speculation, greedy."""
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("stock", "trees"):
            file = Path(folder) / engine
            command = [sys.executable, __file__, "--engine", engine, "--output", str(file)]
            command += ["--model", arguments.model, "--tokens", str(arguments.tokens)]
            # trees run on the V1 runner; stock is run on it, too, so that trees are all that differs
            variables = {**os.environ, "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
            done = subprocess.run(command, env=variables, capture_output=True, text=True)
            if done.returncode:
                return {"passed": False, "engine": engine, "error": done.stderr[-4000:]}
            runs[engine] = json.loads(file.read_text())
    answers = zip(runs["stock"]["answers"], runs["trees"]["answers"], strict=True)
    differences = [difference(stock, trees) for stock, trees in answers]
    gaps = [found["gap_nat"] for found in differences if found]
    return {
        "passed": all(gap is not None and gap <= NEAR_TIE_NAT for gap in gaps),
        "identical": differences.count(None),
        "prompts": len(PROMPTS),
        "differences": [found for found in differences if found],
        "counts": runs["trees"]["counts"],
        **{
            f"{name}_{what}": round(run[what], 3)
            for name, run in runs.items()
            for what in ("batch_seconds", "single_seconds")
        },
    }


def difference(stock: dict[str, Any], trees: dict[str, Any]) -> dict[str, Any] | None:
    """The first place at which answers differ, and how much likelier stock's token is there by stock's own logprobs.

    Up to that place the contexts are the same; after it they are not, and nothing is compared.
    """
    pairs = list(zip(stock["token_ids"], trees["token_ids"], strict=True))
    place = next((place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if place is None:
        return None
    # JSON has turned token ids into strings; a token that is not among the likeliest has no gap: it is an error
    likely = stock["logprobs"][place]
    chosen, other = (likely.get(str(token)) for token in pairs[place])
    return {"place": place, "gap_nat": None if other is None else chosen - other}


if __name__ == "__main__":
    sys.exit(main())
