"""A tree step against a plain forward of the same number of rows: ``python benchmarks/hf_step.py``.

Alternates a tree of n nodes with a chain of n tokens on the default model, at several contexts, and takes ratios pair
by pair. Also the cost of n rows as a multiple of one row, and the share of the search for the drafters' candidates: the
step with the best eight tokens of every row against the step with the product of the vocabulary head alone. Writes
``benchmarks/results/hf_step.json``.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch

import treedecode as td
from common import median_interval, write_result
from treedecode.drafters.base import NUM_CANDIDATES
from treedecode.engines.head import ScreenedHead
from treedecode.engines.step import StepInput
from treedecode.tree import DraftTree, TreeShape

BAR = 1.05


def random_tree(rng: random.Random, num_nodes: int) -> DraftTree:
    """A bushy tree with distinct tokens."""
    parents = [-1] + [rng.randrange(max(0, node - 6), node) for node in range(1, num_nodes)]
    return DraftTree(TreeShape.from_parents(parents), rng.sample(range(1000, 50_000), num_nodes))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--model", default="default")
    args = parser.parse_args()
    model = td.load(args.model)
    target, rng = model.target, random.Random(0)
    cache = target.new_cache(4096)
    head = target._head
    product = head.screen if isinstance(head, ScreenedHead) else head.logits

    def run(tree: DraftTree | None, tokens: list[int], prefix_len: int, search: bool = True) -> float:
        began = time.perf_counter()
        if tree is None:
            step = StepInput.of_chain(tokens, prefix_len, target.device, target.dtype)
        else:
            step = StepInput.of_tree(tree, prefix_len, target.device, target.dtype)
        features = target.forward(step, cache)
        if search:
            target.top(features, NUM_CANDIDATES)
        else:
            product(features)
        return 1e3 * (time.perf_counter() - began)

    rows: list[dict[str, Any]] = []
    for prefix_len in (64, 600, 2048):
        cache.length = prefix_len
        for num_nodes in (4, 8, 16, 32):
            pairs = []
            for pair in range(args.pairs + 2):
                tree = random_tree(rng, num_nodes)
                tokens = list(tree.token_tuple)
                if pair % 2:
                    plain, ours, one = (
                        run(None, tokens, prefix_len),
                        run(tree, tokens, prefix_len),
                        run(None, tokens[:1], prefix_len),
                    )
                else:
                    one, ours, plain = (
                        run(None, tokens[:1], prefix_len),
                        run(tree, tokens, prefix_len),
                        run(None, tokens, prefix_len),
                    )
                bare = run(tree, tokens, prefix_len, search=False)
                if pair >= 2:
                    pairs.append((ours, plain, one, bare))
            row = {
                "prefix_len": prefix_len,
                "num_nodes": num_nodes,
                "tree_over_chain": median_interval([ours / plain for ours, plain, _, _ in pairs]),
                "tree_over_one_row": median_interval([ours / one for ours, _, one, _ in pairs]),
                "candidate_search_share": median_interval([1 - bare / ours for ours, _, _, bare in pairs]),
                "tree_ms": median_interval([ours for ours, _, _, _ in pairs]),
            }
            rows.append(row)
            print(
                prefix_len,
                num_nodes,
                row["tree_over_chain"],
                f"{row['tree_over_one_row']['median']:.2f} rows of one",
                f"search {row['candidate_search_share']['median']:.3f}",
            )
    write_result("hf_step", {"bar": BAR, "rows": rows})


if __name__ == "__main__":
    main()
