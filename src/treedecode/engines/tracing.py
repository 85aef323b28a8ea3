"""Writes what the decode loop observes as trace records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from treedecode.accept import Acceptance
from treedecode.engines.judge import Verified
from treedecode.engines.request import Request
from treedecode.engines.state import StepObserver
from treedecode.trace import StepRecord, TraceWriter
from treedecode.tree import DraftTree

if TYPE_CHECKING:
    from treedecode.engines.load import LoadedModel


class TraceObserver:
    """A step observer that fills a :class:`TraceWriter`, and passes every step on to another observer if given."""

    def __init__(
        self,
        writer: TraceWriter,
        model: LoadedModel,
        request: Request,
        settings: dict[str, Any],
        then: StepObserver | None,
    ) -> None:
        self._writer, self._then, self._index = writer, then, 0
        sampling = {name: getattr(request.sampling, name) for name in request.sampling.__dataclass_fields__}
        self._header: dict[str, Any] = {
            "model": str(model.path),
            "model_type": model.config.model_type,
            "tokenizer": type(model.tokenizer).__name__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "implementation": model.implementation,
            "max_positions": model.target.max_positions,
            "cost": json.loads(model.cost.to_json()),
            "prompt_ids": list(request.prompt_ids),
            "settings": settings | sampling | {"stop_ids": sorted(request.stop_ids)},
        }

    def start(self) -> None:
        """Writes the header, which replaces what the file held: only once nothing can be refused any more.

        Raises:
            OSError: The file cannot be written.
            ValueError: The writer has a header already.
        """
        self._writer.header(self._header)

    def __call__(
        self,
        tree: DraftTree,
        verified: Verified,
        acceptance: Acceptance,
        prefix_len: int,
        step_ms: dict[str, float],
    ) -> None:
        if verified.log_norm is None:
            raise ValueError("a trace needs the softmax denominators of every row, got None")
        logprobs = verified.top_logits - verified.log_norm[:, None]
        self._writer.step(
            StepRecord(
                index=self._index,
                emitted_ids=list(acceptance.token_ids),
                prefix_len=prefix_len,
                parents=tree.parents.tolist(),
                token_ids=tree.token_ids.tolist(),
                sources=None if tree.sources is None else list(tree.sources),
                scores=None if tree.score_tuple is None else list(tree.score_tuple),
                path=list(acceptance.path),
                top_ids=verified.top_ids.tolist(),
                top_logprobs=logprobs.tolist(),
                draft_ms=step_ms["draft"],
                verify_ms=step_ms["prepare"] + step_ms["forward"] + step_ms["head"],
                commit_ms=step_ms["commit"],
            )
        )
        self._index += 1
        if self._then is not None:
            self._then(tree, verified, acceptance, prefix_len, step_ms)
