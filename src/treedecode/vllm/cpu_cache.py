"""Where vLLM's CPU cache keeps each key and value: learned by writing numbers through vLLM's own op.

The layout differs by instruction set (keys are transposed for most, packed otherwise for AMX and NEON) and is no part
of vLLM's interface, so nothing here assumes it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from vllm import _custom_ops as ops

# bfloat16 holds the integers up to 256 exactly
_DIGIT = 128
_NUM_DIGITS = 3


@dataclass(frozen=True)
class BlockLayout:
    """How one block of one head is kept.

    Attributes:
        key_order: int64 ``[block_size * head_size]``: place of the key element ``(token, dim)``, row by row; None if
            keys are kept transposed, ``[head_size, block_size]``.
        value_order: likewise for values; None if they are kept row by row.
        block_size: tokens per block.
        head_size: numbers per token.
    """

    key_order: Tensor | None
    value_order: Tensor | None
    block_size: int
    head_size: int

    def keys(self, raw: Tensor) -> Tensor:
        """``[..., block_size * head_size]`` as stored, to ``[..., head_size, block_size]``."""
        if self.key_order is None:
            return raw.unflatten(-1, (self.head_size, self.block_size))
        return raw[..., self.key_order].unflatten(-1, (self.block_size, self.head_size)).transpose(-1, -2)

    def values(self, raw: Tensor) -> Tensor:
        """``[..., block_size * head_size]`` as stored, to ``[..., block_size, head_size]``."""
        ordered = raw if self.value_order is None else raw[..., self.value_order]
        return ordered.unflatten(-1, (self.block_size, self.head_size))


@functools.cache
def block_layout(isa: str, dtype: torch.dtype, block_size: int, head_size: int) -> BlockLayout:
    """Learn the layout of ``isa``'s cache of this type and size.

    Raises:
        RuntimeError: the op does not merely reorder what it writes (a quantised cache).
    """
    size = block_size * head_size
    places = torch.zeros(2, size, dtype=torch.int64)
    numbers = torch.arange(size).view(block_size, 1, head_size)
    for digit in range(_NUM_DIGITS):
        cache = torch.zeros(1, 1, block_size, 2 * head_size, dtype=dtype)
        key_cache, value_cache = cache.view(1, 1, 2 * block_size, head_size).chunk(2, dim=2)
        written = (numbers // _DIGIT**digit % _DIGIT).to(dtype)
        ops.cpu_attn_reshape_and_cache(
            written, written, key_cache, value_cache, torch.arange(block_size), isa
        )
        places += cache.view(2, size).long() * _DIGIT**digit
    identity = torch.arange(size)
    if not torch.equal(places.sort(dim=1).values, identity.expand(2, size)):
        raise RuntimeError(f"the cache of {isa!r} in {dtype} cannot be read back element by element")
    key_order, value_order = places.argsort(dim=1)
    transposed = identity.view(head_size, block_size).t().flatten()
    return BlockLayout(
        None if torch.equal(key_order, transposed) else key_order,
        None if torch.equal(value_order, identity) else value_order,
        block_size,
        head_size,
    )
