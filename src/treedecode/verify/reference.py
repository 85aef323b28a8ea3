"""What a server with trees is compared with: a server without, or a model loaded here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from treedecode.engines.hf import stream
from treedecode.engines.load import LoadedModel
from treedecode.testing.statistics import ChiSquared
from treedecode.verify.client import TOP, Endpoint
from treedecode.verify.completion import Completion, Token
from treedecode.verify.counts import Counted
from treedecode.verify.plain import PlainModel
from treedecode.verify.samples import Continuation, against_model, two_samples
from treedecode.verify.settings import Settings

# Tokens of a sampled continuation.
_SAMPLE_TOKENS = 3
# Requests at a time.
_CONCURRENCY = 16


class Reference(ABC):
    """The model without trees.

    Attributes:
        needs_ids: It can be compared with token ids alone, not with their text.
    """

    needs_ids = False

    @abstractmethod
    def complete(self, prompt: str | Sequence[int], max_tokens: int) -> Completion:
        """The greedy completion, with logprobs if there are any."""

    @abstractmethod
    def noise(self, prompt_ids: Sequence[int], top: dict[Token, float]) -> float:
        """How far the logprobs ``top`` after ``prompt_ids`` move when they are computed in another way."""

    @abstractmethod
    def compare(self, prompt: str | Sequence[int], samples: Sequence[Continuation]) -> Counted:
        """Samples of the same settings, drawn with the seeds from the first on, against its own distribution."""


class PlainEndpoint(Reference):
    """A server without trees."""

    def __init__(self, endpoint: Endpoint, settings: Settings) -> None:
        self._endpoint, self._settings = endpoint, settings

    def complete(self, prompt: str | Sequence[int], max_tokens: int) -> Completion:
        return self._endpoint.complete(prompt, max_tokens, greedy_options(self._settings))

    def noise(self, prompt_ids: Sequence[int], top: dict[Token, float]) -> float:
        """A prompt's last row is computed with those before it, a decoded row alone."""
        again = self.complete(prompt_ids, 1).top
        if not again:
            return 0.0
        return max((abs(again[0][token] - top[token]) for token in top if token in again[0]), default=0.0)

    def compare(self, prompt: str | Sequence[int], samples: Sequence[Continuation]) -> Counted:
        return two_samples(samples, draw_samples(self._endpoint, prompt, self._settings))


class LocalModel(Reference):
    """A model loaded here, decoded plainly."""

    needs_ids = True

    def __init__(self, model: LoadedModel, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._plain = PlainModel(model.target, settings.repetition_penalty)

    def complete(self, prompt: str | Sequence[int], max_tokens: int) -> Completion:
        ids = self.ids(prompt)
        penalty = self._settings.repetition_penalty
        running = stream(self._model, ids, max_tokens, budget=0, repetition_penalty=penalty)
        for _ in running:
            pass
        made = running.generation
        logprobs: list[float] = []
        top: list[dict[Token, float]] = []
        # servers give the logprobs of the model's own logits, without penalties
        for token, row in zip(
            made.token_ids, PlainModel(self._model.target).rows(ids, made.token_ids), strict=True
        ):
            scores = row.double().log_softmax(-1)
            best = scores.topk(min(TOP, len(scores)))
            top.append(dict(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
            logprobs.append(float(scores[token]))
        return Completion(made.text, tuple(made.token_ids), tuple(ids), tuple(logprobs), tuple(top))

    def noise(self, prompt_ids: Sequence[int], top: dict[Token, float]) -> float:
        return self._plain.rounding(list(prompt_ids)).noise

    def compare(self, prompt: str | Sequence[int], samples: Sequence[Continuation]) -> Counted:
        ids, params = self.ids(prompt), self._settings.sampling(0)
        vocabulary = range(self._model.target.vocab_size)
        for token in {int(token) for sample in samples for token in sample}:
            if token not in vocabulary:
                return Counted(ChiSquared(0.0, 0), sum(map(len, samples)), impossible=token)
        return against_model(samples, lambda context: self._plain.row([*ids, *map(int, context)]), params)

    def ids(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a prompt."""
        return list(self._model.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)


def greedy_options(settings: Settings) -> dict[str, Any]:
    """Fields of a greedy request."""
    penalty = settings.repetition_penalty
    return {} if penalty is None else {"repetition_penalty": penalty}


def draw_samples(endpoint: Endpoint, prompt: str | Sequence[int], settings: Settings) -> list[Continuation]:
    """Short continuations, one per seed; whole texts where the server tells no tokens."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    options = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}

    def draw(seed: int) -> Continuation:
        made = endpoint.complete(prompt, length, {**options, "seed": seed})
        return made.tokens if made.tells_tokens else (made.text,)

    length = _SAMPLE_TOKENS if endpoint.complete(prompt, 1).tells_tokens else 1
    seeds = range(settings.seed, settings.seed + settings.num_draws)
    return _in_parallel(draw, seeds)


def _in_parallel(draw: Callable[[int], Continuation], seeds: range) -> list[Continuation]:
    """All, in order; the first error cancels what has not begun."""
    pool = ThreadPoolExecutor(_CONCURRENCY)
    try:
        return list(pool.map(draw, seeds))
    finally:
        pool.shutdown(cancel_futures=True)
