"""The live budget: cuts every proposed tree to the size that pays, by measured cost and observed acceptance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from treedecode.acceptance import EdgeEstimates
from treedecode.allocate import scored_reach
from treedecode.guard import Guard, Look, Mode, ModeChange
from treedecode.planner import choose_budget
from treedecode.surface import Cost
from treedecode.tree import DraftTree

# The widest tree that budget="auto" looks at.
AUTO_MAX_DRAFTED = 48
# What a request is called where there is no other.
_ONLY = 0


class BudgetPlanner:
    """Chooses how many nodes of each tree to verify.

    Takes the number of nodes with the most expected tokens per millisecond of this step (``choose_budget``). Valuing a
    step's time at the rate of the steps before it would be the optimum for known reach; with estimated reach it lagged
    behind the text and was 5% slower on the tuning prompts. Reach is what the drafter says; that of trees without
    scores is learnt from the steps.

    Args:
        cost: Milliseconds by number of rows and context, of the machine and model in use.
        guard: Watches over what steps really take; without one every tree is cut by what the cost promises.
    """

    def __init__(self, cost: Cost, guard: Guard | None = None) -> None:
        self._cost, self._guard = cost, guard
        self._estimates = EdgeEstimates()
        self._promised = 0.0
        self._new_look: PendingLook | None = None
        self._looks: list[PendingLook] = []

    @property
    def drafts(self) -> bool:
        """Whether a tree is wanted in the next step; if not, ``cut`` need not be called."""
        return self._guard is None or self._guard.drafts

    @property
    def guard_changes(self) -> tuple[ModeChange, ...]:
        """Every change of mode of the guard so far."""
        return () if self._guard is None else self._guard.changes

    def cut(self, tree: DraftTree, prefix_len: int = 0) -> DraftTree:
        """The best prefix of ``tree`` for a step after ``prefix_len`` cached tokens.

        Of its best chain, or of its root alone, where the guard has found that no more pays.
        """
        curve, guard = self._cost.at(prefix_len), self._guard
        reach = self._reach(tree)
        size = choose_budget(reach[1:], curve, tree.num_drafted)
        best = tree.prefix(size)
        if guard is not None and guard.looks:
            chain, chain_reach = likeliest_chain(tree, reach)
            chain_size = choose_budget(chain_reach[1:], curve, chain.num_drafted)
            chain = chain.prefix(chain_size)
            ms = curve.table(1 + max(size, chain_size))
            self._new_look = PendingLook(
                {_ONLY: best}, ms[1 + size], {_ONLY: chain}, ms[1 + chain_size], ms[1]
            )
            best, reach, size = chain, chain_reach, chain_size
            if guard.mode is Mode.NONE:
                best, size = tree.prefix(0), 0
        self._promised = math.fsum(reach[1 : 1 + size])
        return best

    def record(
        self,
        tree: DraftTree,
        path: Sequence[int],
        prefix_len: int = 0,
        step_ms: float | None = None,
        draft_ms: float = 0.0,
    ) -> None:
        """Learns from a step.

        Args:
            tree: As verified, the root alone if nothing was drafted.
            path: Accepted nodes, root first.
            prefix_len: Cached tokens before the step.
            step_ms: What it took, drafting included; without it the guard does not learn.
            draft_ms: What drafting took.
        """
        if tree.score_tuple is None:
            self._estimates.observe(tree, path)
        guard = self._guard
        if guard is None or step_ms is None:
            return
        if self._looks or self._new_look is not None:
            self._follow(tree, path, guard)
        table = self._cost.at(prefix_len).table(tree.num_nodes)
        guard.record(
            len(path), step_ms, draft_ms, tree.num_drafted, self._promised, table[tree.num_nodes], table[1]
        )
        self._promised = 0.0

    def _follow(self, tree: DraftTree, path: Sequence[int], guard: Guard) -> None:
        """Shows drafts that were not verified how the text went on. The root is what the last step emitted last."""
        accepted = [tree.token_tuple[node] for node in path[1:]]
        for look in self._looks:
            look.follow({_ONLY: (tree.token_tuple[0], *accepted)})
        if self._new_look is not None:
            self._new_look.follow({_ONLY: accepted})
            self._looks.append(self._new_look)
            self._new_look = None
        for look in self._looks:
            if look.done:
                guard.looked(look.result)
        self._looks = [look for look in self._looks if not look.done]

    def _reach(self, tree: DraftTree) -> list[float]:
        """Reach of all nodes: as scored, else as learnt."""
        return self._estimates.reach(tree) if tree.score_tuple is None else scored_reach(tree)


class Follower:
    """How far the text goes along a draft that is not verified.

    Args:
        draft: Its root is the last committed token.
    """

    def __init__(self, draft: DraftTree) -> None:
        self._draft = draft
        self._node: int | None = 0 if draft.num_drafted else None
        self.num_accepted = 0

    @property
    def done(self) -> bool:
        """Whether the text has left the draft."""
        return self._node is None

    def follow(self, token: int) -> None:
        """The next token of the text."""
        node, self._node = self._node, None
        if node is None:
            return
        # over the nodes rather than their children: a tree that is only looked at never has those listed
        parents, tokens = self._draft.shape.parent_tuple, self._draft.token_tuple
        for child in range(node + 1, len(parents)):
            if parents[child] == node and tokens[child] == token:
                self._node = child
                self.num_accepted += 1
                break


class PendingLook:
    """The drafts of a step that are not verified, and how far the texts have followed their trees and their chains.

    Args:
        trees: By request.
        tree_ms: What the step takes with them by the cost curve.
        chains: Of the same requests.
        chain_ms: What the step takes with those.
        plain_ms: What it takes with neither.
    """

    def __init__(
        self,
        trees: Mapping[Any, DraftTree],
        tree_ms: float,
        chains: Mapping[Any, DraftTree],
        chain_ms: float,
        plain_ms: float,
    ) -> None:
        self._trees = {name: Follower(tree) for name, tree in trees.items()}
        self._chains = {name: Follower(chain) for name, chain in chains.items()}
        self._ms = tree_ms, chain_ms, plain_ms
        self._open = set(trees)

    @property
    def done(self) -> bool:
        """Whether every text has left its drafts or ended."""
        return not self._open

    def follow(self, emitted: Mapping[Any, Sequence[int]]) -> None:
        """What the requests of the next step emitted; those that are not among them have ended or wait."""
        for name in list(self._open):
            tree, chain = self._trees[name], self._chains[name]
            for token in emitted.get(name, ()):
                tree.follow(token)
                chain.follow(token)
            if name not in emitted or (tree.done and chain.done):
                self._open.discard(name)

    @property
    def result(self) -> Look:
        """What both would have given per request."""
        tree_ms, chain_ms, plain_ms = self._ms
        num_requests = len(self._trees)
        return Look(
            sum(follower.num_accepted for follower in self._trees.values()) / num_requests,
            tree_ms,
            sum(follower.num_accepted for follower in self._chains.values()) / num_requests,
            chain_ms,
            plain_ms,
        )


def likeliest_chain(tree: DraftTree, reach: Sequence[float]) -> tuple[DraftTree, list[float]]:
    """The likeliest child of the likeliest child, and so on, with the reach of each."""
    best: dict[int, int] = {}
    for node, parent in enumerate(tree.shape.parent_tuple):
        if parent >= 0 and (parent not in best or reach[node] > reach[best[parent]]):
            best[parent] = node
    nodes = [0]
    while nodes[-1] in best:
        nodes.append(best[nodes[-1]])
    return tree.along(nodes), [reach[node] for node in nodes]
