"""Tree attention over a paged cache by Triton kernels, for GPUs: every row once, the prefix through the block table."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from treedecode.attention.paged import PackedTrees
from treedecode.attention.triton_kernels import attend, merge

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# a split of fewer prefix tokens is not worth its merge
_MIN_SPLIT = 256


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    trees: PackedTrees,
    output: Tensor,
    scale: float,
    window: int | None = None,
    soft_cap: float = 0.0,
    num_splits: int | None = None,
) -> None:
    """Attend every tree node to its request's prefix, its ancestors and itself; rows of no tree are left alone.

    The last dimension of all tensors is contiguous; other strides are free, so views of a packed cache will do.

    Args:
        query: ``[rows, num_heads, head_size]``, one of ``DTYPES``.
        key: ``[rows, num_kv_heads, head_size]`` of the same rows and type.
        value: as ``key``.
        key_cache: ``[num_blocks, block_size, num_kv_heads, head_size]``, of the same type.
        value_cache: as ``key_cache``.
        block_table: int32 ``[requests, max_blocks]``.
        trees: on the same device.
        output: as ``query``. Its tree rows are written.
        scale: factor of the scores.
        window: a key is visible only if ``pos_q - window < pos_key``, positions by depth; None for all.
        soft_cap: ``cap * tanh(score / cap)``; 0 for none.
        num_splits: programs that share a prefix; None chooses so that the device is filled.

    Raises:
        ValueError: shapes, types or settings that do not fit together.
    """
    _check(query, key, key_cache, value_cache, output, window, num_splits)
    num_heads, head_size = query.shape[1:]
    num_kv_heads = key.shape[1]
    group = num_heads // num_kv_heads
    sizes = block_sizes(group, head_size, trees.max_nodes)
    keys_per_step, num_stages = pipeline(sizes["BLOCK_D"] * query.element_size())
    num_tiles = -(-trees.max_nodes // (sizes["BLOCK_M"] // group))
    num_programs = len(trees.trees) * num_tiles
    if num_splits is None:
        visible = trees.max_prefix if window is None else min(window, trees.max_prefix)
        num_splits = choose_splits(num_programs * num_kv_heads, visible, _num_processors(query.device))
    parts, sums = output, output
    if num_splits > 1:
        shape = (num_splits, len(trees.depths), num_heads, head_size)
        parts = torch.empty(shape, dtype=torch.float32, device=query.device)
        sums = torch.empty(shape[:-1], dtype=torch.float32, device=query.device)
    # typed as what is compiled, not as what launches it
    launch_attend: Any = attend
    launch_attend[(num_programs, num_kv_heads, num_splits)](
        query,
        key,
        value,
        key_cache,
        value_cache,
        block_table,
        trees.trees,
        trees.words,
        trees.depths,
        output,
        parts,
        sums,
        scale,
        float(soft_cap),
        window or 0,
        num_tiles,
        len(trees.depths),
        trees.words.shape[1],
        block_table.stride(0),
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *output.stride()[:2],
        **sizes,
        BLOCK_T=keys_per_step,
        BLOCK_SIZE=key_cache.shape[1],
        HAS_WINDOW=window is not None,
        HAS_CAP=soft_cap != 0,
        IS_SPLIT=num_splits > 1,
        num_stages=num_stages,
    )
    if num_splits > 1:
        launch_merge: Any = merge
        launch_merge[(num_programs, num_kv_heads)](
            trees.trees,
            parts,
            sums,
            output,
            num_splits,
            num_tiles,
            len(trees.depths),
            num_kv_heads,
            *output.stride()[:2],
            **sizes,
        )


def choose_splits(num_programs: int, prefix_len: int, num_processors: int) -> int:
    """How many programs share each prefix.

    Args:
        num_programs: without splits.
        prefix_len: the longest that is visible.
        num_processors: of the device.

    Returns:
        At least 1; no more than the processors have room for, nor so many that a split would be shorter than is worth
        merging.
    """
    return max(1, min(num_processors // num_programs, prefix_len // _MIN_SPLIT))


def block_sizes(group: int, head_size: int, max_nodes: int) -> dict[str, int]:
    """Constants of both kernels: ``BLOCK_M`` rows per program, those of the largest tree as far as registers go.

    Args:
        group: query heads per key head.
        head_size: numbers per head.
        max_nodes: of the largest tree.
    """
    most = 64 if head_size <= 128 else 32 if head_size <= 256 else 16
    rows = min(most, max(16, _power_of_2(max_nodes * group)))
    return {
        "GROUP": group,
        "HEAD_SIZE": head_size,
        "BLOCK_M": max(_power_of_2(group), rows),
        "BLOCK_D": max(16, _power_of_2(head_size)),
    }


def _power_of_2(number: int) -> int:
    """The least one that is at least ``number``."""
    return 1 << (number - 1).bit_length()


def pipeline(row_bytes: int) -> tuple[int, int]:
    """Keys per step of the inner loops, and steps loaded ahead, so that they fit into the shared memory of any GPU.

    Args:
        row_bytes: of a key, padded.
    """
    return (32 if row_bytes <= 1024 else 16), (2 if row_bytes <= 512 else 1)


@cache
def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _check(
    query: Tensor,
    key: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    output: Tensor,
    window: int | None,
    num_splits: int | None,
) -> None:
    if query.dtype not in DTYPES or any(
        tensor.dtype != query.dtype for tensor in (key, key_cache, value_cache)
    ):
        raise ValueError(
            f"queries, keys and caches must have one type of {', '.join(map(str, DTYPES))}; got {query.dtype}, "
            f"{key.dtype}, {key_cache.dtype} and {value_cache.dtype}"
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads must be a multiple of {key.shape[1]} key heads")
    if key_cache.shape[2:] != key.shape[1:] or key_cache.shape != value_cache.shape:
        raise ValueError(
            f"caches must be [num_blocks, block_size, {key.shape[1]}, {key.shape[2]}], "
            f"got {tuple(key_cache.shape)} and {tuple(value_cache.shape)}"
        )
    if output.shape != query.shape:
        raise ValueError(
            f"output must have the shape of the queries, {tuple(query.shape)}, got {tuple(output.shape)}"
        )
    if window is not None and window < 1:
        raise ValueError(f"window must be None or at least 1, got {window}")
    if num_splits is not None and num_splits < 1:
        raise ValueError(f"num_splits must be None or at least 1, got {num_splits}")
