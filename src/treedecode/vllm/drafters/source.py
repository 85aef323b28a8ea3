"""What the runner asks of whatever proposes trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from treedecode.drafters.base import VerifiedRows
from treedecode.tree import DraftTree
from treedecode.vllm.counts import TreeCounts

if TYPE_CHECKING:
    from treedecode.batch_budget import BatchPlanner
    from treedecode.vllm.proposer import RequestLimits


class TreeSource(Protocol):
    """A proposer of trees.

    Attributes:
        proposed: the trees of the last proposal by request id, until their step has been scheduled.
        counts: where it counts drafted nodes and failed drafts.
        planner: sizes the trees by what steps cost; None sizes none.
        drafts: whether the last proposal drafted, so that it wants what ``observe`` tells.
        kept_ms: milliseconds of the last proposal that a plain step takes as well: a drafter with a cache of its own
            fills it in every step.
        reads_target: it has a model that reads the target's rows, which must then stand in path order; and it wants
            none of what ``observe`` tells.
    """

    proposed: dict[str, DraftTree]
    counts: TreeCounts
    planner: BatchPlanner | None
    drafts: bool
    kept_ms: float
    reads_target: bool

    def prepare(self, limits: Sequence[RequestLimits]) -> None:
        """Say what the next proposal must keep to, in batch order."""
        ...

    def observe(self, rows: Mapping[str, VerifiedRows]) -> None:
        """Hear what the target said, by request."""
        ...

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        ...

    def clear_shared(self) -> None:
        """Forget what ended requests have left."""
        ...
