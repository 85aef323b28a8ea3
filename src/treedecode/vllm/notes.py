"""What the scheduler with trees tells the workers beside vLLM's ``SchedulerOutput``. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treedecode.vllm.grammar import KeptTree

# among the attributes of vLLM's SchedulerOutput, which travels as it is
_NAME = "treedecode_notes"


@dataclass(frozen=True)
class SchedulerNotes:
    """What a step's workers must know.

    Attributes:
        kept: which nodes are left of the trees of requests with a grammar, by request id.
        forgets: the prefix cache was reset, so that drafts of ended requests are to be forgotten, too.
    """

    kept: Mapping[str, KeptTree] = field(default_factory=dict)
    forgets: bool = False

    def send_with(self, scheduler_output: Any) -> None:
        """Let them travel with vLLM's ``SchedulerOutput``."""
        setattr(scheduler_output, _NAME, self)

    @classmethod
    def of(cls, scheduler_output: Any) -> SchedulerNotes:
        """What was sent with vLLM's ``SchedulerOutput``; nothing by another scheduler."""
        return getattr(scheduler_output, _NAME, _NOTHING)


_NOTHING = SchedulerNotes()
