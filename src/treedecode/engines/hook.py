"""transformers' own hook: ``hf_model.generate(..., custom_generate=treedecode.custom_generate)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from treedecode.cost import CostCurve
from treedecode.drafters.base import Drafter
from treedecode.engines.batched import DEFAULT_BATCH_SIZE, BatchDecoder
from treedecode.engines.build import build_target
from treedecode.engines.loop import Decoder
from treedecode.engines.measure import measure_cost
from treedecode.engines.params import SamplingParams
from treedecode.engines.prepared import for_row, split
from treedecode.engines.request import Request, check_budget, check_prompt, check_stop_ids
from treedecode.engines.target import Target
from treedecode.engines.text import TextStream

_KNOWN_CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria", "StopStringCriteria"}

# Where the target of a model is kept: on the model, so that both are freed together.
_ATTRIBUTE = "_treedecode_target"


def custom_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Iterable[Any] = (),
    stopping_criteria: Iterable[Any] = (),
    generation_config: Any = None,
    budget: int | Literal["auto"] = "auto",
    drafter: str | Drafter = "merged",
    tokenizer: Any = None,
    stop_strings: str | list[str] | None = None,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Tensor:
    """A decoding method for ``transformers`` ``generate``; the rows of a batch share forward passes.

    Greedy and sampled (keyed by ``torch.manual_seed``), under every logits processor that ``generate`` prepares or is
    given. Biases, the repetition penalty, bad words, ``min_new_tokens``, temperature, top-k, top-p and min-p are
    treedecode's own; any other processor is called with the path of every node. Every row gives what it gives alone:
    for treedecode's own, padding is not part of its history, so the repetition penalty does not fall on the pad token;
    other processors see it, as they do in ``generate``. The model's weights are shared, not packed: ``treedecode.load``
    is faster on CPU.

    ``generate`` of transformers 5.19 does not hand its ``tokenizer=`` and ``streamer=`` on to a function. Bind them:
    ``custom_generate=functools.partial(treedecode.custom_generate, streamer=streamer)``.

    Args:
        model: The transformers model that ``generate`` was called on.
        input_ids: int64 ``[batch, prompt]``, left-padded where ``attention_mask`` says so.
        logits_processor: What ``generate`` prepared.
        stopping_criteria: What ``generate`` prepared: length, EOS and stop strings are accepted.
        generation_config: The resolved configuration.
        budget: Drafted nodes per step, or "auto".
        drafter: As for ``treedecode.generate``.
        tokenizer: Needed with ``stop_strings``; bind it, see above.
        stop_strings: As for plain ``generate``: they end the output, and stay in it.
        streamer: Receives prompt and tokens, as from plain ``generate``; bind it, see above.
        **model_kwargs: ``attention_mask`` is used; the rest of what ``generate`` passes is not needed.

    Returns:
        int64 ``[batch, prompt + longest output]``, padded with the pad token.

    Raises:
        ValueError: A processor that keeps state, or a criterion or decoding mode that trees would not honour; an empty
            prompt or one longer than the model allows.
    """
    _check_supported(stopping_criteria, generation_config)
    target, cost = _target_of(model)
    stops = check_stop_ids(generation_config.eos_token_id)
    prompts = [
        (padding, check_prompt(prompt, target.vocab_size, target.max_positions))
        for padding, prompt in _unpadded(input_ids, model_kwargs.get("attention_mask"))
    ]
    params, rest = split(list(logits_processor), bool(generation_config.do_sample), input_ids.shape[1], stops)
    max_new_tokens = generation_config.max_length - input_ids.shape[1]
    width = check_budget(budget)
    stop = stop_strings or generation_config.stop_strings
    if stop and tokenizer is None:
        raise ValueError(
            "stop_strings need the tokenizer, which generate does not hand on: expected "
            "custom_generate=functools.partial(treedecode.custom_generate, tokenizer=...), got None"
        )
    if streamer is not None:
        streamer.put(input_ids.cpu())  # as generate does with a streamer it knows of
    decoders = []
    for row, (padding, prompt) in enumerate(prompts):
        # follows torch.manual_seed, as plain sampling does
        seed = int(torch.randint(2**63 - 1, (1,)).item()) if generation_config.do_sample else 0
        processors = tuple(for_row(processor, row) for processor in rest)
        request = Request(
            prompt,
            max_new_tokens,
            width,
            SamplingParams(**params, seed=seed),
            stops,
            processors=processors,
            padding=tuple(padding),
        )
        decoders.append(Decoder.of(target, request, drafter, cost))
    outputs = [_Output(tokenizer, stop, streamer) for _ in decoders]
    # a streamer and a drafter object follow one request at a time
    together = streamer is None and (isinstance(drafter, str) or width == 0)
    if together and len(decoders) > 1:
        _run_together(target, decoders, cost, outputs)
    else:
        for decoder, output in zip(decoders, outputs, strict=True):
            for emission in decoder.run():
                if output.take(emission.token_ids):
                    break
    if streamer is not None:
        streamer.end()
    pad = generation_config._pad_token_tensor
    rows = [torch.tensor(out.token_ids, dtype=input_ids.dtype, device=input_ids.device) for out in outputs]
    tail = pad_sequence(rows, batch_first=True, padding_value=int(pad) if pad is not None else 0)
    return torch.cat([input_ids, tail.to(input_ids.dtype)], dim=1)


class _Output:
    """The tokens of one row, up to a stop string."""

    def __init__(self, tokenizer: Any, stop: str | list[str] | None, streamer: Any) -> None:
        self.token_ids: list[int] = []
        self._streamer = streamer
        self._text = TextStream(tokenizer, [stop] if isinstance(stop, str) else stop) if stop else None

    def take(self, token_ids: Sequence[int]) -> bool:
        """Takes over what a step emitted; True once a stop string is complete."""
        for token in token_ids:
            self.token_ids.append(token)
            if self._streamer is not None:
                self._streamer.put(torch.tensor([token]))
            if self._text is not None and self._text.push(token):
                return True
        return False


def _run_together(
    target: Target, decoders: Sequence[Decoder], cost: CostCurve, outputs: Sequence[_Output]
) -> None:
    batch = BatchDecoder.of(target, [decoder.state for decoder in decoders], cost, DEFAULT_BATCH_SIZE)
    for index, emission in batch.run():
        if outputs[index].take(emission.token_ids):
            batch.end(index)


def _target_of(model: Any) -> tuple[Target, CostCurve]:
    """The target of this model, built and measured at the first call and when weights have moved or changed."""
    # a target keeps norms and the modules it found: training, load_state_dict and adapters must not go unseen
    state = tuple((weight.data_ptr(), weight.dtype, _version(weight)) for weight in model.parameters())
    kept: tuple[Any, Target, CostCurve] | None = model.__dict__.get(_ATTRIBUTE)
    if kept is None or kept[0] != state:
        target = build_target(model, consume=False)
        kept = model.__dict__[_ATTRIBUTE] = (state, target, measure_cost(target))
    return kept[1], kept[2]


def _version(weight: Tensor) -> int:
    """Counts changes in place; inference tensors, which count none, cannot be trained either."""
    return 0 if weight.is_inference() else weight._version


def _check_supported(criteria: Iterable[Any], config: Any) -> None:
    odd = [type(item).__name__ for item in criteria if type(item).__name__ not in _KNOWN_CRITERIA]
    if odd:
        raise ValueError(
            f"treedecode.custom_generate does not honour {', '.join(odd)} yet; run generate without the hook"
        )
    if config.num_beams not in (None, 1) or config.num_return_sequences not in (None, 1):
        raise ValueError(
            "treedecode.custom_generate decodes one sequence per prompt: expected num_beams=1 and "
            f"num_return_sequences=1, got {config.num_beams} and {config.num_return_sequences}"
        )
    if config.return_dict_in_generate:
        raise ValueError(
            "treedecode.custom_generate returns token ids: expected return_dict_in_generate=False, got True"
        )


def _unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> list[tuple[list[int], list[int]]]:
    """Padding and prompt of every row."""
    if attention_mask is None or attention_mask.ndim != 2:
        return [([], row) for row in input_ids.tolist()]
    masks = attention_mask.bool()
    return [(row[~mask].tolist(), row[mask].tolist()) for row, mask in zip(input_ids, masks, strict=True)]
