"""Accepted drafts per step, by sampler, temperature and budget: ``python benchmarks/sampled_acceptance.py``.

The drafter is the target with noise on every matrix. At positions of texts that the target sampled itself, trees of one
shape are drafted in three ways (the drafter's likeliest tokens; drawn with replacement; drawn without) and judged by
every method that is exact for them. Smaller budgets are prefixes of the same trees. The mean over the numbers of a walk
is computed, not sampled (``treedecode.testing.acceptance``), so the spread is that of positions and drafts. Nothing is
timed. Writes ``benchmarks/results/sampled_acceptance.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from common import load_prompts, write_result
from treedecode.drawing import draw, draw_siblings
from treedecode.engines.build import build_target
from treedecode.engines.cache import KVCache
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target
from treedecode.models import resolve_model
from treedecode.planner import plan_tree
from treedecode.streams import drafting_uniforms, keyed_uniforms
from treedecode.testing.acceptance import mean_accepted
from treedecode.tree import DraftTree, TreeShape

TEMPERATURES, BUDGETS = (0.6, 1.0, 1.3), (4, 8, 16, 32)
RANK_PROBS = (0.6, 0.2, 0.1, 0.05)
# how siblings are drafted, and the methods that are exact for it
DRAFTED = {
    "list": ("one_draw",),
    "replaced": ("with_replacement", "traversal_with_replacement"),
    "drawn": ("without_replacement", "traversal"),
}
PROMPTS = Path(__file__).with_name("tuning_prompts.jsonl")


@dataclass
class Reader:
    """A model and its cache of the text so far."""

    target: Target
    cache: KVCache

    def rows(self, step: StepInput, temperature: float, kept: slice | list[int] = slice(None)) -> Tensor:
        """Distributions after the ``kept`` nodes of a step, float32 ``[.., V]``; the cache's length stays."""
        logits = self.target.logits(self.target.forward(step, self.cache)[kept]).float()
        return (logits / temperature).softmax(-1)

    def read(self, token_ids: list[int], temperature: float) -> Tensor:
        """Adds tokens to the text; the distribution after them, ``[1, V]``."""
        step = StepInput.of_chain(token_ids, self.cache.length, self.target.device, self.target.dtype)
        rows = self.rows(step, temperature, slice(-1, None))
        self.cache.length += len(token_ids)
        return rows

    def tree_rows(self, tree: DraftTree, temperature: float, kept: slice | list[int] = slice(None)) -> Tensor:
        """``rows`` of a tree whose root is not in the cache yet."""
        step = StepInput.of_tree(tree, self.cache.length, self.target.device, self.target.dtype)
        return self.rows(step, temperature, kept)


def open_pair(noise: float, capacity: int) -> tuple[Any, Reader, Reader]:
    """Tokenizer, target, and the target with noise of ``noise`` standard deviations on every matrix."""
    path = resolve_model("default")
    readers = []
    for level in (0.0, noise):
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if level and weight.ndim == 2 and "embed" not in name:
                    weight += level * weight.std() * torch.randn(weight.shape, generator=generator)
        target = build_target(model.eval(), consume=True)
        readers.append(Reader(target, target.new_cache(capacity)))
    return AutoTokenizer.from_pretrained(path), *readers


def draft(
    drafter: Reader, shape: TreeShape, root: int, temperature: float, how: str, seed: int
) -> tuple[DraftTree, Tensor]:
    """A tree of ``shape`` and the distributions its children come from, level by level."""
    tokens = [root] + [0] * shape.num_drafted
    numbers = torch.from_numpy(drafting_uniforms(seed, drafter.cache.length, shape.num_nodes))
    rows = torch.zeros(shape.num_nodes, drafter.target.vocab_size)
    for depth in range(shape.max_depth):
        grown = [node for node in range(shape.num_nodes) if shape.depth_tuple[node] <= depth]
        inner = [node for node in grown if shape.depth_tuple[node] == depth and shape.children(node)]
        partial = DraftTree.sampled(shape, tokens).within_depth(depth)
        rows[inner] = drafter.tree_rows(partial, temperature, [grown.index(node) for node in inner])
        for node in inner:
            children = list(shape.children(node))
            if how == "list":
                drafted = rows[node].topk(len(children)).indices
            else:
                drafted = draw_siblings(rows[node : node + 1], numbers[None, children], how == "replaced")[0]
            for child, token in zip(children, drafted.tolist(), strict=True):
                tokens[child] = token
    return DraftTree.sampled(shape, tokens), rows


