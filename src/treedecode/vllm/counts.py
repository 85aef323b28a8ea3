"""What the trees of an engine did, in plain counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from treedecode.accept import Acceptance
from treedecode.tree import DraftTree


@dataclass
class TreeCounts:
    """Counters since the start or the last ``reset``.

    Attributes:
        num_request_steps: verified steps, one per request and engine step.
        num_bare: of these, steps without a draft.
        num_emitted: tokens the walks emitted; vLLM may cut the last few of a request at a stop or its limit.
        num_drafted: drafted nodes that were verified.
        num_accepted: of these, accepted.
        num_moved_bytes: K/V moved behind accepted nodes.
        accepted_by_depth: accepted nodes by depth.
        accepted_by_rank: accepted nodes by rank among their siblings; those of rank over 0 are what a chain would
            have lost.
    """

    num_request_steps: int = 0
    num_bare: int = 0
    num_emitted: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_moved_bytes: int = 0
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    accepted_by_rank: Counter[int] = field(default_factory=Counter)

    def add_step(self, trees: Sequence[DraftTree], walks: Sequence[Acceptance]) -> None:
        """Count one engine step; one tree and one walk per request."""
        for tree, walk in zip(trees, walks, strict=True):
            self.num_request_steps += 1
            self.num_bare += not tree.num_drafted
            self.num_emitted += len(walk.token_ids)
            self.num_drafted += tree.num_drafted
            self.num_accepted += walk.num_accepted
            if walk.num_accepted:
                depths, ranks = tree.shape.depth_tuple, tree.shape.rank_tuple
                self.accepted_by_depth.update(depths[node] for node in walk.path[1:])
                self.accepted_by_rank.update(ranks[node] for node in walk.path[1:])

    def reset(self) -> TreeCounts:
        """Set every counter to zero, and return this object."""
        for each in fields(self):
            setattr(self, each.name, type(getattr(self, each.name))())
        return self

    def to_dict(self) -> dict[str, int | dict[int, int]]:
        """The counters as plain data; ``dataclasses.asdict`` would take a Counter's items for its keys."""
        return {
            name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()
        }

    @property
    def emitted_per_step(self) -> float:
        """E[L]: mean emitted tokens per request and step; 0.0 before the first step."""
        return self.num_emitted / self.num_request_steps if self.num_request_steps else 0.0
