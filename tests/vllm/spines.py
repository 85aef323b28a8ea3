"""``python -m tests.vllm.spines MODEL DRAFT FILE CASE...``: answers and counts with a draft model's trees.

A case is named ``group/index``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from tests.vllm.cases import ENGINE, ENVIRONMENT, GROUPS
from tests.vllm.running import run_cases, to_plain

DEPTH, WIDTH = 4, 3
# Relative to the spread of every weight matrix: the copy then agrees with the model on most next tokens, not on all.
NOISE = 0.15


def save_perturbed(model_dir: Path, folder: Path) -> None:
    """A copy of the model with noise on every matrix but the embeddings."""
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(0)
    weights = load_file(model_dir / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2 and "embed" not in name:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float32)
            weights[name] = (weight.float() + NOISE * weight.float().std() * noise).to(weight.dtype)
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for file in model_dir.glob("*.json"):
        (folder / file.name).symlink_to(file)


def main(model: str, draft: str, file: str, names: list[str]) -> None:
    os.environ.update(ENVIRONMENT)
    from vllm import LLM

    from treedecode.vllm import engine_args

    given = {"method": "draft_model", "model": draft, "num_speculative_tokens": DEPTH * WIDTH}
    # the model's two kinds of layers share one kind of cache, as vLLM's draft models need it
    trees = engine_args(width=WIDTH, cost="off", speculative_config=given)
    arguments = trees | {"disable_hybrid_kv_cache_manager": True}
    # two models are large already: logits of no more rows than the cases have
    llm = LLM(model, **ENGINE | {"max_num_seqs": 10}, **arguments)
    # all at once: the number of steps is that of the longest answer
    cases = [GROUPS[group][int(index)] for group, index in (name.split("/") for name in names)]
    answers = to_plain(run_cases(llm, cases))
    [counts] = llm.collective_rpc("tree_counts")
    Path(file).write_text(json.dumps([answers, counts]))


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4:])
