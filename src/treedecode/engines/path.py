"""What stands before every node of a step: the committed tokens of its request, and its own ancestors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from treedecode.tree import DraftTree


class Committed:
    """The tokens of one request up to the root, counted as they are committed.

    A step reads only what the last one added. Another sequence than before (by identity) is read from its start, so
    that one object may serve several requests, only slower.

    Attributes:
        token_ids: Prompt and output up to the root, as the caller keeps them.
        num_output: How many of them are output.
        columns: Every token among them, with its place in ``counts``.
        counts: How often it is in the output.
    """

    token_ids: Sequence[int]
    num_output: int

    def __init__(self) -> None:
        self._forget(())

    def _forget(self, token_ids: Sequence[int]) -> None:
        self.token_ids, self.num_output, self._num_read = token_ids, 0, 0
        self._array = np.empty(0, np.int64)
        self.columns: dict[int, int] = {}
        self.counts: list[int] = []

    def follow(self, token_ids: Sequence[int], num_output: int) -> None:
        """Reads on to the end of ``token_ids``, of which the last ``num_output`` are output."""
        if token_ids is not self.token_ids or len(token_ids) < self._num_read:
            self._forget(token_ids)
        start = len(token_ids) - num_output
        if len(token_ids) > len(self._array):
            self._array = np.resize(self._array, 2 * len(token_ids))
        for place in range(self._num_read, len(token_ids)):
            token = self._array[place] = token_ids[place]
            column = self.columns.setdefault(token, len(self.columns))
            if column == len(self.counts):
                self.counts.append(0)
            self.counts[column] += place >= start
        self.num_output, self._num_read = num_output, len(token_ids)

    @property
    def array(self) -> np.ndarray:
        """``token_ids`` as int64 ``[L]``, a view."""
        return self._array[: self._num_read]


@dataclass(frozen=True)
class Paths:
    """The paths of a step's nodes: committed tokens (the root's is the last of them), then ancestors down to the node.

    Attributes:
        tree: Of the step.
        committed: Of its request, followed up to the root.
    """

    tree: DraftTree
    committed: Committed

    @cached_property
    def num_output(self) -> np.ndarray:
        """Output tokens up to and including every node, int64 ``[N]``."""
        return self.committed.num_output + self.tree.depths.astype(np.int64)

    @cached_property
    def counts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How often each node's path has each token that any path has.

        Returns:
            ``(token_ids, in_output, seen)``: int64 ``[U]``; float32 ``[N, U]``, its count in the output; bool
            ``[N, U]``, whether it is in prompt or output. A node's row is its parent's and one token more.
        """
        columns, num_known = self.committed.columns, len(self.committed.columns)
        drafted: dict[int, int] = {}
        places = [
            columns[token] if token in columns else drafted.setdefault(token, num_known + len(drafted))
            for token in self.tree.token_tuple[1:]
        ]
        rows = np.zeros((self.tree.num_nodes, num_known + len(drafted)), np.float32)
        rows[0, :num_known] = self.committed.counts
        seen = np.zeros(rows.shape, bool)
        seen[0, :num_known] = True
        for node, place in enumerate(places, start=1):
            parent = self.tree.shape.parent_tuple[node]
            rows[node], seen[node] = rows[parent], seen[parent]
            rows[node, place] += 1
            seen[node, place] = True
        return np.array([*columns, *drafted], np.int64), rows, seen

    def tails(self, length: int) -> np.ndarray:
        """The last ``length`` tokens of every path, int64 ``[N, length]``; -1 where a path is shorter."""
        tails = np.full((self.tree.num_nodes, length), -1, np.int64)
        if length:
            last = self.committed.token_ids[-length:]
            tails[0, length - len(last) :] = last
            for node in range(1, self.tree.num_nodes):
                tails[node, :-1] = tails[self.tree.shape.parent_tuple[node], 1:]
                tails[node, -1] = self.tree.token_tuple[node]
        return tails

    def levels(self) -> list[list[int]]:
        """Nodes by depth, the root's first."""
        levels: list[list[int]] = [[] for _ in range(self.tree.shape.max_depth + 1)]
        for node, depth in enumerate(self.tree.shape.depth_tuple):
            levels[depth].append(node)
        return levels

    def token_ids(self, nodes: Sequence[int]) -> np.ndarray:
        """Whole paths, prompt first, of ``nodes``, which are of one depth: int64 ``[len(nodes), L + depth]``."""
        shape, tokens, committed = self.tree.shape, self.tree.token_tuple, self.committed.array
        paths = np.empty((len(nodes), len(committed) + shape.depth_tuple[nodes[0]]), np.int64)
        paths[:, : len(committed)] = committed
        for row, node in enumerate(nodes):
            place = paths.shape[1]
            while node:
                place -= 1
                paths[row, place] = tokens[node]
                node = shape.parent_tuple[node]
        return paths
