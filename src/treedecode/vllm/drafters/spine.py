"""From the best candidates after every spine position to leaf-sibling trees."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from treedecode.batch_budget import BatchPlanner
from treedecode.drafters.base import VerifiedRows
from treedecode.engines.candidates import top_candidates
from treedecode.shape import TreeShape
from treedecode.tree import DraftTree
from treedecode.vllm.config import TreeOptions
from treedecode.vllm.counts import TreeCounts
from treedecode.vllm.proposer import RequestLimits, best_chain


class SpineTrees:
    """The tree source of a vLLM proposer: to stand before it in a class's bases; ``start_trees`` must be called once.

    A proposal asks ``begin`` how deep to draft. While the proposer drafts its chain, ``keep`` is shown the logits of
    every position; ``grow`` makes the trees, and the planner cuts them.
    """

    reads_target = True
    planner: BatchPlanner | None = None
    drafts = True

    def start_trees(self, options: TreeOptions) -> None:
        """Set up what is kept between calls."""
        self._options = options
        self._limits: Sequence[RequestLimits] = ()
        self._levels: list[tuple[Tensor, Tensor]] = []
        self.proposed: dict[str, DraftTree] = {}
        self.counts = TreeCounts()
        self.kept_ms, self._began, self._depth = 0.0, 0.0, 0
        self._in_first_pass = False

    def prepare(self, limits: Sequence[RequestLimits]) -> None:
        """As ``TreeSource``."""
        self._limits = limits

    def observe(self, rows: Mapping[str, VerifiedRows]) -> None:
        """As ``TreeSource``: a model reads the target itself."""

    def forget(self, request_id: str) -> None:
        """As ``TreeSource``."""
        self.proposed.pop(request_id, None)

    def clear_shared(self) -> None:
        """As ``TreeSource``: nothing is shared."""

    def spine_depth(self, budget: int) -> int:
        """Positions of a spine whose tree has up to ``budget`` drafted nodes."""
        return min(self._options.max_depth, math.ceil(budget / self._options.width))

    def shape(self, budget: int) -> TreeShape:
        """The trees of up to ``budget`` drafted nodes, where nothing ends before."""
        return _spine(self.spine_depth(budget), self._options.width).prefix(budget)

    def begin(self, budget: int) -> int:
        """Start a proposal of up to ``budget`` drafted nodes per tree.

        Returns:
            How deep to draft: as deep as any request can use, and as pays where there is a planner; 0 for not at all.
        """
        self._began, self.kept_ms, self._in_first_pass = time.perf_counter(), 0.0, True
        shape = self.shape(budget)
        going_on = [limits for limits in self._limits if limits.max_depth >= 0]
        depth = min(shape.max_depth, max((limits.max_depth for limits in going_on), default=0))
        if depth and self.planner is not None:
            context = sum(limits.num_tokens for limits in going_on) // len(going_on)
            depth = min(depth, self.planner.depth(len(going_on), shape, context))
        self._depth = depth
        return depth

    def first_pass_ends(self) -> None:
        """What the proposal took so far is spent in plain steps, too; later calls of a proposal say nothing."""
        if self._in_first_pass:
            self.kept_ms = 1e3 * (time.perf_counter() - self._began)
            self._in_first_pass = False

    def keep(self, logits: Tensor) -> Tensor:
        """Note the best candidates of the next position.

        Args:
            logits: ``[B, vocab]``, any float dtype. Not modified.

        Returns:
            Their ids, int64 ``[B, width]``, best first; a caller with a vocabulary of its own may map them in place.
        """
        values, ids = top_candidates(logits, min(self._options.width, logits.shape[1]))
        self._levels.append((ids, values.float() - logits.logsumexp(-1, keepdim=True).float()))
        return ids

    def grow(self, root_ids: Sequence[int], budget: int) -> list[list[int]]:
        """Make ``proposed`` of what was kept since the last call.

        Args:
            root_ids: every request's last token.
            budget: most drafted nodes per tree.

        Returns:
            The drafted tokens of every request, in node order.
        """
        levels, self._levels = self._levels, []
        if not levels:
            return self.offer((leaf_siblings(root, [], []) for root in root_ids), budget)
        ids = torch.stack([level for level, _ in levels], dim=1).tolist()
        scores = torch.stack([level for _, level in levels], dim=1).tolist()
        return self.offer(map(leaf_siblings, root_ids, ids, scores), budget)

    def offer(self, trees: Iterable[DraftTree], budget: int) -> list[list[int]]:
        """Make these trees ``proposed``, as far as every request's limits, the budget and the planner allow.

        Args:
            trees: one per request.
            budget: most drafted nodes per tree.

        Returns:
            The drafted tokens of every request, in node order.
        """
        going_on: dict[str, DraftTree] = {}
        prefix_lens = []
        for limits, whole in zip(self._limits, trees, strict=True):
            if limits.max_depth < 0:
                continue
            tree = whole.within_depth(limits.max_depth)
            if limits.chain:
                tree = best_chain(tree)
            self.counts.num_drafted += min(budget, tree.num_drafted)
            going_on[limits.request_id] = tree
            prefix_lens.append(limits.num_tokens)
        if self.planner is not None:
            going_on = self.planner.cut(going_on, prefix_lens, self._depth)
        else:
            going_on = {request_id: tree.prefix(budget) for request_id, tree in going_on.items()}
        ids = [limits.request_id for limits in self._limits]
        for request_id in ids:  # the trees of requests that are not in this step wait
            self.proposed.pop(request_id, None)
        self.proposed |= {request_id: tree for request_id, tree in going_on.items() if tree.num_drafted}
        return [list(going_on[name].token_tuple[1:]) if name in going_on else [] for name in ids]


@cache
def _spine(depth: int, width: int) -> TreeShape:
    return TreeShape.leaf_siblings(depth, width)


def leaf_siblings(root: int, ids: Sequence[Sequence[int]], scores: Sequence[Sequence[float]]) -> DraftTree:
    """The tree whose spine is the first candidate of every position, with the others as leaves, position by position.

    Args:
        root: the last token.
        ids: candidates by position, best first, none twice in a position.
        scores: their log probabilities; minus infinity, for what the drafter cannot say, leaves a candidate out.

    Returns:
        The tree; scores are log reach.
    """
    parents, tokens, reach = [-1], [root], [0.0]
    spine = 0
    for candidates, log_probs in zip(ids, scores, strict=True):
        first = len(tokens)
        for token, log_prob in zip(candidates, log_probs, strict=True):
            if log_prob == -math.inf:
                break
            parents.append(spine)
            tokens.append(token)
            reach.append(reach[spine] + log_prob)
        if len(tokens) == first:
            break
        spine = first
    return DraftTree.trusted(parents, tokens, reach)
