"""vLLM's executor of worker processes, in which drafts come with the tokens they follow.

``--distributed-executor-backend treedecode.vllm.executor.TreeExecutor``. Stock vLLM asks the workers for them in a call
of their own after every step, which takes a millisecond where engine and worker share few cores.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.outputs import DraftTokenIds

from treedecode.vllm.notes import SentDrafts


class TreeExecutor(MultiprocExecutor):
    """The stock executor; where a worker sends no drafts along, they are asked for as ever."""

    _sent: SentDrafts | None = None

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """As the stock method."""
        output = super().sample_tokens(*args, **kwargs)
        self._sent = SentDrafts.of(output)
        return output

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """As the stock method, mostly without a call of the workers."""
        sent, self._sent = self._sent, None
        return super().take_draft_token_ids() if sent is None else sent.drafts
