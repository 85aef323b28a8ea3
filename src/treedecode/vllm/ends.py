"""Where vLLM ends a request, so that walks end there, too, and what they emit is what is output.

The scheduler cuts what a step emitted behind an end-of-sequence or stop token, a limit and a repetition; the API
server's detokenizer cuts behind a stop string. Both rules are vLLM's own code here. An end that is seen here and not
there would only make a step shorter; the output is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vllm.tokenizers.registry import cached_tokenizer_from_config
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.request import RequestStatus

from treedecode.accept import Acceptance

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu_input_batch import CachedRequestState


@dataclass
class _Output:
    """A request as ``check_stop`` looks at it."""

    sampling_params: SamplingParams
    num_prompt_tokens: int
    num_output_tokens: int
    output_token_ids: list[int]
    pooling_params: None = None
    status: RequestStatus | None = None
    stop_reason: int | str | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def max_tokens(self) -> int:
        limit = self.sampling_params.max_tokens
        assert limit is not None  # set by vLLM if not by the user
        return limit


class RequestEnds:
    """Knows the ends of all running requests.

    Args:
        model_config: of the engine; its tokenizer is loaded for the first request with stop strings.
    """

    def __init__(self, model_config: ModelConfig) -> None:
        self._model_config = model_config
        self._texts: dict[str, IncrementalDetokenizer] = {}
        self._ended: set[str] = set()

    def has_ended(self, request_id: str) -> bool:
        """Whether its output is complete. After a stop string the engine runs it on until the API server aborts it."""
        return request_id in self._ended

    def forget(self, request_id: str) -> None:
        """The request has left the engine, or starts."""
        self._texts.pop(request_id, None)
        self._ended.discard(request_id)

    def cut(self, request_id: str, request: CachedRequestState, walk: Acceptance) -> Acceptance:
        """``walk`` up to the token that ends the request, if one does.

        Args:
            request_id: vLLM's.
            request: as it is before the walk. Not modified.
            walk: of this step.
        """
        params = request.sampling_params
        assert params is not None  # pooling models are refused
        history = request.output_token_ids
        output = _Output(params, request.num_prompt_tokens, len(history), [])
        if params.repetition_detection is not None:
            output.output_token_ids = list(history)
        num_kept, stopped = 0, False
        while num_kept < len(walk.token_ids) and not stopped:
            output.output_token_ids.append(walk.token_ids[num_kept])
            output.num_output_tokens += 1
            num_kept += 1
            view: Any = output
            stopped = check_stop(view, self._model_config.max_model_len)
        if params.stop:
            by_token = stopped and output.status == RequestStatus.FINISHED_STOPPED
            num_kept = self._until_stop_string(request_id, request, walk.token_ids[:num_kept], by_token)
        if stopped:
            self._ended.add(request_id)
        return walk if num_kept == len(walk.token_ids) else walk.cut(num_kept)

    def _until_stop_string(
        self, request_id: str, request: CachedRequestState, token_ids: list[int], by_token: bool
    ) -> int:
        history = request.output_token_ids
        text = self._texts.get(request_id)
        if text is None or text.num_output_tokens() != len(history):
            text = self._texts[request_id] = self._text_of(request)
            text.update(list(history), False)
        if text.update(token_ids, by_token) is not None:
            self._ended.add(request_id)
        return text.num_output_tokens() - len(history)

    def _text_of(self, request: CachedRequestState) -> IncrementalDetokenizer:
        view: Any = SimpleNamespace(
            request_id="",
            prompt_token_ids=request.prompt_token_ids,
            prompt_embeds=request.prompt_embeds,
            sampling_params=request.sampling_params,
        )
        return IncrementalDetokenizer.from_new_request(cached_tokenizer_from_config(self._model_config), view)
