"""Any attention-only transformers model as a target, through its own forward pass.

Slower than ``fused`` (the modelling code's many small operations stay), but it covers every decoder that honours
position ids, a 4-D mask and a cache. ``probe.check_target`` finds out which do.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.fused import layer_windows
from treedecode.engines.linear import main_kind, pack_module_linears
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target, UnsupportedModelError

_ATTENTION_KINDS = {"full_attention", "sliding_attention"}


def refuse_unsupported(model: Any) -> None:
    """Raises :class:`UnsupportedModelError`, naming the model type, for models that trees cannot verify."""
    config = model.config
    name = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"model type {name!r} is an encoder-decoder, expected a decoder-only model"
        )
    kinds = set(getattr(config, "layer_types", None) or [])
    if model._is_stateful or kinds - _ATTENTION_KINDS:
        odd = ", ".join(sorted(kinds - _ATTENTION_KINDS)) or "recurrent state"
        raise UnsupportedModelError(
            f"model type {name!r} has layers that are not attention ({odd}): such state cannot branch over a tree"
        )
    if "local" in (getattr(config, "attention_layers", None) or []):  # GPT-Neo
        raise UnsupportedModelError(
            f"model type {name!r} has local attention layers: their window counts cache rows, not positions"
        )
    accepted = inspect.signature(model.forward).parameters
    missing = {"position_ids", "attention_mask", "past_key_values"} - set(accepted)
    if missing:
        raise UnsupportedModelError(
            f"the forward of model type {name!r} does not take {', '.join(sorted(missing))}"
        )


class TransformersDecoder(Target):
    """A :class:`Target` that calls ``model.forward``.

    Args:
        model: A transformers ``*ForCausalLM``.
        consume: Replace its linear layers by packed ones where that helps (CPU float32).

    Raises:
        UnsupportedModelError: The model is recurrent, encoder-decoder or otherwise out of reach.
    """

    implementation = "transformers"

    def __init__(self, model: Any, consume: bool) -> None:
        refuse_unsupported(model)
        config = model.config
        self._model = model
        weight = model.get_input_embeddings().weight
        self.dtype, self.device = weight.dtype, weight.device
        self.vocab_size = config.vocab_size
        self.max_positions = _max_positions(config)
        self._windows = layer_windows(config)
        self._kinds = getattr(config, "layer_types", None)
        self.layer_specs = self._probe_layers()
        self.linear_kind = main_kind(pack_module_linears(model) if consume else [])

    def _probe_layers(self) -> list[LayerSpec]:
        """Runs one token to see what every layer stores."""
        cache = self._run(
            torch.zeros(1, 1, dtype=torch.long, device=self.device), use_cache=True
        ).past_key_values
        if not isinstance(cache, Cache) or len(cache.layers) != len(self._windows):
            raise UnsupportedModelError(
                f"model type {self._model.config.model_type!r} keeps no transformers Cache with one layer per layer"
            )
        return [
            LayerSpec(layer.keys.shape[1], layer.keys.shape[3], window, layer.values.shape[3])  # type: ignore[union-attr]
            for layer, window in zip(cache.layers, self._windows, strict=True)
        ]

    def _run(self, input_ids: Tensor, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self._model(input_ids=input_ids, **kwargs)

    def check_forward(self) -> None:
        """Runs a two-row step, for models whose own code cannot take one.

        Raises:
            UnsupportedModelError: It failed; the message has the model type and the first line of the error.
        """
        step = StepInput.of_chain([0, 0], 0, self.device, self.dtype)
        try:
            self.forward(step, self.new_cache(2))
        except Exception as error:  # the model's own code may fail in any way
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UnsupportedModelError(
                f"the forward of model type {self._model.config.model_type!r} does not take a 4-D mask and a cache of "
                f"treedecode's: {reason}"
            ) from error

    def forward(self, step: StepInput, cache: KVCache, keep_rows: int | None = None) -> Tensor:
        return self._forward([step], [cache], keep_rows or 0)

    def forward_batch(self, steps: Sequence[StepInput], caches: Sequence[KVCache]) -> Tensor:
        """One pass over all rows as one sequence, with a mask that lets every row see its own request alone.

        Every row is multiplied with the keys of all requests before the mask, and those are copied together in every
        layer: cheap next to the weights for short contexts and a few requests, not for many long ones.
        """
        return self._forward(steps, caches, 0)

    def _forward(self, steps: Sequence[StepInput], caches: Sequence[KVCache], keep_rows: int) -> Tensor:
        masks = {window: _mask(steps, window) for window in set(self._windows)}
        mask: Any = masks[self._windows[0]]
        if len(masks) > 1:
            mask = {
                kind: masks[window] for kind, window in zip(self._kinds or [], self._windows, strict=True)
            }
        output = self._run(
            torch.cat([step.token_ids for step in steps])[None],
            position_ids=torch.cat([step.position_ids for step in steps])[None],
            attention_mask=mask,
            past_key_values=_StepCache(steps, caches),
            use_cache=True,
            logits_to_keep=keep_rows,
        )
        return output.logits[0]

    def logits(self, features: Tensor) -> Tensor:
        return features  # the modelling code scales or caps its logits itself


def _mask(steps: Sequence[StepInput], window: int | None) -> Tensor:
    """Additive ``[1, 1, rows, keys]``: for every step its own prefix and rows, as :class:`_StepLayer` hands them out.

    transformers reads the whole cache, so a window is all mask.
    """
    views = [step.view(window) for step in steps]
    num_keys = [step.prefix_len + step.num_rows for step in steps]
    if len(steps) == 1 and views[0][0] == 0:
        return views[0][1][None, None]
    like = views[0][1]
    mask = like.new_full((sum(step.num_rows for step in steps), sum(num_keys)), torch.finfo(like.dtype).min)
    row = column = 0
    for step, (start, part), count in zip(steps, views, num_keys, strict=True):
        mask[row : row + step.num_rows, column + start : column + count] = part
        row, column = row + step.num_rows, column + count
    return mask[None, None]


def _max_positions(config: Any) -> int | None:
    """The longest sequence; for LongRoPE the longest before the model switches factors for all positions at once."""
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", limit
        )
    return limit


class _StepCache(Cache):
    """A transformers cache over :class:`KVCache`: ``update`` writes in place and returns views.

    Of several requests it returns their keys and values one after the other, which takes a copy.
    """

    def __init__(self, steps: Sequence[StepInput], caches: Sequence[KVCache]) -> None:
        super().__init__(
            layers=[
                _StepLayer(steps, [cache.layer(index) for cache in caches]) for index in range(len(caches[0]))
            ]
        )


class _StepLayer(CacheLayerMixin):
    def __init__(self, steps: Sequence[StepInput], stores: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._steps, self._stores = steps, stores
        # what is stored before the step; of several requests nothing, which saves a copy
        cached = steps[0].prefix_len if len(steps) == 1 else 0
        self.keys, self.values = (store[None, :, :cached] for store in stores[0])
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the rows are allocated."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        first, ends = 0, []
        for step, (keys, values) in zip(self._steps, self._stores, strict=True):
            rows = slice(first, first + step.num_rows)
            end = step.prefix_len + step.num_rows
            keys[:, step.prefix_len : end].copy_(key_states[0, :, rows])
            values[:, step.prefix_len : end].copy_(value_states[0, :, rows])
            first += step.num_rows
            ends.append(end)
        return self._seen(ends)

    def _seen(self, ends: Sequence[int]) -> tuple[Tensor, Tensor]:
        keys = [keys[None, :, :end] for (keys, _), end in zip(self._stores, ends, strict=True)]
        values = [values[None, :, :end] for (_, values), end in zip(self._stores, ends, strict=True)]
        return (keys[0], values[0]) if len(ends) == 1 else (torch.cat(keys, dim=2), torch.cat(values, dim=2))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return sum(step.prefix_len for step in self._steps)

    def get_max_length(self) -> int:
        return sum(keys.shape[1] for keys, _ in self._stores)
