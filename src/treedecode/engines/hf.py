"""Hugging Face models: one output, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from treedecode.drafters import check_drafter
from treedecode.drafters.base import Drafter
from treedecode.engines.bad_words import bad_word_ids, check_texts
from treedecode.engines.grammar import CompiledGrammar
from treedecode.engines.guidance import Grammar, compile_grammar
from treedecode.engines.load import LoadedModel
from treedecode.engines.logprobs import TokenLogprobs
from treedecode.engines.loop import Decoder
from treedecode.engines.params import SamplingParams, check_count
from treedecode.engines.processors import as_processors
from treedecode.engines.request import Request, check_budget, check_prompt, check_stop_ids
from treedecode.engines.state import Emission, StepObserver
from treedecode.engines.stats import GenerationStats
from treedecode.engines.text import TextStream
from treedecode.engines.tokens import check_text
from treedecode.engines.tracing import TraceObserver
from treedecode.trace import TraceWriter


@dataclass(frozen=True)
class Generation:
    """One finished output.

    Attributes:
        token_ids: Emitted tokens, the stop token included.
        text: Their text, without special tokens and cut before a stop string.
        finish_reason: "stop" (stop token or stop string), "length", or "interrupted" for a stream closed early.
        stats: Counts and times.
        logprobs: One per token; None unless asked for.
    """

    token_ids: list[int]
    text: str
    finish_reason: str
    stats: GenerationStats
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True)
class Chunk:
    """What one step added: tokens, log probabilities if asked for, and the text that is certain (may be empty)."""

    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None = None


class Stream(Iterator[Chunk]):
    """Iterator of chunks; :attr:`generation` is the whole, complete once the iterator is exhausted."""

    def __init__(self, decoder: Decoder, text: TextStream) -> None:
        self.decoder, self._text = decoder, text
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = (
            None if decoder.state.request.num_logprobs is None else []
        )
        self._finish_reason: str | None = None
        self._chunks: Generator[Chunk, None, None] = self._run()

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """Stops early; what was emitted so far stays in :attr:`generation`."""
        self._chunks.close()

    def _run(self) -> Generator[Chunk, None, None]:
        for emission in self.decoder.run():
            yield self.take(emission)
            if self.is_finished:
                return

    def take(self, emission: Emission) -> Chunk:
        """Takes over what a step emitted, up to a stop string; for whoever runs the steps instead of the iterator."""
        token_ids: list[int] = []
        reason = emission.finish_reason
        for token_id in emission.token_ids:
            token_ids.append(token_id)
            if self._text.push(token_id):
                reason = "stop"
                break
        self._token_ids.extend(token_ids)
        self._finish_reason = reason
        logprobs = emission.logprobs
        if self._logprobs is not None:
            logprobs = (logprobs or [])[: len(token_ids)]
            self._logprobs += logprobs
        return Chunk(token_ids, self._text.finish() if reason else self._text.take(), logprobs)

    @property
    def is_finished(self) -> bool:
        """Whether the output has ended by itself."""
        return self._finish_reason is not None

    @property
    def generation(self) -> Generation:
        """All that was emitted so far."""
        text = self._text.text + self._text.rest()
        stats = self.decoder.stats.build(len(self._token_ids))
        logprobs = None if self._logprobs is None else list(self._logprobs)
        return Generation(list(self._token_ids), text, self._finish_reason or "interrupted", stats, logprobs)


def check_model(model: object) -> None:
    """Raises ``TypeError`` for what is no loaded model."""
    if not isinstance(model, LoadedModel):
        raise TypeError(f"model must be what treedecode.load returns, got {model!r:.100}")


def stream(
    model: LoadedModel,
    prompt: str | Sequence[int],
    max_new_tokens: int = 128,
    budget: int | Literal["auto"] = "auto",
    drafter: str | Drafter = "merged",
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    bad_words: Sequence[str] | None = None,
    bad_words_ids: Sequence[Sequence[int]] | None = None,
    min_tokens: int = 0,
    logits_processor: Callable[[Any, Any], Any] | Sequence[Callable[[Any, Any], Any]] | None = None,
    grammar: Mapping[str, Any] | str | Grammar | CompiledGrammar | None = None,
    logprobs: int | None = None,
    seed: int = 0,
    stop: str | Sequence[str] | None = None,
    eos_token_id: int | Sequence[int] | Literal["model"] | None = "model",
    trace: TraceWriter | None = None,
    observer: StepObserver | None = None,
    dense: bool = False,
) -> Stream:
    """Generates one output piece by piece; the pieces add up to what ``treedecode.generate`` returns.

    Args:
        model: From ``treedecode.load``.
        prompt: Text (special tokens are added as the tokenizer does) or token ids (taken as they are): a list, an
            array or a tensor.
        max_new_tokens: At most this many tokens.
        budget: Drafted nodes per step; "auto" takes as many as pay by measured cost; 0 is plain decoding.
        drafter: A name ("merged", "recycling", "suffix", "prompt-lookup") or an object with the ``Drafter`` methods.
        temperature: 0 is greedy. Otherwise one token is drawn per node from the target's processed distribution with
            noise keyed by (seed, output position): the same seed gives the same tokens at every budget.
        top_k, top_p, min_p, repetition_penalty: As in transformers; None switches off.
        frequency_penalty, presence_penalty: As in the OpenAI API and vLLM: what is subtracted from a token's logit for
            every time it is in the output, and once if it is there at all.
        logit_bias: Numbers to add to logits, by token id; -inf forbids a token.
        bad_words: Texts whose tokens, with and without a leading space, may not be emitted one after the other.
        bad_words_ids: The same as sequences of token ids.
        min_tokens: Neither stop tokens nor stop strings end the output before so many tokens.
        logits_processor: One or more of transformers' ``LogitsProcessor``, or other functions of ``input_ids``
            ``[rows, length]`` and scores ``[rows, vocab]`` that give new scores. They are called with the path of every
            node, and must keep no state (docs/constraints.md).
        grammar: What the output must be: a JSON schema (a mapping, or text), a regex or EBNF as text, a
            ``treedecode.Grammar`` that says which, or a compiled grammar of any engine (docs/constraints.md).
        logprobs: Also return log probabilities of the emitted tokens, and of so many of the likeliest at their places,
            0 for none. They are the model's own, before temperature and everything above, as in vLLM.
        seed: Key of the noise.
        stop: Strings that end the output; the text is cut before them.
        eos_token_id: Stop tokens; "model" takes the model's own, None none.
        trace: Receives a header and one record per step.
        observer: Called after every step with tree, target rows and acceptance.
        dense: Draft and verify at every output position and commit one token each time, as a trace that is to be
            replayed needs it (slower than plain decoding, same output). Budget "auto" then keeps trees whole.

    Raises:
        TypeError, ValueError: Bad input, naming the rule, what was expected and what was got.
        OSError: The trace cannot be written; a file that exists is not replaced before all else is checked.
    """
    check_model(model)
    if trace is not None and not isinstance(trace, TraceWriter):
        raise TypeError(f"trace must be a treedecode.TraceWriter, got {trace!r:.100}")
    if observer is not None and not callable(observer):
        raise TypeError(f"observer must be a function that is called after every step, got {observer!r:.100}")
    if not isinstance(dense, bool):
        raise TypeError(f"dense must be True or False, got {dense!r}")
    sampling = SamplingParams(
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        logit_bias,
        bad_word_ids(model.tokenizer, bad_words, bad_words_ids),
        min_tokens,
        seed,
    )
    target = model.target
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError("the prompt is empty: expected at least one character")
        prompt_ids: Sequence[int] = model.tokenizer(check_text("the prompt", prompt))["input_ids"]
    else:
        prompt_ids = prompt
    of_model = isinstance(eos_token_id, str) and eos_token_id == "model"
    request = Request(
        check_prompt(prompt_ids, target.vocab_size, target.max_positions),
        check_count("max_new_tokens", max_new_tokens),
        check_budget(budget),
        sampling,
        model.eos_token_ids if of_model else check_stop_ids(eos_token_id),
        processors=as_processors(logits_processor),
        grammar=None if grammar is None else compile_grammar(grammar, model.tokenizer, target.vocab_size),
        num_logprobs=None if logprobs is None else check_count("logprobs", logprobs, 0, target.vocab_size),
        dense=dense,
    )
    # not isinstance: budget 0 does not touch a drafter
    if request.max_drafted or issubclass(type(drafter), str):
        check_drafter(drafter)
    stops = [] if stop is None else check_texts("stop", stop)
    traced = None
    if trace is not None:
        settings = {
            "max_new_tokens": request.max_new_tokens,
            "budget": "auto" if request.budget is None else request.budget,
            "drafter": getattr(drafter, "name", drafter),
            "dense": dense,
        }
        traced = TraceObserver(trace, model, request, settings, observer)
    decoder = Decoder.of(target, request, drafter, model.cost, traced or observer)
    made = Stream(decoder, TextStream(model.tokenizer, stops, min_tokens))
    if traced is not None:
        traced.start()
    return made
