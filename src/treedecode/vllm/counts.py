"""What the trees of an engine did, in plain counters."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from treedecode.accept import Acceptance
from treedecode.tree import DraftTree


@dataclass
class TreeCounts:
    """Counters since they were made.

    Attributes:
        num_request_steps: steps that emitted tokens, one per request and engine step.
        num_bare: of these, steps without a draft.
        num_emitted: tokens of the requests' outputs: the sum of their lengths, as walks end where vLLM ends a request.
        num_drafted: nodes that drafters proposed.
        num_verified: drafted nodes that the target ran: those kept by the planner and by the scheduler.
        num_accepted: of these, accepted.
        num_failed_drafts: drafts that were lost to an error of their drafter.
        num_moved_bytes: K/V moved behind accepted nodes.
        last_budget: drafted nodes of the last engine step, all requests together.
        tried_by_depth: visited nodes with children, by the children's depth: how often a draft of that depth was put
            to the test.
        accepted_by_depth: accepted nodes by depth.
        tried_by_rank: drafts below visited nodes, by rank among their siblings.
        accepted_by_rank: accepted nodes by rank among their siblings.
    """

    num_request_steps: int = 0
    num_bare: int = 0
    num_emitted: int = 0
    num_drafted: int = 0
    num_verified: int = 0
    num_accepted: int = 0
    num_failed_drafts: int = 0
    num_moved_bytes: int = 0
    last_budget: int = 0
    tried_by_depth: Counter[int] = field(default_factory=Counter)
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    tried_by_rank: Counter[int] = field(default_factory=Counter)
    accepted_by_rank: Counter[int] = field(default_factory=Counter)

    def add_step(self, steps: Sequence[tuple[DraftTree, Acceptance]]) -> None:
        """Count one engine step; a tree and its walk per request."""
        self.last_budget = sum(tree.num_drafted for tree, _ in steps)
        for tree, walk in steps:
            self.num_request_steps += 1
            self.num_bare += not tree.num_drafted
            self.num_emitted += len(walk.token_ids)
            self.num_verified += tree.num_drafted
            self.num_accepted += walk.num_accepted
            if tree.num_drafted:
                self._add_walk(tree, walk)

    def _add_walk(self, tree: DraftTree, walk: Acceptance) -> None:
        shape = tree.shape
        # a walk that was cut at a stop emitted nothing at its last node
        for node in walk.path[: len(walk.token_ids)]:
            if num_children := len(shape.children(node)):
                self.tried_by_depth[shape.depth_tuple[node] + 1] += 1
                self.tried_by_rank.update(range(num_children))
        for node in walk.path[1:]:
            self.accepted_by_depth[shape.depth_tuple[node]] += 1
            self.accepted_by_rank[shape.rank_tuple[node]] += 1

    def copy(self) -> TreeCounts:
        """A copy that does not change."""
        copied: dict[str, Any] = {name: copy.copy(value) for name, value in vars(self).items()}
        return TreeCounts(**copied)

    def since(self, before: TreeCounts) -> TreeCounts:
        """What was counted after ``before``, a copy of these counters; the last budget is as it is now."""
        counted: dict[str, Any] = {name: value - getattr(before, name) for name, value in vars(self).items()}
        return TreeCounts(**{**counted, "last_budget": self.last_budget})

    def to_dict(self) -> dict[str, Any]:
        """The counters and the rates below as plain data."""
        counters = {
            name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()
        }
        return counters | {
            "num_wasted": self.num_wasted,
            "num_rescued": self.num_rescued,
            "emitted_per_step": self.emitted_per_step,
            "rescue_rate": self.rescue_rate,
        }

    @property
    def num_wasted(self) -> int:
        """Nodes that were verified and not accepted."""
        return self.num_verified - self.num_accepted

    @property
    def num_rescued(self) -> int:
        """Accepted nodes that are not their parent's first child: a chain of first children would have ended there."""
        return sum(count for rank, count in self.accepted_by_rank.items() if rank)

    @property
    def num_missed(self) -> int:
        """Visited nodes with children whose first child was wrong."""
        return self.tried_by_rank[0] - self.accepted_by_rank[0]

    @property
    def rescue_rate(self) -> float:
        """Of the visited nodes whose first child was wrong, the share at which a sibling was right; 0.0 for none."""
        return self.num_rescued / self.num_missed if self.num_missed else 0.0

    @property
    def emitted_per_step(self) -> float:
        """E[L]: mean emitted tokens per request and step; 0.0 before the first step."""
        return self.num_emitted / self.num_request_steps if self.num_request_steps else 0.0
