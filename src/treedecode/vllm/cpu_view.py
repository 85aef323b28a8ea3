"""What the trees of a step read from the cache, as padded arrays: built once per step, cache group and window."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treedecode.mask import tree_mask_tensor
from treedecode.vllm.step import StepTrees, TreeRows


@dataclass(frozen=True)
class PaddedTrees:
    """Trees whose visible prefixes span similar numbers of blocks, padded to the largest: ``B`` trees of ``N`` nodes.

    Attributes:
        places: int64 ``[B, N]``, the nodes' places in ``StepTrees.rows``; padding repeats the root.
        rows: int64 ``[B, N]``, their rows among the step's tokens.
        real: int64, which of the ``B * N`` nodes are no padding.
        real_rows: int64, the rows of these.
        block_ids: int64 ``[B, M]``; padding is block 0, which nothing sees.
        hidden: bool ``[B, 1, N, 1, M * block_size + N]``, keys that a node does not see: prefix keys block by block,
            then the tree's own.
    """

    places: Tensor
    rows: Tensor
    real: Tensor
    real_rows: Tensor
    block_ids: Tensor
    hidden: Tensor


def padded_trees(
    step: StepTrees, block_table: Tensor, block_size: int, window: int | None
) -> list[PaddedTrees]:
    """Group the trees of ``step`` by the size of their prefix, so that little is padded.

    Args:
        step: the trees.
        block_table: int ``[num_reqs, max_blocks]`` of the cache group.
        block_size: tokens per block.
        window: a key is visible if ``pos_q - window < pos``; positions by depth. None for all.
    """
    buckets: defaultdict[int, list[tuple[int, TreeRows]]] = defaultdict(list)
    offset = 0
    for rows in step.trees:
        first, end = _blocks(rows, block_size, window)
        buckets[(end - first).bit_length()].append((offset, rows))
        offset += rows.tree.num_nodes
    return [_pad(step, bucket, block_table, block_size, window) for bucket in buckets.values()]


def node_depths(rows: TreeRows) -> np.ndarray:
    """What a window counts by: siblings share a position, whatever slot they lie in."""
    return rows.tree.depths


def _blocks(rows: TreeRows, block_size: int, window: int | None) -> tuple[int, int]:
    """First and end block of the prefix that the root sees; deeper nodes see no earlier key."""
    first = 0 if window is None else max(0, rows.prefix_len + 1 - window) // block_size
    return first, -(-rows.prefix_len // block_size)


def _pad(
    step: StepTrees,
    bucket: list[tuple[int, TreeRows]],
    block_table: Tensor,
    block_size: int,
    window: int | None,
) -> PaddedTrees:
    num_trees = len(bucket)
    width = max(rows.tree.num_nodes for _, rows in bucket)
    spans = [_blocks(rows, block_size, window) for _, rows in bucket]
    num_blocks = max(end - first for first, end in spans)
    places = np.zeros((num_trees, width), np.int64)
    real = np.zeros((num_trees, width), bool)
    depths = np.zeros((num_trees, width), np.int64)
    block_ids = torch.zeros((num_trees, num_blocks), dtype=torch.int64)
    in_tree = torch.eye(width, dtype=torch.bool).repeat(num_trees, 1, 1)
    for row, ((offset, rows), (first, end)) in enumerate(zip(bucket, spans, strict=True)):
        size = rows.tree.num_nodes
        places[row] = offset
        places[row, :size] += np.arange(size)
        real[row, :size] = True
        depths[row, :size] = node_depths(rows)
        block_ids[row, : end - first] = block_table[rows.request, first:end]
        in_tree[row, :size, :size] = tree_mask_tensor(rows.tree.shape)
    prefix_lens = torch.tensor([rows.prefix_len for _, rows in bucket])[:, None, None]
    starts = torch.tensor([first * block_size for first, _ in spans])[:, None, None]
    positions_q = prefix_lens + torch.from_numpy(depths)[:, :, None]
    positions_k = starts + torch.arange(num_blocks * block_size)[None, None]
    in_prefix = (positions_k < prefix_lens).expand(-1, width, -1)
    if window is not None:
        in_prefix = in_prefix & (positions_k > positions_q - window)
        in_tree = in_tree & (positions_q.transpose(1, 2) > positions_q - window)
    all_rows = step.rows[torch.from_numpy(places)]
    of_real = torch.from_numpy(np.flatnonzero(real))
    return PaddedTrees(
        torch.from_numpy(places),
        all_rows,
        of_real,
        all_rows.flatten()[of_real],
        block_ids,
        ~torch.cat([in_prefix, in_tree], dim=2)[:, None, :, None],
    )
