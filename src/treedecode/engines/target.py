"""What the decode loop asks of a target model, whatever runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.candidates import top_candidates
from treedecode.engines.step import StepInput
from treedecode.gains import PlainReference


def check_autocast(device: torch.device) -> None:
    """Raises ``ValueError`` inside ``torch.autocast``: products would not be in the weights' own dtype."""
    if torch.is_autocast_enabled(device.type):
        dtype = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
        raise ValueError(
            f"treedecode computes in the dtype of the weights: expected no torch.autocast for {device.type}, got one "
            f'to {dtype}; leave its block, or load the model in that dtype (treedecode.load(..., dtype="{dtype}"))'
        )


class UnsupportedModelError(ValueError):
    """The model cannot be verified over trees; the message names the model type and the reason."""


class Scorer(Protocol):
    """What judging the rows of a step needs of a target; attributes and methods as :class:`Target` has them."""

    device: torch.device
    vocab_size: int

    def logits(self, features: Tensor) -> Tensor:
        """Next-token logits ``[rows, vocab]``."""
        ...

    def top(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Best ``count`` logits and ids of each row."""
        ...


class Target(ABC):
    """A decoder-only model that can run the nodes of a tree in one forward pass.

    Attributes:
        implementation: Short name of the code that runs the layers, as reported to users.
        linear_kind: Short name of the code that runs the linear layers.
        head_kind: Short name of the code that finds the best tokens of the vocabulary.
        layer_specs: One per attention layer.
        dtype: Of activations and cache.
        device: Where the model lives.
        vocab_size: Columns of the logits.
        max_positions: Positions the model was trained for, or None when it states none.
    """

    implementation: str
    linear_kind: str
    head_kind: str = "float32"
    layer_specs: Sequence[LayerSpec]
    dtype: torch.dtype
    device: torch.device
    vocab_size: int
    max_positions: int | None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a loaded model can be neither copied nor pickled: share the object, or load it again with treedecode.load"
        )

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache with room for ``capacity`` rows."""
        return KVCache(self.layer_specs, capacity, self.dtype, self.device)

    def new_caches(self, count: int, capacity: int) -> list[KVCache]:
        """``count`` empty caches with room for ``capacity`` rows each, allocated together."""
        return KVCache.several(self.layer_specs, count, capacity, self.dtype, self.device)

    @abstractmethod
    def forward(self, step: StepInput, cache: KVCache, keep_rows: int | None = None) -> Tensor:
        """Runs the model over one step.

        Writes the step's K/V at rows ``cache.length ..`` without changing ``cache.length``.

        Args:
            step: Tokens, positions and masks.
            cache: Of this target.
            keep_rows: Return only the last so many rows; None returns all.

        Returns:
            Features ``[rows, ...]`` for :meth:`logits`.
        """

    def forward_batch(self, steps: Sequence[StepInput], caches: Sequence[KVCache]) -> Tensor:
        """Runs the model over one step of each of several requests, which do not see each other.

        As :meth:`forward` for every pair of step and cache. The rows are packed, without padding: a target that can
        runs them as one pass, reading its weights once. This one runs a pass per request.

        Args:
            steps: One per request.
            caches: Of this target, one per step, no two the same.

        Returns:
            Features of all rows, step after step.
        """
        return torch.cat([self.forward(step, cache) for step, cache in zip(steps, caches, strict=True)])

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Next-token logits ``[rows, vocab]`` of some rows of what :meth:`forward` returned."""

    def top(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Best ``count`` logits and ids of each row, as ``top_candidates`` gives them; may skip the full logits."""
        return top_candidates(self.logits(features), count)


_PLAIN: WeakKeyDictionary[Target, dict[int, PlainReference]] = WeakKeyDictionary()


def plain_reference(target: Target, batch_class: int = 1) -> PlainReference:
    """What plain steps of a target take: one record for the guards of all its requests, and for who measures it.

    Args:
        target: The model.
        batch_class: Which batch sizes: 1 is a request alone, others as ``BatchPlanner`` has them.
    """
    return _PLAIN.setdefault(target, {}).setdefault(batch_class, PlainReference())
