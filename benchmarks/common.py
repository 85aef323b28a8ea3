"""What the benchmarks share: medians with intervals, prompts, and where a number came from."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"
PROMPTS = Path(__file__).parents[2] / "shared" / "prompts.jsonl"


def median_interval(samples: Sequence[float]) -> dict[str, float]:
    """Median and its bootstrap 95% interval."""
    values = np.asarray(samples, dtype=float)
    drawn = np.random.default_rng(0).choice(values, (4000, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return {"median": float(np.median(values)), "low": float(low), "high": float(high), "n": len(values)}


def geomean_interval(ratios: Sequence[float]) -> dict[str, float]:
    """Geometric mean of ratios and its bootstrap 95% interval, with the median beside it."""
    logs = np.log(np.asarray(ratios, dtype=float))
    drawn = np.random.default_rng(0).choice(logs, (4000, len(logs))).mean(axis=1)
    low, high = np.exp(np.percentile(drawn, [2.5, 97.5]))
    return {
        "geomean": float(np.exp(logs.mean())),
        "low": float(low),
        "high": float(high),
        "median": float(np.exp(np.median(logs))),
        "n": len(logs),
    }


def load_prompts(path: Path) -> list[dict[str, Any]]:
    """The prompt file: one JSON object per line with ``id``, ``category`` and ``turns``."""
    if not path.exists():
        raise SystemExit(f"no prompt file at {path}: pass one with --prompts")
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def time_us(call: Callable[[], object], num_calls: int) -> float:
    """Mean time of a call over ``num_calls`` in a row, microseconds."""
    start = time.perf_counter_ns()
    for _ in range(num_calls):
        call()
    return (time.perf_counter_ns() - start) / num_calls / 1000


def repeated_share(token_ids: Sequence[int], size: int = 4) -> float:
    """Share of the n-grams of an output that occurred before in it: near 1 for a loop."""
    grams = [tuple(token_ids[i : i + size]) for i in range(len(token_ids) - size + 1)]
    return 1 - len(Counter(grams)) / len(grams) if grams else 0.0


def provenance() -> dict[str, Any]:
    """Command, versions and machine of this run."""
    import transformers

    import treedecode

    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {
        "command": "python " + " ".join(map(_without_folder, sys.argv)),
        "versions": {
            "treedecode": treedecode.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": {"cpu": model, "cores": os.cpu_count(), "threads": torch.get_num_threads()},
    }


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Saves a result with its provenance and says where."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(provenance() | result, indent=1) + "\n")
    print(f"wrote {path}")
    return path


def _without_folder(argument: str) -> str:
    """A path outside the repository by its name alone: where it lies is nobody's business."""
    return Path(argument).name if Path(argument).is_absolute() else argument
