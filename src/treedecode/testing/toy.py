"""A two-layer float64 attention model and the loop around it, small enough to check the core end to end.

The second layer's keys depend on everything the first layer saw, so a wrong mask, position or cache row
changes the tokens that follow. ``StepHooks`` lets a test put a fault in the loop's place of one of those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import torch

from treedecode.accept import accept_greedy, truncate_at_stop
from treedecode.kv import commit_layers
from treedecode.mask import additive
from treedecode.tree import DraftTree, TreeShape, depth_room

Cache = list[tuple[torch.Tensor, torch.Tensor]]


class ToyModel:
    """Random weights; logits over ``vocab_size`` tokens for rows that see what a mask lets them see."""

    def __init__(self, vocab_size: int = 12, dim: int = 16, num_layers: int = 2, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        self.vocab_size, self.dim = vocab_size, dim
        self.embedding = random(vocab_size, dim)
        self.unembedding = random(dim, vocab_size)
        self.layers = [[2 * random(dim, dim) / dim**0.5 for _ in range(4)] for _ in range(num_layers)]
        self.frequencies = torch.linspace(0.1, 1.5, dim, dtype=torch.float64)

    def new_cache(self, num_rows: int) -> Cache:
        """Cache of NaN: reading a row that nobody wrote shows."""
        empty = torch.full((1, num_rows, self.dim), float("nan"), dtype=torch.float64)
        return [(empty.clone(), empty.clone()) for _ in self.layers]

    def forward(
        self, token_ids: list[int], position_ids: np.ndarray, mask: np.ndarray, cache: Cache, prefix_len: int
    ) -> torch.Tensor:
        """Write the rows of ``token_ids`` after ``prefix_len``; return their logits ``[rows, vocab_size]``."""
        angles = torch.as_tensor(position_ids, dtype=torch.float64)[:, None] * self.frequencies
        positional = torch.cat([angles.sin()[:, ::2], angles.cos()[:, 1::2]], 1)
        hidden = self.embedding[token_ids]
        bias = additive(mask, torch.float64)
        for (query, key, value, out), (keys, values) in zip(self.layers, cache, strict=True):
            rows = slice(prefix_len, prefix_len + len(token_ids))
            keys[0, rows] = (hidden + positional) @ key
            values[0, rows] = hidden @ value
            scores = ((hidden + positional) @ query) @ keys[0, : rows.stop].T / self.dim**0.5 + bias
            hidden = torch.tanh(hidden + scores.softmax(-1) @ values[0, : rows.stop] @ out)
        return hidden @ self.unembedding


@dataclass(frozen=True)
class StepHooks:
    """The parts of a step that a test may replace with a faulty one."""

    position_ids: Callable[[TreeShape, int], np.ndarray] = TreeShape.position_ids
    mask: Callable[[TreeShape, int, int | None], np.ndarray] = TreeShape.step_mask
    commit: Callable[[Cache, int, list[int]], None] = commit_layers


@dataclass
class Decoded:
    """Output of ``decode`` and what it took."""

    token_ids: list[int] = field(default_factory=list)
    emitted_per_step: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    cache: Cache = field(default_factory=list)
    prefix_len: int = 0
    largest_position: int = -1


def decode(
    model: ToyModel,
    prompt: list[int],
    max_len: int,
    draft: Callable[[list[int]], DraftTree] | None = None,
    stop_ids: Collection[int] = (),
    window: int | None = None,
    hooks: StepHooks | None = None,
    max_nodes: int = 64,
) -> Decoded:
    """Greedy decoding until ``max_len`` tokens in all, plain if ``draft`` is ``None``.

    ``draft`` maps the tokens so far to a tree whose root is the last of them.
    """
    hooks = hooks or StepHooks()
    output = Decoded(cache=model.new_cache(max_len + max_nodes))

    def step(shape: TreeShape, token_ids: list[int]) -> torch.Tensor:
        positions = hooks.position_ids(shape, output.prefix_len)
        output.largest_position = max(output.largest_position, *positions.tolist())
        mask = hooks.mask(shape, output.prefix_len, window)
        return model.forward(token_ids, positions, mask, output.cache, output.prefix_len)

    if len(prompt) > 1:
        step(TreeShape.chain(len(prompt) - 2), prompt[:-1])
        output.prefix_len = len(prompt) - 1
    while output.finish_reason is None:
        tokens = prompt + output.token_ids
        tree = DraftTree.root_only(tokens[-1]) if draft is None else draft(tokens)
        tree = tree.within_depth(depth_room(output.prefix_len, max_len))
        choices = step(tree.shape, list(tree.token_tuple)).argmax(-1)
        accepted = accept_greedy(tree, choices.tolist())
        kept, output.finish_reason = truncate_at_stop(accepted.token_ids, stop_ids, max_len - len(tokens))
        accepted = accepted.cut(len(kept))
        hooks.commit(output.cache, output.prefix_len, accepted.path)
        output.prefix_len += len(accepted.path)
        output.token_ids += kept
        output.emitted_per_step.append(len(kept))
    return output
