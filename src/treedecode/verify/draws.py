"""Counts of what a tree step draws on the model's own logits, against the model alone, by chi-squared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from treedecode.accept import accept_greedy
from treedecode.engines.judge import Judging
from treedecode.engines.params import SamplingParams
from treedecode.engines.request import Request
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target
from treedecode.tree import DraftTree
from treedecode.verify.counts import Counted, count_tokens
from treedecode.verify.plain import PlainModel

# Two guesses for the next token, and one more after the first of them.
_PARENTS = (-1, 0, 0, 1)


class _Rows(Target):
    """A target whose logits of one step are known, so that drawing again costs no forward pass."""

    def __init__(self, target: Target, logits: Tensor) -> None:
        self._logits = logits
        self.dtype, self.device, self.vocab_size = target.dtype, target.device, target.vocab_size

    def forward(self, step: StepInput, cache: object, keep_rows: int | None = None) -> Tensor:
        return self._logits

    def logits(self, features: Tensor) -> Tensor:
        return features


def most_open(rows: Sequence[Tensor]) -> int:
    """The row whose distribution has the highest entropy: where most can be told from counts."""
    entropies = [float(torch.special.entr(row).sum()) for row in rows]
    return entropies.index(max(entropies))


def count_draws(
    target: Target, plain: PlainModel, prompt_ids: Sequence[int], output_ids: Sequence[int], params: SamplingParams,
    num_draws: int,
) -> Counted:  # fmt: skip
    """Verifies one small tree after ``prompt_ids + output_ids``, with ``num_draws`` seeds from ``params.seed`` on.

    The tree has the likeliest tokens of the model alone. What is drawn after its root and after each node that a draw
    reaches is counted apart: these are the tokens that the step would emit.
    """
    context = [*prompt_ids, *output_ids]
    rows: dict[int, Tensor] = {0: plain.row(context)}
    first, second = rows[0].topk(2).indices.tolist()
    rows[1] = plain.row([*context, first])
    rows[2] = plain.row([*context, second])
    third = int(rows[1].argmax())
    rows[3] = plain.row([*context, first, third])
    tree = DraftTree.trusted(list(_PARENTS), [context[-1], first, second, third])
    drawn = _draw(target, tree, context, len(output_ids), params, num_draws)
    rounding = plain.rounding(context)
    places = [(rows[node], tokens) for node, tokens in drawn.items() if tokens]
    counted = count_tokens(places, params, rounding.tolerance)
    # the tree and the model alone are computed in different numbers of rows; a relative error e of every probability
    # adds at most n e^2
    allowance = counted.num_counted * math.expm1(2 * rounding.noise / params.temperature) ** 2
    return replace(counted, allowance=allowance)


@torch.inference_mode()
def _draw(
    target: Target, tree: DraftTree, context: list[int], position: int, params: SamplingParams, num_draws: int
) -> dict[int, list[int]]:
    """The tokens that were emitted after each node of one verified tree, over many seeds."""
    prefix_len = len(context) - 1
    cache = target.new_cache(prefix_len + tree.num_nodes)
    if prefix_len:
        target.forward(StepInput.of_chain(context[:-1], 0, target.device, target.dtype), cache, 1)
        cache.length = prefix_len
    step = StepInput.of_tree(tree, prefix_len, target.device, target.dtype)
    logits = target.logits(target.forward(step, cache))
    known = _Rows(target, logits)
    request = Request(tuple(context[: len(context) - position]), tree.num_nodes, tree.num_drafted, params)
    judging = Judging.of(known, request, wants_rows=False, traced=False)
    drawn: dict[int, list[int]] = {node: [] for node in range(tree.num_nodes)}
    for seed in range(params.seed, params.seed + num_draws):
        seeded = replace(judging, params=replace(params, seed=seed))
        walk = accept_greedy(tree, seeded(known, logits, tree, context, position).choices)
        for node, token in zip(walk.path, walk.token_ids, strict=True):
            drawn[node].append(token)
    return drawn
