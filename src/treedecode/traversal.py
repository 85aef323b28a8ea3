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
"""

from __future__ import annotations

import torch
from torch import Tensor

from treedecode.drawing import at, normalised, rows_of, wide_dtype, without
from treedecode.walking import Trees, Walked


def bottom_up(
    trees: Trees,
    target_probs: Tensor,
    draft_probs: Tensor,
    uniforms: Tensor,
    replacement: bool,
    depth_limit: int,
) -> Walked:
    """Walk every tree of the batch.

    Every round enters one node or judges one, for every row: ``2 N - 1`` rounds. The rows of the current node's
    ancestors wait in a stack of ``depth_limit + 1`` levels.

    Args:
        trees: topology and tokens.
        target_probs: ``[B, N, V]``.
        draft_probs: ``[B, N, V]``.
        uniforms: ``[B, K]``, used in the order of the judgements (the root's takes none), then one for the last token.
        replacement: whether siblings were drawn with replacement.
        depth_limit: deeper nodes are not entered.
    """
    batch_size, size = trees.parents.shape
    rows = torch.arange(batch_size, device=trees.parents.device)
    node, level, used = (trees.parents.new_zeros(batch_size) for _ in range(3))
    child = trees.first_child[:, 0]
    done = torch.zeros_like(node, dtype=torch.bool)
    levels = min(depth_limit, size - 1) + 1
    target, draft = normalised(rows_of(target_probs, node)), normalised(rows_of(draft_probs, node))
    targets, drafts = (row.new_zeros(batch_size, levels, row.shape[1]) for row in (target, draft))
    weights = target.new_ones(batch_size, levels, dtype=wide_dtype(target))
    targets[:, 0], drafts[:, 0] = target, draft

    for _ in range(2 * size - 1):
        enters = ~done & (child >= 0) & (level + 1 < levels)
        judged = ~done & ~enters
        passed = judged & ((level == 0) | accepts(at(uniforms, used), at(weights, level)))
        failed = judged & ~passed
        used = used + (judged & (level > 0))
        done = done | passed

        # where the node is entered, its parent is the current node; where one was rejected, its parent is updated
        above = torch.where(failed, level - 1, level)
        target, draft, weight = targets[rows, above], drafts[rows, above], at(weights, above)
        entered = child.clamp(min=0)
        token = at(trees.token_ids, torch.where(enters, entered, node))
        share = entry_weight(weight, at(target, token), at(draft, token))
        undrawn = at(draft, token) == 0
        rest, rest_weight = remainder(weight, target, draft)
        rest = torch.where(undrawn[:, None], target, rest)
        rest_weight = torch.where(undrawn, weight, rest_weight)
        left = draft if replacement else without(draft, token)

        below = torch.where(enters, level + 1, above)
        new_target = torch.where(enters[:, None], normalised(rows_of(target_probs, entered)), rest)
        new_draft = torch.where(enters[:, None], normalised(rows_of(draft_probs, entered)), left)
        changed = enters | failed
        targets[rows, below] = torch.where(changed[:, None], new_target, target)
        drafts[rows, below] = torch.where(changed[:, None], new_draft, draft)
        weights[rows, below] = torch.where(enters, share, torch.where(failed, rest_weight, weight))
        child = torch.where(
            enters,
            at(trees.first_child, entered),
            torch.where(failed, at(trees.next_sibling, node), child),
        )
        node = torch.where(enters, entered, torch.where(failed, at(trees.parents, node).clamp(min=0), node))
        level = below
    return Walked(_path_of(trees, node, levels), targets[rows, level], used)


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
    rest = (weight[:, None].to(target.dtype) * target - draft).clamp(min=0)
    total = rest.sum(-1, keepdim=True)
    new_target = torch.where(total > 0, rest / torch.where(total > 0, total, 1), target)
    mass, missing = total[:, 0].to(weight.dtype), 1 - weight
    new_weight = torch.where(missing > 0, mass / torch.where(missing > 0, mass + missing, 1), 1.0)
    return new_target, new_weight


def _path_of(trees: Trees, node: Tensor, levels: int) -> Tensor:
    nodes = torch.arange(trees.num_nodes, device=node.device)
    accepted = (nodes == 0).expand_as(trees.parents)
    for _ in range(levels - 1):
        accepted = accepted | (nodes == node[:, None])
        node = at(trees.parents, node).clamp(min=0)
    return accepted
