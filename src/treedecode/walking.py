"""What the sampled walks of a batch share: the trees as they follow them, and where they ended."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Trees:
    """The topology and tokens of a batch, as the walks follow them.

    Attributes:
        token_ids: int64 ``[B, N]``.
        parents: int64 ``[B, N]``, -1 for the root and for padding.
        first_child: int64 ``[B, N]``, -1 = none.
        next_sibling: int64 ``[B, N]``, -1 = none; siblings in draw order.
    """

    token_ids: Tensor
    parents: Tensor
    first_child: Tensor
    next_sibling: Tensor

    @property
    def num_nodes(self) -> int:
        """Nodes of every row, padding included."""
        return self.parents.shape[1]


@dataclass(frozen=True)
class Walked:
    """Where the walks ended.

    Attributes:
        accepted: bool ``[B, N]``, the nodes of the path, root included.
        weights: ``[B, V]``, what the last token is to be drawn from; any positive sum.
        used: int64 ``[B]``, the numbers used so far; the next draws the last token.
    """

    accepted: Tensor
    weights: Tensor
    used: Tensor


def link(parents: Tensor, token_ids: Tensor, num_nodes: Tensor | None = None) -> Trees:
    """Children and siblings by pointers; padding and nodes without a parent before them are cut off."""
    nodes = torch.arange(parents.shape[1], device=parents.device)
    valid = (parents >= 0) & (parents < nodes)
    if num_nodes is not None:
        valid = valid & (nodes < num_nodes[:, None])
    parents = torch.where(valid, parents, -1)
    has_child, first = (parents[:, None, :] == nodes[:, None]).max(2)
    later = nodes[None, :] > nodes[:, None]
    siblings = (parents[:, None, :] == parents[:, :, None]) & later & valid[:, :, None]
    has_next, following = siblings.max(2)
    return Trees(token_ids, parents, torch.where(has_child, first, -1), torch.where(has_next, following, -1))


def ancestors(parents: Tensor) -> Tensor:
    """``[b, i, j]``: whether node j is i or an ancestor of i, bool ``[B, N, N]``; -1 and the root end a path."""
    batch_size, size = parents.shape
    nodes = torch.arange(size, device=parents.device)
    pointer = torch.where(parents >= 0, parents, nodes)
    seen = (nodes[:, None] == nodes).expand(batch_size, size, size)
    for _ in range((size - 1).bit_length()):
        seen = seen | seen.gather(1, pointer[:, :, None].expand(-1, -1, size))
        pointer = pointer.gather(1, pointer)
    return seen
