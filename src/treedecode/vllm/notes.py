"""What scheduler, workers and executor with trees tell each other beside vLLM's own messages. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treedecode.vllm.grammar import KeptTree

# among the attributes of vLLM's SchedulerOutput and ModelRunnerOutput, which travel as they are
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


@dataclass(frozen=True)
class SentDrafts:
    """The drafts of a step, sent with what it sampled.

    Attributes:
        drafts: vLLM's ``DraftTokenIds``; None where nothing was drafted.
    """

    drafts: Any

    def send_with(self, model_output: Any) -> None:
        """Let them travel with vLLM's ``ModelRunnerOutput``."""
        setattr(model_output, _NAME, self)

    @classmethod
    def of(cls, model_output: Any) -> SentDrafts | None:
        """What was sent with vLLM's ``ModelRunnerOutput``; None where nothing was, or it has not come yet."""
        return getattr(model_output, _NAME, None)
