"""Recursive rejection sampling over siblings, from the root down, for a batch.

At a node with target row P and draft row Q, siblings are tested in draw order. A sibling with token x is accepted
with probability min(1, P(x) / Q(x)). After a rejection P becomes the residual max(P - Q, 0), normalised, and Q loses
x and is normalised if the siblings were drawn without replacement. If all are rejected, the token is drawn from P.
A sibling with Q(x) = 0 was not drawn, but fills a place where no token was left: it is rejected, and P and Q stay.

With replacement: SpecInfer (arXiv:2305.09781), Algorithm 2, multi-step speculative sampling. Without: recursive
rejection sampling (RSD, arXiv:2402.14160) and Sequoia (arXiv:2402.12374). One sibling:
Leviathan et al. (arXiv:2211.17192), Algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treedecode.drawing import at, normalised_rows, without
from treedecode.tree import TreeShape
from treedecode.walking import Trees, Walked


def top_down(
    trees: Trees,
    target_probs: Tensor,
    draft_probs: Tensor,
    uniforms: Tensor,
    replacement: bool,
    depth_limit: int,
    max_tests: int,
) -> Walked:
    """Walk every tree of the batch.

    Args:
        trees: topology and tokens.
        target_probs: ``[B, N, V]``.
        draft_probs: ``[B, N, V]``.
        uniforms: ``[B, K]``, used in the order of the tests, then one for the last token.
        replacement: whether siblings were drawn with replacement.
        depth_limit: deeper nodes are not tested.
        max_tests: rounds, at least the most siblings that one walk can meet.
    """
    node = trees.parents.new_zeros(len(trees.parents))
    nodes = torch.arange(trees.num_nodes, device=node.device)
    accepted = (nodes == 0).expand_as(trees.parents)
    target, draft = normalised_rows(target_probs, node), normalised_rows(draft_probs, node)
    child = trees.first_child[:, 0]
    level, used = torch.zeros_like(node), torch.zeros_like(node)
    for _ in range(max_tests):
        tested, candidate = (child >= 0) & (level < depth_limit), child.clamp(min=0)
        token = at(trees.token_ids, candidate)
        drawn = at(draft, token)
        passed = tested & accepts(at(uniforms, used), at(target, token), drawn)
        failed = tested & ~passed & (drawn > 0)
        level, used = level + passed, used + tested
        accepted = accepted | (passed[:, None] & (nodes == candidate[:, None]))
        target = torch.where(
            passed[:, None],
            normalised_rows(target_probs, candidate),
            torch.where(failed[:, None], residual(target, draft), target),
        )
        remaining = draft if replacement else without(draft, token)
        draft = torch.where(
            passed[:, None],
            normalised_rows(draft_probs, candidate),
            torch.where(failed[:, None], remaining, draft),
        )
        after = torch.where(passed, at(trees.first_child, candidate), at(trees.next_sibling, candidate))
        child = torch.where(tested, after, child)
    return Walked(accepted, target, used)


def accepts(uniforms: Tensor, target: Tensor, draft: Tensor) -> Tensor:
    """Whether u < P(x) / Q(x): strict, so that a token without target mass is never accepted, even at u = 0."""
    wide = torch.promote_types(uniforms.dtype, target.dtype)
    return (uniforms.to(wide) * draft.to(wide) < target.to(wide)) & (draft > 0)


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """``max(target - draft, 0)``, normalised; ``target`` itself where nothing remains.

    Nothing remains only if the rows are equal, and then a rejection is a rounding error.
    """
    rest = (target - draft).clamp_(min=0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest.div_(torch.where(total > 0, total, 1)), target)


def most_tests(shape: TreeShape) -> int:
    """The most siblings that one top-down walk of ``shape`` can meet; for ``max_tests``."""
    below = [0] * shape.num_nodes
    for node in reversed(range(shape.num_nodes)):
        children = shape.children(node)
        for tests, child in enumerate(children, start=1):
            below[node] = max(below[node], tests + below[child])
    return below[0]
