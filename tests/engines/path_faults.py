"""Faults in what stands before a node, planted on purpose; each is a context manager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any
from unittest import mock

import numpy as np

from treedecode.engines import processing
from treedecode.engines.path import Paths
from treedecode.tree import DraftTree


class Misread(Paths):
    """Paths whose row of a node is that of another node."""

    @property
    def rows(self) -> list[int]:
        raise NotImplementedError

    @cached_property
    def num_output(self) -> np.ndarray:
        return Paths(self.tree, self.committed).num_output[self.rows]

    @cached_property
    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        token_ids, in_output, seen = Paths(self.tree, self.committed).counts
        return token_ids, in_output[self.rows], seen[self.rows]

    def tails(self, length: int) -> np.ndarray:
        return Paths(self.tree, self.committed).tails(length)[self.rows]

    def token_ids(self, nodes: list[int]) -> Any:
        return Paths(self.tree, self.committed).token_ids([self.rows[node] for node in nodes])


class RootOnly(Misread):
    """Every node has the history of the root."""

    @property
    def rows(self) -> list[int]:
        return [0] * self.tree.num_nodes


class OffByOne(Misread):
    """A node's own token is not part of its path."""

    @property
    def rows(self) -> list[int]:
        return [max(parent, 0) for parent in self.tree.shape.parent_tuple]


def siblings_leak(tree: DraftTree, committed: Any) -> Paths:
    """All nodes before a node are on its path."""
    return Paths(DraftTree.trusted(range(-1, tree.num_drafted), tree.token_tuple), committed)


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    name: partial(mock.patch.object, processing, "Paths", fault)
    for name, fault in {
        "siblings count for each other": siblings_leak,
        "the root's history for all nodes": RootOnly,
        "a path without its last token": OffByOne,
    }.items()
}
