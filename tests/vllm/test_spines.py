"""From candidates to leaf-sibling trees, and how a spine's length follows from budget, width and depth."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

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


def test_a_proposal_takes_the_place_of_the_last_and_those_of_other_requests_wait():
    """A request for which a step has no room keeps its drafts, which the scheduler runs later."""
    trees = source(width=2)
    trees.prepare(limits("a", "b", "c"))
    show(trees, 1, batch=3)
    trees.grow([7, 8, 9], 2)
    trees.forget("a")
    waiting = trees.proposed["b"]
    trees.prepare(limits("c", "d"))
    assert trees.grow([7, 8], 2) == [[], []] and trees.proposed == {"b": waiting}


class Sizes:
    """A planner that drafts to a depth and cuts every tree to a number of nodes."""

    def __init__(self, depth, size):
        self.fixed, self.size, self.asked, self.given = depth, size, [], []

    def depth(self, num_requests, shape, context):
        self.asked.append((num_requests, shape, context))
        return self.fixed

    def cut(self, trees, prefix_lens, depth):
        self.given.append((dict(trees), list(prefix_lens), depth))
        return {name: tree.prefix(self.size) for name, tree in trees.items()}


def test_the_planner_is_asked_how_deep_and_cuts_the_trees_of_requests_that_go_on():
    trees = source(width=3)
    trees.planner = planner = Sizes(2, 4)
    first, ended, last = limits("a", "b", "c")
    trees.prepare(
        [
            replace(first, num_tokens=10),
            replace(ended, max_depth=-1),
            replace(last, num_tokens=30, max_depth=1),
        ]
    )
    assert trees.begin(12) == 2
    assert planner.asked == [(2, TreeShape.leaf_siblings(4, 3), 20)]
    show(trees, 2, batch=3)
    drafts = trees.grow([7, 8, 9], 12)
    [(given, prefix_lens, depth)] = planner.given
    assert list(given) == ["a", "c"] and prefix_lens == [10, 30] and depth == 2
    assert [given[name].num_drafted for name in given] == [6, 3]
    assert [len(tokens) for tokens in drafts] == [4, 0, 3] and set(trees.proposed) == {"a", "c"}
    assert trees.counts.num_drafted == 9


def test_no_deeper_than_any_request_can_use():
    trees = source(width=3)
    trees.prepare([*limits("a", depth=2), *limits("b", depth=0)])
    assert trees.begin(12) == 2
    trees.prepare([*limits("a", depth=0), *limits("b", depth=-1)])
    assert trees.begin(12) == 0
    trees.planner = Sizes(4, 12)
    assert trees.begin(12) == 0 and trees.planner.asked == []
    # a step without drafts is planned, too: the guard measures it
    assert trees.grow([7, 8], 12) == [[], []]
    assert [tree.num_drafted for tree in trees.planner.given[0][0].values()] == [0]


class Proposer:
    """vLLM's proposer of a model, as far as it matters: a first pass in every step, and one more per further token."""

    vocab_mapping = None

    def propose(self, num_tokens, **kwargs):
        self.passes = ["first"]
        sampled = torch.zeros(2, 4)
        for position in range(num_tokens):
            if position:
                self.passes.append("more")
            self._greedy_sample(sampled)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_drafter_with_a_cache_runs_its_first_pass_in_every_step(depth):
    from treedecode.vllm.drafters.model import ModelTrees

    class Trees(ModelTrees, Proposer):
        model = SimpleNamespace(compute_logits=lambda hidden: torch.arange(VOCAB).float().repeat(2, 1))

    trees = Trees()
    trees.start_trees(TreeOptions(width=2))
    trees.planner = Sizes(depth, 6)
    trees.prepare(limits("a", "b"))
    drafts = trees.propose(6, next_token_ids=torch.tensor([7, 8]))
    assert trees.passes == ["first", "more", "more"][: max(1, depth)]
    assert [len(tokens) for tokens in drafts] == [2 * depth] * 2
    assert trees.kept_ms > 0.0


def test_the_first_pass_ends_once():
    trees = source(width=3)
    trees.prepare(limits("a"))
    assert trees.begin(12) == 4
    trees.first_pass_ends()
    first = trees.kept_ms
    trees.keep(torch.zeros(1, VOCAB))
    trees.first_pass_ends()
    assert trees.kept_ms == first > 0.0
    trees.begin(12)
    assert trees.kept_ms == 0.0


def test_medusa_heads_do_not_run_where_nothing_is_drafted():
    from treedecode.vllm.drafters.medusa import MedusaTrees

    ran = []
    trees = MedusaTrees.__new__(MedusaTrees)
    SpineTrees = MedusaTrees.__mro__[1]
    SpineTrees.start_trees(trees, TreeOptions(width=2))

    class Heads:
        def __call__(self, hidden):
            ran.append(1)
            return hidden

        def compute_logits(self, hidden):
            return [torch.arange(VOCAB).float().repeat(1, 1)] * 3

    trees.model = Heads()
    for depth, expected in ((0, []), (2, [[49, 48, 49, 48, 49, 48]])):
        trees.planner = Sizes(depth, 6)
        trees.prepare(limits("a"))
        assert trees.propose(6, torch.zeros(1, 4), None) == (expected or [[]])
        assert len(ran) == bool(depth)
    # all heads at once: a shallower draft takes as long
    assert trees.planner.given[0][2] == 3
