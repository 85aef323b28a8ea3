"""The small operations between the large products of a decoder layer, each fused into one pass.

A layer of a small model spends as long on norms, rotations and copies, some forty tensor operations, as one
product takes. ``TORCH`` defines what is right on every device; ``numba_kernels`` does the same on CPU in two
compiled functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treedecode.attention.grouped import group_heads


class Kernels(NamedTuple):
    """Two operations on the rows of a step.

    ``rotate_and_store(heads, weight, cos, sin, eps, num_heads, keys, values, first) -> query`` takes the joint
    projection ``heads`` ``[N, num_heads + 2 * num_kv_heads, dim]``, normalises query and key heads (RMSNorm, times
    ``weight`` ``[num_heads + num_kv_heads, dim]``; skipped where it is None), rotates them by ``cos`` and ``sin``
    ``[N, 1, dim]`` (``sin`` with its first half negated), writes keys and values at cache rows ``first ..``, and
    returns the query heads as ``[num_kv_heads, group * N, dim]``.

    ``add_norm(hidden, mixed, post, pre, eps) -> normed`` adds ``mixed`` (after an RMSNorm with weight ``post``, where
    given) to ``hidden`` in place and returns the RMSNorm of the sum with weight ``pre``; all ``[N, size]``.
    """

    name: str
    rotate_and_store: Callable[..., Tensor]
    add_norm: Callable[..., Tensor]


def _rotate_and_store(
    heads: Tensor,
    weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    num_heads: int,
    keys: Tensor,
    values: Tensor,
    first: int,
) -> Tensor:
    num_rows, _, dim = heads.shape
    num_kv_heads = keys.shape[0]
    rotated = num_heads + num_kv_heads
    query_key = heads[:, :rotated]
    if weight is not None:
        query_key = F.rms_norm(query_key, (dim,), None, eps) * weight
    query_key = torch.addcmul(query_key * cos, query_key.roll(dim // 2, -1), sin)
    keys[:, first : first + num_rows].copy_(query_key[:, num_heads:].transpose(0, 1))
    values[:, first : first + num_rows].copy_(heads[:, rotated:].transpose(0, 1))
    return group_heads(query_key[:, :num_heads], num_kv_heads)


def _add_norm(hidden: Tensor, mixed: Tensor, post: Tensor | None, pre: Tensor, eps: float) -> Tensor:
    hidden += mixed if post is None else F.rms_norm(mixed, post.shape, post, eps)
    return F.rms_norm(hidden, pre.shape, pre, eps)


TORCH = Kernels("torch", _rotate_and_store, _add_norm)


def choose_kernels(device: torch.device, dtype: torch.dtype) -> Kernels:
    """Compiled kernels for float32 on CPU, tensor operations elsewhere."""
    return numba_kernels() if device.type == "cpu" and dtype == torch.float32 else TORCH


@functools.cache
def numba_kernels() -> Kernels:
    """Compiles the CPU kernels: some seconds the first time on a machine, then from numba's disk cache."""
    import numba

    # sums may be reordered, as in any vectorised kernel; NaN and infinity keep their meaning
    compiled: Any = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "arcp", "nsz"})
    rotate, add = compiled(_rotate_rows), compiled(_add_rows)
    ones: dict[tuple[int, int], np.ndarray] = {}

    def rotate_and_store(
        heads: Tensor,
        weight: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        eps: float,
        num_heads: int,
        keys: Tensor,
        values: Tensor,
        first: int,
    ) -> Tensor:
        num_rows, _, dim = heads.shape
        num_kv_heads = keys.shape[0]
        query = heads.new_empty(num_kv_heads, num_heads // num_kv_heads * num_rows, dim)
        if weight is None:
            shape = (num_heads + num_kv_heads, dim)
            scales = ones.setdefault(shape, np.ones(shape, np.float32))
        else:
            scales = weight.numpy()
        rotate(
            heads.numpy(),
            scales,
            weight is not None,
            cos.numpy(),
            sin.numpy(),
            np.float32(eps),
            query.numpy(),
            keys.numpy(),
            values.numpy(),
            first,
        )
        return query

    def add_norm(hidden: Tensor, mixed: Tensor, post: Tensor | None, pre: Tensor, eps: float) -> Tensor:
        normed = torch.empty_like(hidden)
        scales = pre if post is None else post
        add(
            hidden.numpy(),
            mixed.numpy(),
            scales.numpy(),
            post is not None,
            pre.numpy(),
            np.float32(eps),
            normed.numpy(),
        )
        return normed

    return Kernels("numba", rotate_and_store, add_norm)


def _rotate_rows(heads, weight, normalise, cos, sin, eps, query, keys, values, first):
    num_rows, _, dim = heads.shape
    num_kv_heads = keys.shape[0]
    num_heads = weight.shape[0] - num_kv_heads
    group, half = num_heads // num_kv_heads, dim // 2
    for row in range(num_rows):
        for head in range(num_heads + num_kv_heads):
            source, scales = heads[row, head], weight[head]
            factor = np.float32(1)
            if normalise:
                total = np.float32(0)
                for i in range(dim):
                    total += source[i] * source[i]
                factor = np.float32(1) / np.sqrt(total / np.float32(dim) + eps)
            if head < num_heads:
                target = query[head // group, (head % group) * num_rows + row]
            else:
                target = keys[head - num_heads, first + row]
            for i in range(half):
                low = source[i] * factor * scales[i]
                high = source[i + half] * factor * scales[i + half]
                target[i] = low * cos[row, 0, i] + high * sin[row, 0, i]
                target[i + half] = high * cos[row, 0, i + half] + low * sin[row, 0, i + half]
        for head in range(num_kv_heads):
            source, target = heads[row, num_heads + num_kv_heads + head], values[head, first + row]
            for i in range(dim):
                target[i] = source[i]


def _add_rows(hidden, mixed, post, has_post, pre, eps, normed):
    num_rows, size = hidden.shape
    for row in range(num_rows):
        total_row, added, out = hidden[row], mixed[row], normed[row]
        factor = np.float32(1)
        if has_post:
            total = np.float32(0)
            for i in range(size):
                total += added[i] * added[i]
            factor = np.float32(1) / np.sqrt(total / np.float32(size) + eps)
            for i in range(size):
                total_row[i] += added[i] * factor * post[i]
        else:
            for i in range(size):
                total_row[i] += added[i]
        total = np.float32(0)
        for i in range(size):
            total += total_row[i] * total_row[i]
        factor = np.float32(1) / np.sqrt(total / np.float32(size) + eps)
        for i in range(size):
            out[i] = total_row[i] * factor * pre[i]
