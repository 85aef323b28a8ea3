"""What a server answers to a request for a completion, or several pieces of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, NonNegativeInt

_PREFIX = "token_id:"

Token = int | str


class Logprobs(BaseModel):
    """Of the tokens of one choice: ``[tokens]`` each."""

    model_config = ConfigDict(strict=True)

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None = None


class Choice(BaseModel):
    """One completion, or a piece of it, as servers give it: OpenAI's fields, and the token ids that vLLM adds."""

    model_config = ConfigDict(strict=True)

    text: str
    token_ids: list[NonNegativeInt] | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    logprobs: Logprobs | None = None


class Answer(BaseModel):
    """An answer of ``/v1/completions``, or a piece of a stream; the last piece may have no choice."""

    model_config = ConfigDict(strict=True)

    choices: list[Choice] | None = None


class _Model(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str


class Models(BaseModel):
    """An answer of ``/v1/models``."""

    model_config = ConfigDict(strict=True)

    data: list[_Model] = []


@dataclass(frozen=True)
class Completion:
    """What a server answered.

    Attributes:
        text: The text.
        tokens: Token ids, or their strings if the server gives no ids, or characters if it gives no tokens at all.
        prompt_ids: Token ids of the prompt, or None.
        logprobs: One per token, or None.
        top: The likeliest tokens at every position with their logprobs, or None.
        tells_tokens: Whether ``tokens`` are tokens, not characters.
        num_pieces: Pieces that the text came in.
    """

    text: str
    tokens: tuple[Token, ...]
    prompt_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    top: tuple[dict[Token, float], ...] | None = None
    tells_tokens: bool = True
    num_pieces: int = 1

    def before(self, position: int) -> list[int] | None:
        """Token ids of prompt and output before a token; None where they are not known."""
        tokens = self.tokens[:position]
        if self.prompt_ids is None or not all(isinstance(token, int) for token in tokens):
            return None
        return [*self.prompt_ids, *map(int, tokens)]

    @classmethod
    def of(cls, choices: Sequence[Choice]) -> Completion:
        """Of the first choice of an answer, or of its pieces in order: at least one."""
        text = "".join(choice.text for choice in choices)
        logs = [choice.logprobs for choice in choices if choice.logprobs]
        ids = [token for choice in choices for token in choice.token_ids or []]
        strings = [_token(token) for log in logs for token in log.tokens]
        prompt_ids = choices[0].prompt_token_ids
        logprobs = tuple(value for log in logs for value in log.token_logprobs)
        top = tuple(
            {_token(token): value for token, value in place.items()}
            for log in logs
            for place in log.top_logprobs or []
        )
        tokens = tuple(ids) if len(ids) >= len(strings) else tuple(strings)
        return cls(
            text,
            tokens or tuple(text),
            None if prompt_ids is None else tuple(prompt_ids),
            logprobs if logs and len(logprobs) == len(tokens) else None,
            top if logs and len(top) == len(tokens) else None,
            tells_tokens=bool(tokens),
            num_pieces=len(choices),
        )


def _token(name: str) -> Token:
    number = name.removeprefix(_PREFIX)
    return int(number) if number != name and number.isdecimal() else name
