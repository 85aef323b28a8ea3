"""One step as the target sees it: tokens, positions by depth, and additive masks for each kind of layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from treedecode.tree import DraftTree


class StepInput:
    """The rows of one forward pass: a tree of nodes, or a run of prompt tokens (a chain).

    Attributes:
        token_ids: int64 ``[N]``.
        position_ids: int64 ``[N]``, ``prefix_len + depth``.
        prefix_len: Rows of the cache that every node may see (subject to the window).
        num_rows: ``N``.
    """

    def __init__(
        self,
        token_ids: Tensor,
        depths: np.ndarray | None,
        tree_mask: np.ndarray | None,
        prefix_len: int,
        dtype: torch.dtype,
    ) -> None:
        self.token_ids = token_ids
        self.prefix_len = prefix_len
        self.num_rows = token_ids.shape[0]
        self._depths = np.arange(self.num_rows) if depths is None else depths
        self._tree_mask = tree_mask
        self._dtype = dtype
        positions = torch.from_numpy(self._depths.astype(np.int64) + prefix_len)
        self.position_ids = positions.to(token_ids.device, non_blocking=True)
        self._views: dict[tuple[int | None, int], tuple[int, Tensor]] = {}

    @classmethod
    def of_tree(cls, tree: DraftTree, prefix_len: int, device: torch.device, dtype: torch.dtype) -> StepInput:
        """The step of ``tree`` on a prefix of ``prefix_len`` cached tokens."""
        token_ids = torch.from_numpy(tree.token_ids.copy()).to(device, non_blocking=True)
        return cls(token_ids, tree.depths, tree.shape.mask(), prefix_len, dtype)

    @classmethod
    def of_chain(
        cls, token_ids: list[int], prefix_len: int, device: torch.device, dtype: torch.dtype
    ) -> StepInput:
        """A run of tokens that follow each other, as in prefill."""
        return cls(torch.tensor(token_ids, device=device), None, None, prefix_len, dtype)

    def view(self, window: int | None, copies: int = 1) -> tuple[int, Tensor]:
        """What a layer with this window reads: the first cache row, and the additive mask from there on.

        Returns:
            ``(start, mask)``: keys ``start .. prefix_len + N`` take part; ``mask`` is ``[N, prefix_len + N - start]``
            with 0 where visible and -inf elsewhere, ``copies`` times below each other. Built once per step for each
            distinct window and number.
        """
        key = (window, copies)
        if key not in self._views:
            start, mask = self._build_view(window) if copies == 1 else self.view(window)
            self._views[key] = (start, mask if copies == 1 else mask.repeat(copies, 1))
        return self._views[key]

    def _build_view(self, window: int | None) -> tuple[int, Tensor]:
        depths, prefix_len, num_rows = self._depths, self.prefix_len, self.num_rows
        start = 0 if window is None else max(0, prefix_len - window + 1)
        num_prefix = prefix_len - start
        if num_rows == 1:  # a root sees all of it
            zeros = torch.zeros(1, num_prefix + 1, device=self.token_ids.device, dtype=self._dtype)
            return start, zeros
        visible = np.ones((num_rows, num_prefix + num_rows), dtype=bool)
        visible[:, num_prefix:] = np.tri(num_rows, dtype=bool) if self._tree_mask is None else self._tree_mask
        if window is not None and prefix_len - start + int(depths.max(initial=0)) >= window:
            positions_q = depths + prefix_len
            positions_k = np.concatenate([np.arange(start, prefix_len), positions_q])
            visible &= positions_k[None, :] > positions_q[:, None] - window
        mask = np.where(visible, np.float32(0), np.float32("-inf"))
        return start, torch.from_numpy(mask).to(self.token_ids.device, self._dtype, non_blocking=True)
