"""How many nodes a walk accepts, exactly, on vocabularies of any size.

For one drafted tree, everything between two decisions is determined, so the mean over all random numbers of the walk is
a sum over nodes: nothing is drawn, and one pass over the rows is enough.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treedecode.accept_inputs import METHODS
from treedecode.drawing import at, normalised, without
from treedecode.rejection import residual
from treedecode.traversal import entry_weight, remainder
from treedecode.tree import DraftTree


def mean_accepted(tree: DraftTree, target_probs: Tensor, draft_probs: Tensor | None, method: str) -> float:
    """Mean number of accepted nodes over the numbers of the walk, for one drafted tree.

    Args:
        tree: the drafted tree.
        target_probs: floating ``[N, V]``. Not modified.
        draft_probs: floating ``[N, V]``, None for ``"one_draw"``. Not modified.
        method: as in ``treedecode.accept_sampled``.

    Raises:
        ValueError: another method, or no ``draft_probs`` where they are needed.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if method == "one_draw":
        return _one_draw(tree, target_probs)
    if draft_probs is None:
        raise ValueError(f"method {method!r} needs draft_probs")
    rows = _Rows(tree, target_probs, draft_probs, method.endswith("with_replacement"))
    return rows.bottom_up() if method.startswith("traversal") else rows.top_down()


def _one_draw(tree: DraftTree, target_probs: Tensor) -> float:
    reach = [1.0] + [0.0] * tree.num_drafted
    for node in range(tree.num_nodes):
        seen: set[int] = set()
        for child in tree.shape.children(node):
            token = tree.token_tuple[child]
            if token not in seen:  # the first of a token is followed
                reach[child] = reach[node] * float(target_probs[node, token])
            seen.add(token)
    return sum(reach[1:])


class _Rows:
    def __init__(self, tree: DraftTree, target: Tensor, draft: Tensor, replacement: bool) -> None:
        self._tree, self._target, self._draft = tree, target, draft
        self._replacement = replacement

    def _of(self, node: int) -> tuple[Tensor, Tensor]:
        rows = slice(node, node + 1)
        return normalised(self._target[rows]), normalised(self._draft[rows])

    def _left(self, draft: Tensor, token: Tensor) -> Tensor:
        return draft if self._replacement else without(draft, token)

    def _token(self, node: int) -> Tensor:
        return torch.tensor([self._tree.token_tuple[node]], device=self._target.device)

    def top_down(self) -> float:
        """Sum over nodes of the probability that the walk comes there."""
        reach = [1.0] + [0.0] * self._tree.num_drafted
        for node in range(self._tree.num_nodes):
            children = self._tree.shape.children(node)
            if not children or reach[node] == 0:
                continue
            (target, draft), left = self._of(node), reach[node]
            for child in children:
                token = self._token(child)
                drawn = float(at(draft, token))
                if drawn == 0:
                    continue
                accepted = min(1.0, float(at(target, token)) / drawn)
                reach[child], left = left * accepted, left * (1 - accepted)
                target, draft = residual(target, draft), self._left(draft, token)
        return sum(reach[1:])

    def bottom_up(self) -> float:
        """Sum over nodes of depth times the probability that the walk ends there."""
        total = 0.0

        def visit(node: int, weight: Tensor, left: float) -> float:
            """Visits what is below ``node`` and judges it; returns what is left of ``left`` if all is rejected."""
            nonlocal total
            target, draft = self._of(node)
            for child in self._tree.shape.children(node):
                token = self._token(child)
                left = visit(child, entry_weight(weight, at(target, token), at(draft, token)), left)
                if float(at(draft, token)) == 0:
                    continue
                target, weight = remainder(weight, target, draft)
                draft = self._left(draft, token)
            total += left * float(weight) * self._tree.shape.depth_tuple[node]
            return left * (1 - float(weight))

        visit(0, torch.ones(1, dtype=torch.float64), 1.0)
        return total
