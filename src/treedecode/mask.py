"""Tree masks: who sees whom among the nodes of a tree, and what they see of the prefix.

The one source is ``ancestor_bits``: node ``i`` sees node ``j`` iff bit ``j`` of ``bits[i]`` is set, that is
iff ``j`` is ``i`` or an ancestor of ``i``. Dense, packed and additive masks are views of it. True means
visible everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from treedecode.topology import check_prefix_len, count

if TYPE_CHECKING:
    import torch

    from treedecode.shape import TreeShape


def ancestor_bits(parents: tuple[int, ...]) -> tuple[int, ...]:
    """For every node, an integer whose bit ``j`` is set iff the node sees node ``j``."""
    bits = [1] * len(parents)
    for node in range(1, len(parents)):
        bits[node] = bits[parents[node]] | (1 << node)
    return tuple(bits)


def parents_from_bits(bits: Sequence[int]) -> tuple[int, ...]:
    """Invert ``ancestor_bits``.

    Raises:
        ValueError: the rows are not those of a tree whose parents precede their children.
    """
    if not bits or bits[0] != 1:
        raise ValueError(f"the root sees itself alone: got rows {[_set_bits(row) for row in bits[:1]]}")
    parents = [-1]
    for node in range(1, len(bits)):
        row = bits[node]
        parent = (row & ~(1 << node)).bit_length() - 1
        if not 0 <= parent < node or row != bits[parent] | (1 << node):
            raise ValueError(
                f"row {node} is not the path of a tree: expected node {node} and all that its parent sees, "
                f"got true at {_set_bits(row)}"
            )
        parents.append(parent)
    return tuple(parents)


def _set_bits(row: int) -> list[int]:
    return [j for j in range(row.bit_length()) if row >> j & 1]


def dense_mask(bits: Sequence[int]) -> np.ndarray:
    """Bool ``[N, N]``, true at ``[i, j]`` iff node ``i`` sees node ``j``. A fresh, writable array."""
    num_nodes = len(bits)
    packed = _bytes_of(bits, (num_nodes + 7) // 8)
    return np.unpackbits(packed, axis=1, count=num_nodes, bitorder="little").view(np.bool_)


def bits_from_dense(mask: ArrayLike) -> tuple[int, ...]:
    """Invert ``dense_mask``.

    Raises:
        ValueError: the mask is not square.
        TypeError: the mask is not bool.
    """
    array = np.asarray(mask)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ValueError(f"a tree mask is square: expected shape [N, N], got {array.shape}")
    if array.dtype != np.bool_:
        raise TypeError(f"a tree mask is bool, true = visible; got dtype {array.dtype}")
    return _ints_of(np.packbits(array, axis=1, bitorder="little"))


def packed_mask(bits: Sequence[int], word_bits: int = 64) -> np.ndarray:
    """Unsigned ``[N, ceil(N / word_bits)]``: node ``j`` is bit ``j % word_bits`` of word ``j // word_bits``.

    Raises:
        ValueError: ``word_bits`` is neither 32 nor 64.
    """
    dtype = _word_dtype(word_bits)
    num_words = -(-len(bits) // word_bits)
    return _bytes_of(bits, num_words * dtype.itemsize).view(dtype).astype(dtype.newbyteorder("="))


def bits_from_packed(words: ArrayLike, word_bits: int = 64) -> tuple[int, ...]:
    """Invert ``packed_mask``; signed words of the same width (TensorRT-LLM's int32) are read bit by bit.

    Raises:
        ValueError: ``words`` is not ``[N, ceil(N / word_bits)]``, or a bit at or past N is set.
        TypeError: the words are not integers of ``word_bits`` bits.
    """
    dtype = _word_dtype(word_bits)
    array = np.asarray(words)
    num_words = -(-len(array) // word_bits) if array.ndim else 0
    if array.ndim != 2 or array.shape[1] != num_words:
        raise ValueError(
            f"a packed mask of {word_bits}-bit words has shape [N, ceil(N / {word_bits})], got {array.shape}"
        )
    if array.dtype.kind not in "iu" or array.dtype.itemsize != dtype.itemsize:
        raise TypeError(f"expected words of {word_bits} bits, got dtype {array.dtype}")
    return _ints_of(array.astype(f"<i{dtype.itemsize}"))


def _word_dtype(word_bits: int) -> np.dtype:
    if word_bits not in (32, 64):
        raise ValueError(f"packed masks have words of 32 or 64 bits, got {word_bits!r}")
    return np.dtype(f"<u{word_bits // 8}")


def _bytes_of(bits: Sequence[int], num_bytes: int) -> np.ndarray:
    joined = b"".join([row.to_bytes(num_bytes, "little") for row in bits])
    return np.frombuffer(joined, np.uint8).reshape(len(bits), num_bytes)


def _ints_of(rows: np.ndarray) -> tuple[int, ...]:
    return tuple(int.from_bytes(row.tobytes(), "little") for row in rows)


def step_mask(
    tree_mask: np.ndarray, depths: np.ndarray, prefix_len: int, window: int | None = None
) -> np.ndarray:
    """Bool ``[N, prefix_len + N]``: what every node sees of ``[prefix | tree]``.

    Positions go by depth: with a sliding window W a key is visible only if ``pos_q - W < pos_key <= pos_q``,
    where the position of a node is ``prefix_len + depth``.

    Args:
        tree_mask: bool ``[N, N]``.
        depths: integer ``[N]``.
        prefix_len: number of tokens in the cache.
        window: sliding window in tokens, ``None`` for full attention.

    Raises:
        ValueError: ``prefix_len`` is negative or ``window`` is under 1.
    """
    prefix_len = check_prefix_len(prefix_len)
    num_nodes = len(depths)
    mask = np.ones((num_nodes, prefix_len + num_nodes), np.bool_)
    mask[:, prefix_len:] = tree_mask
    if window is not None:
        window = count(window, "window", minimum=1)
        first_visible = depths.astype(np.int64)[:, None] + (prefix_len - window + 1)
        key_positions = np.concatenate([np.arange(prefix_len), prefix_len + depths])
        mask &= key_positions[None, :] >= first_visible
    return mask


def batch_step_mask(
    shapes: Sequence[TreeShape], prefix_lens: Sequence[int], window: int | None = None
) -> np.ndarray:
    """Bool ``[B, max N, max(prefix_len + N)]``: the step masks of a batch, right-padded.

    Row ``b`` holds ``shapes[b].step_mask(prefix_lens[b], window)``. Padding keys are visible to nobody; a
    padding query sees key 0 alone, so that its softmax stays finite.

    Raises:
        ValueError: there are not as many prefix lengths as shapes, or a row is refused (named).
    """
    if len(shapes) != len(prefix_lens):
        raise ValueError(
            f"expected one prefix length per tree: {len(shapes)} trees, {len(prefix_lens)} lengths"
        )
    masks = [
        shape.step_mask(prefix_len, window) for shape, prefix_len in zip(shapes, prefix_lens, strict=True)
    ]
    num_queries = max((mask.shape[0] for mask in masks), default=0)
    num_keys = max((mask.shape[1] for mask in masks), default=0)
    batch = np.zeros((len(masks), num_queries, num_keys), np.bool_)
    for row, mask in zip(batch, masks, strict=True):
        row[len(mask) :, 0] = True
        row[: mask.shape[0], : mask.shape[1]] = mask
    return batch


def check_mask(mask: np.ndarray | torch.Tensor, num_queries: int, num_keys: int) -> None:
    """Refuse an attention mask that is not ``[..., num_queries, num_keys]``.

    Raises:
        ValueError: with the expected and the actual shape; a transposed mask is named as such.
    """
    shape = tuple(mask.shape)
    if shape[-2:] != (num_queries, num_keys):
        hint = " (transposed?)" if shape[-2:] == (num_keys, num_queries) else ""
        raise ValueError(
            f"a mask has one row per query and one column per key: "
            f"expected shape [..., {num_queries}, {num_keys}], got {list(shape)}{hint}"
        )


def additive(mask: np.ndarray | torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Turn a bool mask into one to add to attention scores: 0 where visible, -inf where not.

    Args:
        mask: bool, any shape, true = visible. A tensor stays on its device.
        dtype: a floating dtype, float32 if not given.

    Raises:
        TypeError: the mask is not bool or the dtype is not floating.
    """
    import torch

    if dtype is None:
        dtype = torch.float32
    if not dtype.is_floating_point:
        raise TypeError(f"an additive mask holds -inf: expected a floating dtype, got {dtype}")
    visible = torch.as_tensor(mask)
    if visible.dtype != torch.bool:
        raise TypeError(f"expected a bool mask, true = visible; got dtype {visible.dtype}")
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, float("-inf")
    )


def tree_mask_tensor(shape: TreeShape, device: torch.device | str | None = None) -> torch.Tensor:
    """Bool tensor ``[N, N]`` on ``device``, true at ``[i, j]`` iff node ``i`` sees node ``j``."""
    import torch

    return torch.from_numpy(shape.mask()).to(device=device)
