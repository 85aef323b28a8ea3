"""Traversal verification: from the leaves up, whole paths at once, for a batch.

A node v is entered with a weight w <= 1, the probability with which its path may be used: 1 for the root, and for a
child with token x min(1, w P(x) / Q(x)), with its parent's weight and rows as they stand. Its children come first, in
draw order, each with its whole subtree. When a child and all below it are rejected, with S = sum max(w P - Q, 0):

    P <- max(w P - Q, 0) / S        w <- S / (S + 1 - w)        Q <- Q without x, normalised (without replacement)

When no child is left, v itself is accepted with probability w, and the last token is drawn from P. The root's weight is
always 1. A child with Q(x) = 0 was not drawn, but fills a place where no token was left: it is entered with weight 0,
and its rejection changes nothing.

A chain is block verification (arXiv:2403.10444, Algorithm 2); trees are traversal verification (arXiv:2505.12398). Any
tree may be walked, at any width and depth.

What a node's state is when it is judged depends neither on the numbers nor on what is below its children: that they are
rejected is all it sees. So the weights of all nodes are computed first, one node's children after another, and the node
that is accepted is the first in postorder whose number is below its weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treedecode.drawing import at, normalised_rows, wide_dtype, without
from treedecode.walking import Trees, Walked, ancestors


def bottom_up(
    trees: Trees,
    target_probs: Tensor,
    draft_probs: Tensor,
    uniforms: Tensor,
    replacement: bool,
    depth_limit: int,
) -> Walked:
    """Walk every tree of the batch, in ``N - 1`` rounds over ``[B, V]`` rows.

    Args:
        trees: topology and tokens.
        target_probs: ``[B, N, V]``.
        draft_probs: ``[B, N, V]``.
        uniforms: ``[B, K]``, used in the order of the judgements (the root's takes none), then one for the last token.
        replacement: whether siblings were drawn with replacement.
        depth_limit: deeper nodes are not entered.
    """
    size = trees.num_nodes
    seen = ancestors(trees.parents)
    reached = seen[:, :, 0] & (seen.sum(2) - 1 <= depth_limit)
    place = _postorder(trees, seen, reached)
    numbers = uniforms.gather(1, place)
    # all children of a node after another, parents before their children; nodes out of reach come last
    order = torch.where(reached, trees.parents, size)
    order[:, 0] = size
    order = order.argsort(dim=1, stable=True)

    parent = trees.parents.new_zeros(len(trees.parents))
    target, draft = normalised_rows(target_probs, parent), normalised_rows(draft_probs, parent)
    weight = target.new_ones(len(target), dtype=wide_dtype(target))
    weights = target.new_zeros(trees.parents.shape, dtype=weight.dtype)
    weights[:, 0] = 1
    # the rows of the first node in postorder that passed, of those with children
    last, last_place = target, torch.full_like(parent, size)
    for turn in range(size - 1):
        child = order[:, turn]
        real = at(reached, child) & (child > 0)
        above = torch.where(real, at(trees.parents, child), parent)
        starts = above != parent
        parent = above
        target = torch.where(starts[:, None], normalised_rows(target_probs, parent), target)
        draft = torch.where(starts[:, None], normalised_rows(draft_probs, parent), draft)
        weight = at(weights, parent)

        token = at(trees.token_ids, child)
        drawn = at(draft, token)
        share = entry_weight(weight, at(target, token), drawn)
        weights.scatter_(1, child[:, None], torch.where(real, share, at(weights, child))[:, None])
        rejects = real & (drawn > 0)
        rest, rest_weight = remainder(weight, target, draft)
        target = torch.where(rejects[:, None], rest, target)
        weight = torch.where(rejects, rest_weight, weight)
        if not replacement:
            draft = torch.where(rejects[:, None], without(draft, token), draft)
        weights.scatter_(1, parent[:, None], weight[:, None])

        following = order[:, turn + 1]
        more = at(reached, following) & (following > 0) & (at(trees.parents, following) == parent)
        judged = real & ~more & (at(place, parent) < last_place)
        passed = judged & ((parent == 0) | accepts(at(numbers, parent), weight))
        last = torch.where(passed[:, None], target, last)
        last_place = torch.where(passed, at(place, parent), last_place)

    nodes = torch.arange(size, device=parent.device)
    passed = reached & ((nodes == 0) | accepts(numbers, weights))
    node = torch.where(passed, place, size).argmin(1)
    childless = ~(reached & (trees.parents == node[:, None])).any(1)
    rows = torch.where(childless[:, None], normalised_rows(target_probs, node), last)
    path = seen[torch.arange(len(node), device=node.device), node]
    return Walked(path, rows, at(place, node) + (node > 0))


def accepts(uniforms: Tensor, weight: Tensor) -> Tensor:
    """Whether u < w: strict, so that a path without target mass is never accepted, even at u = 0."""
    return uniforms.to(torch.promote_types(uniforms.dtype, weight.dtype)) < weight


def entry_weight(weight: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    """min(1, w P(x) / Q(x)), ``[B]``; 0 without target mass or draft mass."""
    reach = weight * target.to(weight.dtype)
    draft = draft.to(weight.dtype)
    share = torch.where(reach < draft, reach / torch.where(draft > 0, draft, 1), 1)
    return torch.where((reach > 0) & (draft > 0), share, 0)


def remainder(weight: Tensor, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """P and w after the rejection of a child: ``[B, V]`` and ``[B]``.

    Where nothing remains, P stays, and w is 1 if it was 1 (a rejection by rounding) and 0 otherwise.
    """
    rest = (weight[:, None].to(target.dtype) * target).sub_(draft).clamp_(min=0)
    total = rest.sum(-1, keepdim=True)
    new_target = torch.where(total > 0, rest.div_(torch.where(total > 0, total, 1)), target)
    mass, missing = total[:, 0].to(weight.dtype), 1 - weight
    new_weight = torch.where(missing > 0, mass / torch.where(missing > 0, mass + missing, 1), 1.0)
    return new_target, new_weight


def _postorder(trees: Trees, seen: Tensor, reached: Tensor) -> Tensor:
    """How many nodes are judged before each: those below it, and those of its path's elder siblings; ``[B, N]``."""
    nodes = torch.arange(trees.num_nodes, device=seen.device)
    sizes = (seen & reached[:, :, None]).sum(1)
    siblings = (trees.parents[:, None, :] == trees.parents[:, :, None]) & reached[:, None, :]
    elder = siblings & (nodes < nodes[:, None])
    before = (elder * sizes[:, None, :]).sum(2)
    return torch.where(reached, (seen * before[:, None, :]).sum(2) + sizes - 1, 0)
