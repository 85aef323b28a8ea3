"""Any transformers ``LogitsProcessor`` over a tree: each node's row is processed with the node's own path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from treedecode.engines.path import Paths

# They keep what they saw in objects of their own, or need a batch laid out in their own way.
_CANNOT_BRANCH = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor",
    "AlternatingCodebooksLogitsProcessor",
    "DiaEOSDelayPatternLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
}


class LogitsProcessors:
    """The user's processors, as a stage of ``processing``.

    Nodes of one depth have paths of one length, so that a level of the tree is one call: ``input_ids`` int64
    ``[nodes, prompt + output + depth]``, scores ``[nodes, vocab]`` in float32 or wider.

    A processor must be a function of the two. One that keeps count of its calls cannot tell the paths of a tree apart:
    if the request has trees, the first call is made twice, and a processor is refused if the results differ or a number
    or text among its attributes has changed.

    Args:
        processors: In order.
        padding: Tokens before the prompt that only they see.
        shared: Whether several paths share a processor, as they do in trees.

    Raises:
        TypeError, ValueError: One is no function of ``input_ids`` and scores, as far as can be seen.
    """

    def __init__(
        self, processors: Sequence[Callable[[Any, Any], Any]], padding: Sequence[int], shared: bool
    ) -> None:
        for processor in processors:
            _check(processor, shared)
        self._processors, self._padding, self._unsure = processors, torch.tensor(padding).long(), shared

    def __call__(self, logits: Tensor, paths: Paths) -> Tensor:
        for nodes in paths.levels():
            ids = torch.from_numpy(paths.token_ids(nodes))
            input_ids = torch.cat([self._padding.expand(len(nodes), -1), ids], 1).to(logits.device)
            rows = torch.tensor(nodes, device=logits.device)
            scores = logits[rows]
            for processor in self._processors:
                call = _called_twice if self._unsure else _called
                scores = call(processor, input_ids, scores)
            logits[rows] = scores.to(logits.dtype)
            self._unsure = False
        return logits


def as_processors(given: Any) -> tuple[Callable[[Any, Any], Any], ...]:
    """``given``, no processor, one or several, as a tuple.

    Raises:
        TypeError: Something else.
    """
    if given is None:
        return ()
    processors = tuple(given) if isinstance(given, Iterable) else (given,)
    for processor in processors:
        if not callable(processor):
            raise TypeError(
                f"logits_processor must be one or more functions of input_ids and scores, got {processor!r}"
            )
    return processors


def _check(processor: Any, shared: bool) -> None:
    name = _name(processor)
    if shared and any(base.__name__ in _CANNOT_BRANCH for base in type(processor).__mro__):
        raise ValueError(
            f"{name} keeps state of its own, which the paths of a tree cannot share: expected a processor that is a "
            "function of input_ids and scores, or budget=0"
        )
    try:
        inspect.signature(processor).bind(None, None)
    except TypeError as error:
        raise TypeError(f"{name} must take input_ids and scores, got other arguments: {error}") from error


def _called_twice(processor: Any, input_ids: Tensor, scores: Tensor) -> Tensor:
    """As :func:`_called`, for a processor that does the same the second time."""
    once = _called(processor, input_ids, scores.clone())
    before = _plain_attributes(processor)
    again = _called(processor, input_ids, scores.clone())
    if _plain_attributes(processor) != before or not torch.equal(once.nan_to_num(), again.nan_to_num()):
        raise ValueError(
            f"{_name(processor)} does not do the same twice for the same input_ids and scores: it keeps state or draws "
            "numbers, which the paths of a tree cannot share; expected a function of the two, or budget=0"
        )
    return once


def _plain_attributes(processor: Any) -> dict[str, Any]:
    """Numbers and texts: what is made at the first call and kept for later ones is hardly ever one."""
    attributes: dict[str, Any] = getattr(processor, "__dict__", {})
    return {name: value for name, value in attributes.items() if isinstance(value, int | float | str)}


def _called(processor: Any, input_ids: Tensor, scores: Tensor) -> Tensor:
    result = processor(input_ids, scores)
    if not isinstance(result, Tensor) or result.shape != scores.shape:
        got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(
            f"{_name(processor)} must return scores of shape {list(scores.shape)}, as it was given, got {got}"
        )
    return result


def _name(processor: Any) -> str:
    return f"logits processor {getattr(processor, '__name__', type(processor).__name__)}"
