"""Hugging Face models: outputs of several prompts, decoded together."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from treedecode.engines.batched import DEFAULT_BATCH_SIZE, BatchDecoder
from treedecode.engines.guidance import compile_grammar
from treedecode.engines.hf import Chunk, Generation, Stream, check_model, stream
from treedecode.engines.load import LoadedModel
from treedecode.engines.params import check_count
from treedecode.engines.request import check_budget
from treedecode.engines.state import of_prompt
from treedecode.engines.tokens import as_prompts
from treedecode.trace import TraceWriter

# What a prompt can have a value of its own for, as a list.
_BY_PROMPT = frozenset(
    {
        "max_new_tokens",
        "drafter",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "min_tokens",
        "seed",
    }
)
# What follows one request at a time.
_ONE_AT_A_TIME = ("trace", "observer", "dense")

Prompts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]


class BatchStream(Iterator[tuple[int, Chunk]]):
    """Iterator of pieces, each with the place of its prompt; :attr:`generations` are the whole outputs.

    Args:
        model: What the streams run on.
        streams: One per prompt, not started.
        batch_size: At most so many run at once; 1 runs them one after the other.
    """

    def __init__(self, model: LoadedModel, streams: Sequence[Stream], batch_size: int) -> None:
        self._streams = list(streams)
        self._decoder: BatchDecoder | None = None
        if batch_size > 1 and len(streams) > 1:
            states = [running.decoder.state for running in streams]
            self._decoder = BatchDecoder.of(model.target, states, model.cost, batch_size)
        self._chunks: Generator[tuple[int, Chunk], None, None] = self._run()

    def __next__(self) -> tuple[int, Chunk]:
        return next(self._chunks)

    def close(self) -> None:
        """Stops early; what was emitted so far stays in :attr:`generations`."""
        self._chunks.close()
        for running in self._streams:
            running.close()

    def _run(self) -> Generator[tuple[int, Chunk], None, None]:
        if self._decoder is None:
            for index in range(len(self._streams)):
                while (chunk := self._next(index)) is not None:
                    yield index, chunk
            return
        for index, emission in self._decoder.run():
            running = self._streams[index]
            chunk = running.take(emission)
            if running.is_finished:  # a stop string ends what the decoder would go on with
                self._decoder.end(index)
            yield index, chunk

    def _next(self, index: int) -> Chunk | None:
        with of_prompt(index) if len(self._streams) > 1 else nullcontext():
            return next(self._streams[index], None)

    def is_finished(self, index: int) -> bool:
        """Whether the output of the prompt at this place has ended by itself."""
        return self._streams[index].is_finished

    def generation(self, index: int) -> Generation:
        """All that was emitted so far for the prompt at this place."""
        return self._streams[index].generation

    @property
    def generations(self) -> list[Generation]:
        """All that was emitted so far, one per prompt, in order."""
        return [running.generation for running in self._streams]


def stream_batch(
    model: LoadedModel, prompts: Prompts, batch_size: int | None = None, **options: Any
) -> BatchStream:
    """Generates one output per prompt, piece by piece, several prompts in every forward pass.

    Each output is what the prompt gives alone (``treedecode.stream``): requests do not see each other, and sampling is
    keyed by seed and output position. Rounding of float32 products depends on the number of rows, so there two tokens
    of almost equal logits can change places. Drafted nodes of all running requests share one budget. A prompt whose
    output ends makes room for the next at once; caches are allocated once, before the first prompt runs.

    Args:
        model: From ``treedecode.load``.
        prompts: A text, several texts, the token ids of one prompt, or of several.
        batch_size: At most so many prompts run at once, each with a cache for the longest of them; 1 runs them one
            after the other. None takes 16, or 1 with a trace, an observer, ``dense`` or one drafter object for all,
            which follow one request at a time.
        **options: As for ``treedecode.stream``. ``max_new_tokens``, ``drafter``, ``temperature``, ``top_k``, ``top_p``,
            ``min_p``, penalties, ``logit_bias``, ``min_tokens`` and ``seed`` may be lists with one value per prompt.

    Raises:
        TypeError, ValueError: As ``treedecode.stream``; options and prompts are all checked before the first is run,
            options also where there is no prompt. A list of another length than the prompts; ``batch_size`` above 1
            with what follows one request at a time. An error of a prompt carries a note with its place.
    """
    check_model(model)
    given = as_prompts(prompts)
    if len(given) != 1 and isinstance(options.get("trace"), TraceWriter):
        raise ValueError(f"a trace file holds one generation: expected one prompt, got {len(given)}")
    size = None if batch_size is None else check_count("batch_size", batch_size, 1)
    alone = [name for name in _ONE_AT_A_TIME if options.get(name)]
    drafter = options.get("drafter", "merged")
    if check_budget(options.get("budget", "auto")) != 0 and not issubclass(type(drafter), str | list | tuple):
        alone.append("a drafter object")
    if size is not None and size > 1 and len(given) > 1 and alone:
        raise ValueError(
            f"{alone[0]} follows one request at a time: expected batch_size=1 (or none), got {size}"
        )
    _check_lengths(options, len(given))
    if options.get("grammar") is not None:  # compiled once for all
        options["grammar"] = compile_grammar(options["grammar"], model.tokenizer, model.target.vocab_size)
    if len(given) != 1:
        _check_shared(model, options)
    streams = []
    for index, prompt in enumerate(given):
        own = {name: value[index] if _is_by_prompt(name, value) else value for name, value in options.items()}
        with of_prompt(index) if len(given) > 1 else nullcontext():
            streams.append(stream(model, prompt, **own))
    return BatchStream(model, streams, size or (1 if alone else DEFAULT_BATCH_SIZE))


def generate(
    model: LoadedModel, prompts: Prompts, batch_size: int | None = None, **options: Any
) -> list[Generation]:
    """Generates one output per prompt, several prompts in every forward pass.

    Args:
        model: From ``treedecode.load``.
        prompts: A text, several texts, the token ids of one prompt, or of several.
        batch_size: As for :func:`stream_batch`.
        **options: As for :func:`stream_batch`.

    Returns:
        One :class:`Generation` per prompt, in order.

    Raises:
        TypeError, ValueError: As :func:`stream_batch`.
    """
    running = stream_batch(model, prompts, batch_size, **options)
    for _ in running:
        pass
    return running.generations


def _is_by_prompt(name: str, value: object) -> bool:
    """Whether an option has a value of its own for every prompt."""
    # not isinstance: budget 0 does not touch a drafter
    return name in _BY_PROMPT and issubclass(type(value), list | tuple)


def _check_lengths(options: dict[str, Any], num_prompts: int) -> None:
    for name, value in options.items():
        if _is_by_prompt(name, value) and len(value) != num_prompts:
            raise ValueError(
                f"{name} must be one value or one per prompt: expected {num_prompts}, got {len(value)}"
            )


def _check_shared(model: LoadedModel, options: dict[str, Any]) -> None:
    """Checks what all prompts share with a prompt that nothing is wrong with: such errors are about none of theirs."""
    stream(model, [0], **{name: value for name, value in options.items() if not _is_by_prompt(name, value)})
