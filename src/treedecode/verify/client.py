"""Completions of an OpenAI-compatible server, with what vLLM adds where it is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from treedecode.json_text import parse_json
from treedecode.trace import first_fault
from treedecode.verify.completion import Answer, Completion, Models

_Kind = TypeVar("_Kind", bound=BaseModel)

# Tokens with logprobs per position: the most that every server gives.
TOP = 5
# vLLM's own: token ids beside text, and ids in place of strings in logprobs.
_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}
_REFUSED = (401, 403)


class EndpointError(ValueError):
    """A server that cannot be verified; the message names the flag, its URL and the reason."""


class Endpoint:
    """A running server; as a context manager it ends its connections.

    Args:
        url: ``http://HOST:PORT``, with or without ``/v1``.
        flag: What the user gave the URL with, for messages.
        model: Name that the server knows the model by; None for the first that it lists.
        api_key: Sent as a bearer token, if any.
        logprobs: Whether to ask for logprobs.
        timeout_s: Longest wait for an answer.

    Raises:
        EndpointError: No such server, a key is needed, the model is unknown, or there are no logprobs.
    """

    def __init__(
        self,
        url: str,
        flag: str,
        model: str | None = None,
        api_key: str | None = None,
        logprobs: bool = True,
        timeout_s: float = 600.0,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._flag, self._logprobs = flag, logprobs
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx2.Client(headers=headers, timeout=httpx2.Timeout(timeout_s, connect=10.0))
        self._extra: dict[str, Any] = {}
        try:
            self.model = self._find_model(model)
            self._probe()
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self._flag} {self.url}"

    def complete(
        self, prompt: str | Sequence[int], max_tokens: int, options: dict[str, Any] | None = None
    ) -> Completion:
        """One completion; greedy unless ``options`` (other fields of the request) say otherwise.

        Raises:
            EndpointError: As the class, and for everything else that the server refuses.
        """
        response = self._post(self._body(prompt, max_tokens, options))
        return self._read([self._json(response)])

    def stream(
        self, prompt: str | Sequence[int], max_tokens: int, options: dict[str, Any] | None = None
    ) -> Completion:
        """As :meth:`complete`, in pieces, which are put together."""
        body = self._body(prompt, max_tokens, options) | {"stream": True}
        try:
            with self._client.stream("POST", f"{self.url}/v1/completions", json=body) as response:
                if response.status_code != httpx2.codes.OK:
                    response.read()
                    self._refuse(response)
                pieces = list(self._pieces(response))
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        return self._read(pieces)

    def _pieces(self, response: httpx2.Response) -> Iterator[dict[str, Any]]:
        for line in response.iter_lines():
            content = line.removeprefix("data:").strip()
            if content == "[DONE]":
                return
            if not content or not line.startswith("data:"):
                continue
            piece = self._parsed(content)
            if "error" in piece:
                raise EndpointError(f"{self.name}: the stream ended with {piece['error']}")
            yield piece
        raise EndpointError(f"{self.name}: the stream ended without [DONE]")

    def _body(
        self, prompt: str | Sequence[int], max_tokens: int, options: dict[str, Any] | None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0}
        body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        if self._logprobs:
            body["logprobs"] = TOP
        return body | self._extra | (options or {})

    def _find_model(self, wanted: str | None) -> str:
        try:
            response = self._client.get(f"{self.url}/v1/models")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unreachable(error) from error
        if response.status_code != httpx2.codes.OK:
            self._refuse(response)
        served = [entry.id for entry in self._checked(Models, self._json(response)).data]
        if not served or (wanted is not None and wanted not in served):
            raise EndpointError(
                f"{self.name} does not serve the model {wanted!r}, but {', '.join(served) or 'none'}; "
                "name one of them with --served-model"
            )
        return served[0] if wanted is None else wanted

    def _probe(self) -> None:
        """One token: does the server know vLLM's fields, and does it give logprobs?"""
        self._extra = dict(_IDS)
        response = self._post(self._body("a", 1, None), check=False)
        if response.status_code in (400, 422):
            self._extra = {}
            response = self._post(self._body("a", 1, None), check=False)
        says = response.text.lower()
        if self._logprobs and response.status_code in (400, 422) and "logprobs" in says:
            raise self._no_logprobs(_message(response))
        if response.status_code != httpx2.codes.OK:
            self._refuse(response)
        if self._logprobs and self._read([self._json(response)]).logprobs is None:
            raise self._no_logprobs("the answer has none")

    def _no_logprobs(self, reason: str) -> EndpointError:
        return EndpointError(
            f"{self.name} gives no logprobs with completions ({reason}): expected logprobs={TOP} to be allowed; "
            "--no-logprobs compares tokens alone, without telling near ties from errors"
        )

    def _post(self, body: dict[str, Any], check: bool = True) -> httpx2.Response:
        try:
            response = self._client.post(f"{self.url}/v1/completions", json=body)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        if check and response.status_code != httpx2.codes.OK:
            self._refuse(response)
        return response

    def _unreachable(self, error: Exception) -> EndpointError:
        if isinstance(error, (httpx2.UnsupportedProtocol, httpx2.InvalidURL)):
            return EndpointError(f"{self.name} is no URL of a server: expected http://HOST:PORT ({error})")
        if isinstance(error, httpx2.TimeoutException):
            return EndpointError(f"{self.name} did not answer in time ({type(error).__name__})")
        return EndpointError(f"{self.name} cannot be reached ({error}): is the server running there?")

    def _refuse(self, response: httpx2.Response) -> None:
        status, says = response.status_code, _message(response)
        if status in _REFUSED:
            raise EndpointError(
                f"{self.name} refused the request ({status}): {says}; give its key with --api-key or OPENAI_API_KEY"
            )
        if status == httpx2.codes.NOT_FOUND:
            path = response.url.path
            raise EndpointError(f"{self.name} has no {path}, as OpenAI-compatible servers do (404): {says}")
        raise EndpointError(f"{self.name} answered {status}: {says}")

    def _json(self, response: httpx2.Response) -> dict[str, Any]:
        return self._parsed(response.text)

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            found = parse_json(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EndpointError(f"{self.name} must answer with JSON objects, got {text[:80]!r}")
        return found

    def _read(self, pieces: list[dict[str, Any]]) -> Completion:
        answers = [self._checked(Answer, piece).choices for piece in pieces]
        choices = [given[0] for given in answers if given]
        if not choices:
            raise EndpointError(f"{self.name} answered without choices: expected a completion")
        return Completion.of(choices)

    def _checked(self, kind: type[_Kind], content: dict[str, Any]) -> _Kind:
        try:
            return kind.model_validate(content)
        except ValidationError as error:
            raise EndpointError(
                f"{self.name} must answer as OpenAI-compatible servers do: {first_fault(error)}"
            ) from None


def _message(response: httpx2.Response) -> str:
    """What the server says, on one line."""
    try:
        found = parse_json(response.text)
    except ValueError:
        found = {}
    error = found.get("error", found) if isinstance(found, dict) else found
    says = error.get("message", response.text) if isinstance(error, dict) else str(error)
    return " ".join(str(says).split())[:300] or response.reason_phrase
