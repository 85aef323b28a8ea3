"""transformers' own hook: ``hf_model.generate(..., custom_generate=treedecode.custom_generate)``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.generation.stopping_criteria import StopStringCriteria

from treedecode.cost import CostCurve
from treedecode.drafters.base import Drafter
from treedecode.engines.batched import DEFAULT_BATCH_SIZE, BatchDecoder
from treedecode.engines.build import build_target
from treedecode.engines.loop import Decoder
from treedecode.engines.measure import measure_cost
from treedecode.engines.params import SamplingParams
from treedecode.engines.prepared import for_row, split, split_criteria
from treedecode.engines.request import Request, check_budget, check_prompt
from treedecode.engines.target import Target

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
    other processors see it, as they do in ``generate``. Stopping criteria are asked after every token, row by row and
    without scores. The model's weights are shared, not packed: ``treedecode.load`` is faster on CPU.

    ``generate`` of transformers 5.19 does not hand its ``tokenizer=`` and ``streamer=`` on to a function. Bind them:
    ``custom_generate=functools.partial(treedecode.custom_generate, streamer=streamer)``.

    Args:
        model: The transformers model that ``generate`` was called on.
        input_ids: int64 ``[batch, prompt]``, left-padded where ``attention_mask`` says so.
        logits_processor: What ``generate`` prepared.
        stopping_criteria: What ``generate`` prepared.
        generation_config: The resolved configuration.
        budget: Drafted nodes per step, or "auto".
        drafter: As for ``treedecode.generate``.
        tokenizer: Needed with ``stop_strings``; bind it, see above.
        stop_strings: As for plain ``generate``: they end the output, and stay in it.
        streamer: Receives prompt and tokens, as from plain ``generate``; bind it, see above.
        **model_kwargs: ``attention_mask`` is used, ``inputs_embeds`` is refused, the rest of what ``generate`` passes
            is not needed.

    Returns:
        int64 ``[batch, prompt + longest output]``, padded with the pad token.

    Raises:
        ValueError: A processor that keeps state, or a decoding mode that trees would not honour; an empty prompt or one
            longer than the model allows.
    """
    _check_supported(generation_config, model_kwargs)
    target, cost = _target_of(model)
    max_length, stops, criteria = split_criteria(list(stopping_criteria))
    prompts = [
        (padding, check_prompt(prompt, target.vocab_size, target.max_positions))
        for padding, prompt in _unpadded(input_ids, model_kwargs.get("attention_mask"))
    ]
    params, rest = split(list(logits_processor), bool(generation_config.do_sample), input_ids.shape[1], stops)
    longest = generation_config.max_length if max_length is None else max_length
    max_new_tokens = max(1, longest - input_ids.shape[1])  # criteria are first asked after a token
    width = check_budget(budget)
    if stop := stop_strings or generation_config.stop_strings:
        if tokenizer is None:
            raise ValueError(
                "stop_strings need the tokenizer, which generate does not hand on: expected "
                "custom_generate=functools.partial(treedecode.custom_generate, tokenizer=...), got None"
            )
        criteria.append(StopStringCriteria(tokenizer, stop))
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
    outputs = [_Output(row, max_new_tokens, criteria, streamer) for row in input_ids]
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
    """The tokens of one row, until a criterion ends it."""

    def __init__(self, prompt: Tensor, max_new_tokens: int, criteria: Sequence[Any], streamer: Any) -> None:
        self.token_ids: list[int] = []
        self._criteria, self._streamer = criteria, streamer
        self._num_prompt = len(prompt)
        self._ids = torch.cat([prompt, prompt.new_zeros(max_new_tokens if criteria else 0)])[None]

    def take(self, token_ids: Sequence[int]) -> bool:
        """Takes over what a step emitted, up to the token at which a criterion is met; True if one is."""
        for token in token_ids:
            self.token_ids.append(token)
            if self._streamer is not None:
                self._streamer.put(torch.tensor([token]))
            if self._criteria and self._ends(token):
                return True
        return False

    def _ends(self, token: int) -> bool:
        length = self._num_prompt + len(self.token_ids)
        self._ids[0, length - 1] = token
        text = self._ids[:, :length]
        return any(bool(torch.as_tensor(criterion(text, None)).all()) for criterion in self._criteria)


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
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    weights = tuple((weight.data_ptr(), weight.dtype, _version(weight)) for weight in model.parameters())
    state = weights, hooked, _copied(model)
    kept: tuple[Any, Target, CostCurve] | None = model.__dict__.get(_ATTRIBUTE)
    if kept is None or kept[0] != state:
        # only the model's own code calls its hooks
        target = build_target(model, consume=False, implementation="transformers" if hooked else "auto")
        kept = model.__dict__[_ATTRIBUTE] = (state, target, measure_cost(target))
    return kept[1], kept[2]


def _version(weight: Tensor) -> int:
    """Counts changes in place; inference tensors, which count none, cannot be trained either."""
    return 0 if weight.is_inference() else weight._version


def _copied(model: Any) -> int:
    """Of the norms and biases, of which a target keeps copies: changes through ``.data`` count no version."""
    vectors = [
        weight.detach().contiguous().view(torch.uint8) for weight in model.parameters() if weight.ndim == 1
    ]
    return hash(torch.cat(vectors).cpu().numpy().tobytes()) if vectors else 0


def _check_supported(config: Any, model_kwargs: dict[str, Any]) -> None:
    if model_kwargs.get("inputs_embeds") is not None:
        raise ValueError(
            "treedecode.custom_generate decodes token ids: expected input_ids alone, got inputs_embeds as well"
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
