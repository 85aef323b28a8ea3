"""Thin products with weights of the default model's shapes, plain and packed: ``python benchmarks/hf_linear.py``.

The layouts of ``engines/linear.py``, their constants and the int8 screen of the vocabulary head were chosen from this.
Weights are gone through as in a model, several copies of each in a row, so that they come from memory and not from the
processor's cache. Alternates the variants and reports medians. Writes ``benchmarks/results/hf_linear.json``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from common import median_interval, write_result
from treedecode.engines.head import Int8Weight
from treedecode.engines.linear import block_product, onednn_product, thin_product

# Shape and number of copies, about 100 MB of each.
WEIGHTS = {
    "qkv": ((1536, 640), 24),
    "attention out": ((640, 1024), 36),
    "gate and up": ((4096, 640), 9),
    "down": ((640, 2048), 18),
    "vocabulary head": ((262144, 640), 1),
}
ROWS = (1, 2, 4, 8, 16, 32)
ONEDNN_HINTS = (1, 16, 32)
WIDTHS = (32, 64, 128, 256, 320, 512)

Call = Callable[[Tensor], object]


def variants(weights: list[Tensor]) -> dict[str, Call]:
    """By label, what multiplies the rows with every one of ``weights``."""
    num_out, num_in = weights[0].shape
    calls: dict[str, Call] = {"F.linear": lambda x: [F.linear(x, w) for w in weights]}
    for hint in ONEDNN_HINTS:
        packed = [torch.ops.mkldnn._reorder_linear_weight(w, hint) for w in weights]
        calls[f"oneDNN, packed for {hint}"] = lambda x, ws=packed: [onednn_product(x, w) for w in ws]
    for width in WIDTHS:
        if num_out % width == 0:
            blocks = [w.view(-1, width, num_in).transpose(1, 2).contiguous() for w in weights]
            calls[f"blocks of {width}"] = lambda x, ws=blocks: [block_product(x, w) for w in ws]
    if len(weights) == 1:
        pieces = [Int8Weight(part) for part in weights[0].split(65536)]
        calls["thin, not packed"] = lambda x: thin_product(x, weights[0])
        calls["int8, twice the rows"] = lambda x: [p.product(x.repeat(2, 1).to(torch.int8)) for p in pieces]
    return calls


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    results = []
    for name, (shape, copies) in WEIGHTS.items():
        calls = variants([torch.randn(shape) * 0.02 for _ in range(copies)])
        for rows in ROWS:
            x = torch.randn(rows, shape[1])
            times: dict[str, list[float]] = {label: [] for label in calls}
            for turn in range(args.rounds + 2):
                for label, call in calls.items():
                    began = time.perf_counter()
                    call(x)
                    if turn >= 2:
                        times[label].append(1e3 * (time.perf_counter() - began) / copies)
            row = {"weight": name, "rows": rows, "ms": {k: median_interval(v) for k, v in times.items()}}
            results.append(row)
            print(f"{name:16s} {rows:3d}", {k: round(v["median"], 3) for k, v in row["ms"].items()})
    write_result("hf_linear", {"results": results})


if __name__ == "__main__":
    main()
