"""The rows of one engine step: which are nodes of trees, and which stay with vLLM's own attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from treedecode.accept import Acceptance
from treedecode.tree import DraftTree

if TYPE_CHECKING:
    from vllm.v1.attention.backend import CommonAttentionMetadata


@dataclass(frozen=True)
class TreeRows:
    """A request's tree in this step.

    Attributes:
        request: row of the request in the batch.
        first_row: row of the root among the step's tokens; the nodes follow it in node order.
        prefix_len: tokens whose K/V is in the cache before the root's.
        tree: the drafted tree.
    """

    request: int
    first_row: int
    prefix_len: int
    tree: DraftTree


class StashedKV(NamedTuple):
    """What a layer computed for all tree rows of the step, in ``StepTrees.rows`` order, and where it is written."""

    impl: Any
    layer: Any
    kv_cache: Tensor
    key: Tensor
    value: Tensor
    slot_mapping: Tensor


@dataclass
class StepTrees:
    """All trees of one step; requests that drafted nothing or a chain are not among them.

    Attributes:
        trees: at least one, in batch order.
        rows: int64, the tree rows among the step's tokens, tree by tree.
        linear_rows: int64, all other rows.
        stash: K/V of the tree rows by layer name, filled during the forward pass.
    """

    trees: Sequence[TreeRows]
    rows: Tensor
    linear_rows: Tensor
    stash: dict[str, StashedKV] = field(default_factory=dict)

    @classmethod
    def of(cls, trees: Sequence[TreeRows], num_rows: int, device: torch.device | str = "cpu") -> StepTrees:
        """The split of ``num_rows`` tokens into tree rows and others, on the engine's device."""
        ranges = [np.arange(tree.first_row, tree.first_row + tree.tree.num_nodes) for tree in trees]
        rows = np.concatenate(ranges)
        others = np.ones(num_rows, dtype=bool)
        others[rows] = False
        split = torch.from_numpy(np.concatenate([rows, np.flatnonzero(others)])).to(device)
        return cls(trees, split[: len(rows)], split[len(rows) :])

    def position_shift(self) -> Tensor:
        """What to add to the positions of ``rows``, which vLLM counted one by one: depth instead of node number."""
        shifts = [tree.tree.depths.astype(np.int64) - np.arange(tree.tree.num_nodes) for tree in self.trees]
        return torch.from_numpy(np.concatenate(shifts)).to(self.rows.device)

    def accepted_moves(self, walks: Sequence[Acceptance]) -> tuple[Tensor, Tensor]:
        """Where accepted nodes stand and where they belong, behind their root in path order.

        Args:
            walks: one per request of the batch.

        Returns:
            Sources and targets, int64, as places in ``rows``; nodes that stand right are left out.
        """
        sources, targets, offset = [], [], 0
        for tree in self.trees:
            for place, node in enumerate(walks[tree.request].path):
                if node != place:
                    sources.append(offset + node)
                    targets.append(offset + place)
            offset += tree.tree.num_nodes
        moves = torch.tensor([sources, targets], dtype=torch.int64).to(self.rows.device)
        return moves[0], moves[1]

    def linear_metadata(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata | None:
        """``common`` without the tree rows; None if nothing is left.

        A request that has rows before its root (after a preemption) keeps those.
        """
        if not len(self.linear_rows):
            return None
        starts = common.query_start_loc_cpu.numpy().astype(np.int64)
        num_nodes = np.zeros(common.num_reqs, dtype=np.int64)
        for tree in self.trees:
            num_nodes[tree.request] = tree.tree.num_nodes
        lengths = np.diff(starts) - num_nodes
        kept = np.flatnonzero(lengths > 0)
        device = common.seq_lens.device
        on_host = torch.from_numpy(kept)
        requests = on_host.to(device)
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int32))
        shortened = torch.from_numpy(num_nodes[kept]).to(device, common.seq_lens.dtype)
        return common.replace(
            query_start_loc=ends.to(device),
            query_start_loc_cpu=ends,
            seq_lens=common.seq_lens[requests] - shortened,
            num_reqs=len(kept),
            num_actual_tokens=len(self.linear_rows),
            max_query_len=int(lengths.max()),
            block_table_tensor=common.block_table_tensor[requests],
            slot_mapping=common.slot_mapping[self.linear_rows],
            positions=None if common.positions is None else common.positions[self.linear_rows],
            is_prefilling=None if common.is_prefilling is None else common.is_prefilling[on_host],
            seq_lens_cpu_upper_bound=None,
            _num_computed_tokens_cache=None,
            _token_to_req_indices_cache=None,
        )


@contextmanager
def metadata_with(step: StepTrees | None, builders: Iterable[Any]) -> Iterator[None]:
    """The attention metadata that ``builders`` build inside has the trees of ``step``; None: it is vLLM's own.

    Args:
        step: the trees.
        builders: each with a ``step``, as ``TreeBuilder`` has; None again afterwards.
    """
    told = list(builders)
    for builder in told:
        builder.step = step
    try:
        yield
    finally:
        for builder in told:
            builder.step = None


def commit_step(step: StepTrees, walks: list[Acceptance]) -> int:
    """Move the accepted nodes' K/V to the slots after the root's, in every layer.

    Rejected nodes keep the slots behind, which the next step overwrites before anything reads them.

    Returns:
        How many bytes were moved.
    """
    source, target = step.accepted_moves(walks)
    if not len(source):
        return 0
    slot = step.rows[target]
    num_bytes = 0
    for stash in step.stash.values():
        key, value = stash.key[source], stash.value[source]
        stash.impl.do_kv_cache_update(stash.layer, key, value, stash.kv_cache, stash.slot_mapping[slot])
        num_bytes += key.nbytes + value.nbytes
    return num_bytes
