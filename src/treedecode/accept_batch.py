"""The greedy walk of a batch of trees, as tensors on any device, without host synchronisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treedecode.accept_inputs import check_batch

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class BatchAcceptance:
    """The outcome of a batch of walks, on the device of the inputs.

    Attributes:
        path: int64 ``[B, D + 1]``, accepted nodes, root first, -1 padded.
        token_ids: int64 ``[B, D + 1]``, emitted tokens, -1 padded.
        num_accepted: int64 ``[B]``.
    """

    path: torch.Tensor
    token_ids: torch.Tensor
    num_accepted: torch.Tensor


def walk_batch(
    parents: torch.Tensor,
    token_ids: torch.Tensor,
    target_ids: torch.Tensor,
    num_nodes: torch.Tensor | None = None,
    max_depth: int | None = None,
) -> BatchAcceptance:
    """Walk a batch of trees at once: ``accept_greedy`` for every row, without host synchronisation.

    Every node points at its parent if it matches the target's choice there, at itself if not; pointer
    doubling takes each to the root, through matches alone, or not. The number of tensor operations grows with
    log(depth).

    The values cannot be checked without a synchronisation: ``treedecode.batch`` builds checked batches. A
    node whose parent is missing or does not precede it is never accepted.

    Args:
        parents: int64 ``[B, N]``, -1 for the root; padding may hold anything.
        token_ids: int64 ``[B, N]``, siblings pairwise different.
        target_ids: int64 ``[B, N]``, the target's choice after each node.
        num_nodes: integers ``[B]``, each at least 1; nodes from there on are padding and never accepted.
        max_depth: the largest depth in the batch, ``N - 1`` if not given; deeper nodes are never accepted.

    Raises:
        TypeError: an input is not int64.
        ValueError: the shapes disagree or ``max_depth`` is negative.
    """
    import torch

    depth_limit = check_batch(
        num_nodes, max_depth, parents=parents, token_ids=token_ids, target_ids=target_ids
    )
    batch_size, width = parents.shape
    nodes = torch.arange(width, device=parents.device).expand(batch_size, width)
    safe_parents = parents.clamp(0, width - 1)
    matches = (target_ids.gather(1, safe_parents) == token_ids) & (parents >= 0) & (parents < nodes)
    if num_nodes is not None:
        matches &= nodes < num_nodes[:, None]
    pointer = torch.where(matches, safe_parents, nodes)
    for _ in range(max(0, min(depth_limit, width - 1) - 1).bit_length()):
        pointer = pointer.gather(1, pointer)
    accepted = pointer == 0

    # node order is depth order along the path: the k-th accepted node goes to column k, others to the last
    # column
    num_columns = max(width, depth_limit + 1)
    column = torch.where(accepted, accepted.cumsum(1) - 1, num_columns)
    path = parents.new_full((batch_size, num_columns + 1), -1).scatter_(1, column, nodes)[
        :, : depth_limit + 1
    ]
    padding = path < 0
    emitted = target_ids.gather(1, path.clamp(min=0)).masked_fill_(padding, -1)
    return BatchAcceptance(path, emitted, depth_limit - padding.sum(1))
