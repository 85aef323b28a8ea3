"""What the decode loop asks of a target model, whatever runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.candidates import top_candidates
from treedecode.engines.step import StepInput
from treedecode.gains import PlainReference


class UnsupportedModelError(ValueError):
    """The model cannot be verified over trees; the message names the model type and the reason."""


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

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache with room for ``capacity`` rows."""
        return KVCache(self.layer_specs, capacity, self.dtype, self.device)

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

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Next-token logits ``[rows, vocab]`` of some rows of what :meth:`forward` returned."""

    def top(self, features: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Best ``count`` logits and ids of each row, as ``top_candidates`` gives them; may skip the full logits."""
        return top_candidates(self.logits(features), count)


_PLAIN: WeakKeyDictionary[Target, PlainReference] = WeakKeyDictionary()


def plain_reference(target: Target) -> PlainReference:
    """What plain steps of a target take: one record for the guards of all its requests, and for who measures it."""
    return _PLAIN.setdefault(target, PlainReference())
