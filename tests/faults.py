"""Faults that a tree engine can have, planted on purpose: a test that passes under one of them tests nothing.

Each is a context manager that breaks the engine while it is open. ``FAULTS`` maps names to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from treedecode.engines import state
from treedecode.engines.cache import KVCache
from treedecode.engines.step import StepInput


@contextmanager
def flat_positions() -> Iterator[None]:
    """Position ids by place in the step instead of by depth."""
    original = StepInput.of_tree.__func__

    def of_tree(cls: Any, tree: Any, prefix_len: int, device: Any, dtype: Any) -> Any:
        made = original(cls, tree, prefix_len, device, dtype)
        made.position_ids = made.position_ids.new_tensor(np.arange(made.num_rows) + prefix_len)
        return made

    with mock.patch.object(StepInput, "of_tree", classmethod(of_tree)):
        yield


@contextmanager
def causal_mask() -> Iterator[None]:
    """Every node sees all nodes before it, cousins included."""
    original = StepInput.__init__

    def init(self: Any, token_ids: Any, depths: Any, tree_mask: Any, prefix_len: int, dtype: Any) -> None:
        original(self, token_ids, depths, None, prefix_len, dtype)

    with mock.patch.object(StepInput, "__init__", init):
        yield


@contextmanager
def hidden_prefix() -> Iterator[None]:
    """The newest row of the prefix is not visible to the step."""
    original = StepInput._build_view

    def build_view(self: Any, window: int | None) -> Any:
        start, mask = original(self, window)
        if self.prefix_len and mask.shape[1] > self.num_rows:
            mask = mask.clone()
            mask[:, mask.shape[1] - self.num_rows - 1] = float("-inf")
        return start, mask

    with mock.patch.object(StepInput, "_build_view", build_view):
        yield


@contextmanager
def window_by_slot() -> Iterator[None]:
    """The sliding window counts cache rows instead of positions."""
    original = StepInput._build_view

    def build_view(self: Any, window: int | None) -> Any:
        depths, self._depths = self._depths, np.arange(self.num_rows)
        try:
            return original(self, window)
        finally:
            self._depths = depths

    with mock.patch.object(StepInput, "_build_view", build_view):
        yield


@contextmanager
def no_compaction() -> Iterator[None]:
    """Accepted rows stay where the step wrote them."""

    def commit(self: Any, path: Sequence[int]) -> None:
        self.length += len(path)

    with mock.patch.object(KVCache, "commit", commit):
        yield


@contextmanager
def stale_row() -> Iterator[None]:
    """The last accepted row is replaced by a rejected one, which the next step then reads."""
    original = KVCache.commit

    def commit(self: Any, path: Sequence[int]) -> None:
        path = list(path)
        rejected = [node for node in range(path[-1] + 2) if node not in path]
        original(self, [*path[:-1], rejected[-1]] if len(path) > 1 else path)

    with mock.patch.object(KVCache, "commit", commit):
        yield


@contextmanager
def shifted_drafts() -> Iterator[None]:
    """Every node is judged by the row before its own."""
    original = state.accept_greedy

    def accept(tree: Any, choices: list[int]) -> Any:
        return original(tree, [choices[0], *choices[:-1]])

    with mock.patch.object(state, "accept_greedy", accept):
        yield


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "flat position ids": flat_positions,
    "causal mask among nodes": causal_mask,
    "prefix not visible": hidden_prefix,
    "window by slot": window_by_slot,
    "no compaction": no_compaction,
    "rejected row read in the next step": stale_row,
    "drafts one row off": shifted_drafts,
}
