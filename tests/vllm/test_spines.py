"""From candidates to leaf-sibling trees, and how a spine's length follows from budget, width and depth."""

from __future__ import annotations

import math

import pytest
import torch

from treedecode.tree import TreeShape
from treedecode.vllm.config import TreeOptions

pytestmark = pytest.mark.vllm

VOCAB = 50


def source(**options):
    from treedecode.vllm.drafters.spine import SpineTrees

    trees = SpineTrees()
    trees.start_trees(TreeOptions(**options))
    return trees


def limits(*names, depth=9, chain=False):
    from treedecode.vllm.proposer import RequestLimits

    return [RequestLimits(name, 3, depth, chain) for name in names]


def show(trees, depth, batch=2):
    """Random logits for every position; returns them ``[B, depth, vocab]``."""
    logits = torch.randn(batch, depth, VOCAB, generator=torch.Generator().manual_seed(0))
    for position in range(depth):
        trees.keep(logits[:, position])
    return logits


def test_the_tree_is_a_leaf_sibling_tree_of_the_best_candidates():
    trees = source(width=3)
    trees.prepare(limits("a", "b"))
    logits = show(trees, 4)
    drafts = trees.grow([7, 8], 12)
    best = logits.topk(3, dim=-1)
    assert drafts == best.indices.flatten(1).tolist()
    tree = trees.proposed["b"]
    assert tree.shape == TreeShape.leaf_siblings(4, 3) and tree.token_tuple == (8, *drafts[1])
    log_probs = logits.log_softmax(-1)[1]
    reach = log_probs[0].max() + log_probs[1].max() + log_probs[2, best.indices[1, 2, 1]]
    assert tree.scores[2 * 3 + 2] == pytest.approx(float(reach), abs=1e-5)


@pytest.mark.parametrize(
    ("budget", "options", "depth"),
    [
        (12, {"width": 3}, 4),
        (10, {"width": 3}, 4),
        (2, {"width": 3}, 1),
        (7, {"width": 1}, 7),
        (12, {"width": 2, "max_depth": 4}, 4),
    ],
)
def test_the_spine_is_as_long_as_budget_width_and_depth_allow(budget, options, depth):
    trees = source(**options)
    assert trees.spine_depth(budget) == depth
    trees.prepare(limits("a", "b"))
    show(trees, depth)
    [drafts, _] = trees.grow([7, 8], budget)
    assert len(drafts) == min(budget, depth * options["width"])


def test_requests_near_their_end_and_under_a_grammar():
    trees = source(width=3)
    trees.prepare(
        [
            *limits("shallow", depth=2),
            *limits("full", depth=0),
            *limits("past", depth=-3),
            *limits("grammar", chain=True),
        ]
    )
    logits = show(trees, 4, batch=4)
    shallow, full, past, grammar = trees.grow([7] * 4, 12)
    assert len(shallow) == 6 and full == past == [] and grammar == logits[3].argmax(-1).tolist()
    assert set(trees.proposed) == {"shallow", "grammar"} and trees.proposed["grammar"].shape.is_chain


def test_what_a_drafter_cannot_say_is_no_candidate():
    trees = source(width=3)
    trees.prepare(limits("a"))
    for allowed in ([4, 5], [6]):
        logits = torch.full((1, VOCAB), -math.inf)
        logits[0, allowed] = torch.arange(len(allowed), 0, -1).float()
        trees.keep(logits)
    assert trees.grow([7], 6) == [[4, 5, 6]]
    assert trees.proposed["a"].shape.parent_tuple == (-1, 0, 0, 1)


def test_a_vocabulary_of_its_own_is_mapped_in_place():
    trees = source(width=2)
    trees.prepare(limits("a"))
    ids = trees.keep(torch.arange(VOCAB).float()[None])
    ids.copy_(ids - 40)
    assert trees.grow([7], 2) == [[9, 8]]


def test_nothing_is_kept_of_the_last_proposal():
    trees = source(width=2)
    trees.prepare(limits("a", "b"))
    show(trees, 1)
    trees.grow([7, 8], 2)
    trees.forget("a")
    assert set(trees.proposed) == {"b"}
    trees.prepare(limits("c"))
    assert trees.grow([7], 2) == [[]] and not trees.proposed
