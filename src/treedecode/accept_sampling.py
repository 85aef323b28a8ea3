"""Sampled walks of a batch of trees: one interface for all methods, on any device, without host synchronisation.

Trees come as padded arrays (``treedecode.batch.pad_trees``). Every walk is a fixed number of rounds over ``[B, V]``
rows; a request that is done keeps its state, so nothing waits for a value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treedecode import rejection, traversal
from treedecode.accept_batch import BatchAcceptance
from treedecode.accept_inputs import METHODS, check_batch
from treedecode.drawing import at, draw, rows_of
from treedecode.topology import count
from treedecode.walking import Trees, Walked, link


def accept_sampled_batch(
    parents: Tensor,
    token_ids: Tensor,
    target_probs: Tensor,
    uniforms: Tensor,
    draft_probs: Tensor | None = None,
    method: str = "one_draw",
    num_nodes: Tensor | None = None,
    max_depth: int | None = None,
    max_tests: int | None = None,
) -> BatchAcceptance:
    """Walk a batch of trees along sampled tokens: ``accept_sampled`` for every row, without host synchronisation.

    Row b uses ``uniforms[b]`` in the order of its own decisions and nothing of the other rows, so it gives what it
    would give alone. The values cannot be checked without a synchronisation: rows must be distributions (they are
    normalised, in float32 or, if given in it, in float64). A sibling without probability in its parent's row of
    ``draft_probs`` was not drawn and is never accepted: such nodes fill places for which no token was left.

    Args:
        parents: int64 ``[B, N]``, -1 for the root; siblings in draw order; padding may hold anything.
        token_ids: int64 ``[B, N]``.
        target_probs: floating ``[B, N, V]``, the processed distribution after each node. Not modified.
        uniforms: floating ``[B, K]`` in [0, 1), best float64: at least ``max_depth + 1`` for ``"one_draw"``, at least
            N for the others.
        draft_probs: floating ``[B, N, V]``, row i = the distribution that node i's children were drawn from; rows
            of leaves are not read. Not modified. Needed by all methods but ``"one_draw"``, which does not look at it.
        method: as in ``accept_sampled``.
        num_nodes: integers ``[B]``, each at least 1; nodes from there on are padding.
        max_depth: the largest depth in the batch, ``N - 1`` if not given; deeper nodes are never accepted.
        max_tests: the most siblings that one top-down walk can meet (``most_tests``), ``N - 1`` if not given.

    Raises:
        TypeError: an id tensor is not int64, or probabilities or uniforms are not floating.
        ValueError: another method, a shape that disagrees, no ``draft_probs`` where they are needed, or too few
            uniforms.
    """
    depth_limit = _check(
        parents, token_ids, target_probs, uniforms, draft_probs, method, num_nodes, max_depth
    )
    trees = link(parents, token_ids, num_nodes)
    most = trees.num_nodes - 1
    tests = most if max_tests is None else min(most, count(max_tests, "max_tests"))
    walked = walk(trees, target_probs, draft_probs, uniforms, method, depth_limit, tests)
    return finish(trees, walked, uniforms, depth_limit)


def walk(
    trees: Trees,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    uniforms: Tensor,
    method: str,
    depth_limit: int,
    max_tests: int,
) -> Walked:
    """The walk of ``method``; arguments as checked by ``accept_sampled_batch``."""
    if draft_probs is None or method == "one_draw":
        return one_draw(trees, target_probs, uniforms, depth_limit)
    replacement = method.endswith("with_replacement")
    if method.startswith("traversal"):
        return traversal.bottom_up(trees, target_probs, draft_probs, uniforms, replacement, depth_limit)
    return rejection.top_down(trees, target_probs, draft_probs, uniforms, replacement, depth_limit, max_tests)


def one_draw(trees: Trees, target_probs: Tensor, uniforms: Tensor, depth_limit: int) -> Walked:
    """One token per visited node from the target's row; follow the child that has it."""
    batch_size = trees.parents.shape[0]
    node = trees.parents.new_zeros(batch_size)
    nodes = torch.arange(trees.num_nodes, device=node.device)
    accepted = (nodes == 0).expand(batch_size, -1)
    used = torch.zeros_like(node)
    for _ in range(min(depth_limit, trees.num_nodes - 1)):
        token = draw(rows_of(target_probs, node), at(uniforms, used))
        matches = (trees.parents == node[:, None]) & (trees.token_ids == token[:, None])
        found, child = matches.max(1)  # the first match
        accepted = accepted | (found[:, None] & (nodes == child[:, None]))
        node = torch.where(found, child, node)
        # without a match the same row is drawn again with the same number, and gives the same token
        used = used + found
    return Walked(accepted, rows_of(target_probs, node), used)


def finish(trees: Trees, walked: Walked, uniforms: Tensor, depth_limit: int) -> BatchAcceptance:
    """Paths and emitted tokens: those of the accepted nodes, then one drawn from ``walked.weights``."""
    accepted, size = walked.accepted, trees.num_nodes
    num_columns = max(size, depth_limit + 2)
    nodes = torch.arange(size, device=accepted.device).expand_as(accepted)
    # node order is depth order along the path: the k-th accepted node goes to column k, others to the last column
    column = torch.where(accepted, accepted.cumsum(1) - 1, num_columns)
    path = nodes.new_full((len(accepted), num_columns + 1), -1).scatter_(1, column, nodes)
    num_accepted = accepted.sum(1) - 1
    following = path[:, 1 : depth_limit + 2]
    emitted = trees.token_ids.gather(1, following.clamp(min=0)).masked_fill(following < 0, -1)
    last = draw(walked.weights, at(uniforms, walked.used))
    emitted = emitted.scatter(1, num_accepted[:, None], last[:, None])
    return BatchAcceptance(path[:, : depth_limit + 1], emitted, num_accepted)


def _check(
    parents: Tensor,
    token_ids: Tensor,
    target_probs: Tensor,
    uniforms: Tensor,
    draft_probs: Tensor | None,
    method: str,
    num_nodes: Tensor | None,
    max_depth: int | None,
) -> int:
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    depth_limit = check_batch(num_nodes, max_depth, parents=parents, token_ids=token_ids)
    batch_size, width = parents.shape
    for name, given in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        if given is None:
            continue
        if not given.is_floating_point():
            raise TypeError(f"{name} must be floating, got {given.dtype}")
        if given.ndim != 3 or given.shape[:2] != parents.shape or given.shape != target_probs.shape:
            raise ValueError(
                f"{name} must have target_probs' shape [B, N, V] with [B, N] = {[batch_size, width]}, "
                f"got {list(given.shape)}"
            )
    if draft_probs is None and method != "one_draw":
        raise ValueError(
            f"method {method!r} needs draft_probs, the distributions that the drafts were drawn from; "
            "deterministic drafts go with 'one_draw'"
        )
    needed = min(depth_limit + 1, width) if method == "one_draw" else width
    if not uniforms.is_floating_point():
        raise TypeError(f"uniforms must be floating, got {uniforms.dtype}")
    if uniforms.ndim != 2 or uniforms.shape[0] != batch_size or uniforms.shape[1] < needed:
        raise ValueError(
            f"uniforms must have shape [B, K] with B = {batch_size} and K >= {needed} for {method!r}, "
            f"got {list(uniforms.shape)}"
        )
    return depth_limit