def positions(
    reader: Reader, drafter: Reader, prompt: list[int], temperature: float, stride: int, count: int, seed: int
) -> Iterator[int]:
    """Samples a text from the target; yields the last token, not yet read, at every ``stride``-th position."""
    for each in (reader, drafter):
        each.cache.length = 0
        each.read(prompt[:-1], temperature)
    last = prompt[-1]
    for position in range(stride * count):
        rows = reader.read([last], temperature)
        drafter.read([last], temperature)
        last = int(draw(rows, torch.from_numpy(keyed_uniforms(seed, [position]))))
        if (position + 1) % stride == 0:
            yield last


@torch.inference_mode()
def measure(args: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Accepted nodes by ``"temperature method budget"``, and the overlap of the models at the root, a position each."""
    tokenizer, reader, drafter = open_pair(args.noise, args.max_prompt + 256)
    tree_shape = plan_tree(RANK_PROBS, max(BUDGETS))
    accepted: dict[str, list[float]] = {}
    overlap: dict[str, list[float]] = {}
    for number, prompt in enumerate(load_prompts(args.prompts)[: args.num_prompts]):
        ids = [2, *tokenizer(prompt["turns"][0], add_special_tokens=False).input_ids][: args.max_prompt]
        for temperature in TEMPERATURES:
            spots = positions(reader, drafter, ids, temperature, args.stride, args.per_prompt, number)
            for root in spots:
                for how, methods in DRAFTED.items():
                    tree, draft_rows = draft(drafter, tree_shape, root, temperature, how, number)
                    target_rows = reader.tree_rows(tree, temperature)
                    for budget in BUDGETS:
                        part = tree.prefix(budget)
                        for method in methods:
                            mean = mean_accepted(part, target_rows, draft_rows, method)
                            accepted.setdefault(f"{temperature} {method} {budget}", []).append(mean)
                common = torch.minimum(target_rows[0], draft_rows[0]).sum()
                overlap.setdefault(str(temperature), []).append(float(common))
        print(f"{number + 1} prompts, {len(overlap[str(temperature)])} positions", flush=True)
    return accepted, overlap


def mean_interval(values: list[float]) -> dict[str, float]:
    """Mean and its bootstrap 95% interval."""
    array = np.array(values)
    drawn = np.random.default_rng(0).choice(array, (4000, len(array))).mean(1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"mean": float(array.mean()), "low": float(low), "high": float(high), "n": len(array)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--per-prompt", type=int, default=3, help="positions of each text")
    parser.add_argument("--stride", type=int, default=12, help="tokens between positions")
    parser.add_argument("--max-prompt", type=int, default=128, help="tokens of a prompt that are read")
    parser.add_argument("--noise", type=float, default=0.1, help="of a matrix's standard deviation")
    args = parser.parse_args()
    accepted, overlap = measure(args)
    means = {key: mean_interval(values) for key, values in accepted.items()}
    # the same drafts, so positions are pairs
    gains = {
        key: mean_interval([one - other for one, other in zip(accepted[key], accepted[base], strict=True)])
        for key in accepted
        if "traversal" in key
        for base in [key.replace("traversal_with", "with").replace("traversal", "without_replacement")]
    }
    write_result(
        "sampled_acceptance",
        {
            "unit": "accepted drafted tokens per step",
            "setup": {**vars(args), "prompts": args.prompts.name, "rank_probs": RANK_PROBS},
            "overlap": {key: mean_interval(values) for key, values in overlap.items()},
            "accepted": means,
            "traversal_gain": gains,
        },
    )
    for key, result in means.items():
        print(f"{key:36s} {result['mean']:.3f} [{result['low']:.3f}, {result['high']:.3f}]")


if __name__ == "__main__":
    main()
