"""Token ids and texts as callers give them: lists, arrays and tensors, and what must not be taken for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch

_ARRAYS = (np.ndarray, np.generic, torch.Tensor)
# They can be iterated, but bytes are text, and sets and mappings have no order.
_NO_SEQUENCES = (str, bytes, bytearray, memoryview, Set, Mapping)


def plain(value: Any) -> Any:
    """An array or tensor as Python numbers or lists of them, anything else as it is."""
    return value.tolist() if isinstance(value, _ARRAYS) else value


def in_order(what: str, values: Any, expected: str = "text or a sequence of token ids") -> list[Any]:
    """The items of a list, an array, a tensor or any other ordered iterable; a ``TypeError`` for everything else."""
    values = plain(values)
    if isinstance(values, _NO_SEQUENCES) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be {expected}, got {values!r}")
    return list(values)


def as_prompts(prompts: Any) -> list[Any]:
    """One or several prompts, each text or token ids, as a list of prompts; a ``TypeError`` for everything else."""
    if isinstance(prompts, str):
        return [prompts]
    items = in_order("prompts", prompts)
    first = plain(items[0]) if items else ""
    return items if isinstance(first, Sequence) else [items]


def check_text(what: str, text: str) -> str:
    """``text``, unless it has lone surrogates, which are no characters: what was not UTF-8 is often read as such."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} must be Unicode text: character {error.start} is the lone surrogate {text[error.start]!r}"
        ) from None
    return text
