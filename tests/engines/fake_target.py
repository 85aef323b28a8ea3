"""A target whose steps take as long as they are told to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from treedecode.engines import judging_cost
from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target


class FakeTarget(Target):
    """Steps that take as long as told on a clock of their own."""

    implementation, linear_kind = "fake", "none"
    dtype, device, vocab_size = torch.float32, torch.device("cpu"), 11

    def __init__(
        self,
        seconds: Callable[[int, int], float],
        max_positions: int | None = 100_000,
        specs: Sequence[LayerSpec] = (LayerSpec(1, 2, None),),
    ) -> None:
        self.seconds, self.max_positions, self.layer_specs = seconds, max_positions, specs
        self.now, self.passes = 0.0, Counter[tuple[int, int]]()
        self.caches: list[KVCache] = []

    def clock(self) -> float:
        return self.now

    def new_cache(self, capacity: int) -> KVCache:
        self.caches.append(super().new_cache(capacity))
        self.num_typical = 1 + judging_cost._TYPICAL_ROUNDS
        return self.caches[-1]

    def forward(self, step: StepInput, cache: KVCache, keep_rows: int | None = None) -> torch.Tensor:
        assert cache.length == step.prefix_len
        assert step.prefix_len + step.num_rows <= cache.capacity
        if self.num_typical:  # passes that make rows like text come first; here they take no time
            self.num_typical -= 1
        else:
            self.passes[step.prefix_len, step.num_rows] += 1
            self.now += self.seconds(step.prefix_len, step.num_rows)
        return torch.zeros(step.num_rows, 2)

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(features), self.vocab_size)


def linear(context: int, rows: int) -> float:
    return 1e-3 * (1 + 0.1 * rows + 0.001 * context)
