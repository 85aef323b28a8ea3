"""Thin products with the default model's weights, plain and packed: ``python benchmarks/hf_linear.py``.

The row count that weights are packed for (``linear._PACK_ROWS``) and the int8 screen of the vocabulary head were
chosen from this. Alternates the variants and reports medians. Writes ``benchmarks/results/hf_linear.json``.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn import functional as F

from common import median_interval, write_result
from treedecode.engines.head import Int8Weight

SHAPES = {
    "qkv": (1536, 640),
    "attention out": (640, 1024),
    "gate and up": (4096, 640),
    "down": (640, 2048),
    "quarter of the vocabulary head": (65536, 640),
}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    pack, product = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    results = []
    for name, shape in SHAPES.items():
        weight = torch.randn(shape) * 0.02
        packed = {hint: pack(weight, hint) for hint in (1, 8, 16, 32)}
        half, eighth = pack(weight.bfloat16(), 16), Int8Weight(weight)
        for rows in (1, 2, 4, 8, 16, 32):
            x = torch.randn(rows, shape[1])
            thin, steps = x.bfloat16(), torch.randint(-127, 128, (2 * rows, shape[1]), dtype=torch.int8)
            calls = {"plain": lambda x=x, weight=weight: F.linear(x, weight)}
            for hint, w in packed.items():
                calls[f"packed for {hint}"] = lambda x=x, w=w: product(x, w, None, "none", [], "")
            calls["bfloat16"] = lambda x=thin, w=half: product(x, w, None, "none", [], "")
            calls["int8, twice the rows"] = lambda x=steps, w=eighth: w.product(x)
            times: dict[str, list[float]] = {label: [] for label in calls}
            for turn in range(args.rounds + 2):
                for label, call in calls.items():
                    began = time.perf_counter()
                    call()
                    if turn >= 2:
                        times[label].append(1e3 * (time.perf_counter() - began))
            row = {"weight": name, "rows": rows, "ms": {k: median_interval(v) for k, v in times.items()}}
            results.append(row)
            print(f"{name:31s} {rows:3d}", {k: round(v["median"], 3) for k, v in row["ms"].items()})
    write_result("hf_linear", {"results": results})


if __name__ == "__main__":
    main()
