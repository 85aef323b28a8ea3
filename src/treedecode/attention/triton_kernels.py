"""The Triton kernels of ``paged_triton``: tree nodes attend to a paged prefix and to their ancestors.

All sums are float32, by the online softmax (Milakov and Gimelshein, 2018; Dao et al., 2022). A long prefix is split
between programs whose results ``merge`` weighs by their log-sum-exp, as in Flash-Decoding (Dao et al., 2023): a tree
has too few rows to fill a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _scores(query, key, scale, soft_cap, HAS_CAP: tl.constexpr):
    """Scores in units of log 2, for exp2."""
    scores = tl.dot(query, key, input_precision="ieee") * scale
    if HAS_CAP:
        # tanh by an exp that cannot overflow
        shrunk = tl.exp(-2 * tl.abs(scores) / soft_cap)
        capped = soft_cap * (1 - shrunk) / (1 + shrunk)
        scores = tl.where(scores < 0, -capped, capped)
    return scores * 1.4426950408889634


@triton.jit
def _accumulate(scores, visible, value, acc, top, total):
    """One step of the online softmax; a row that has seen nothing yet keeps ``top`` at minus infinity."""
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    rescale = tl.exp2(top - base)
    acc = acc * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return acc, new_top, total * rescale + tl.sum(weights, 1)


# a kernel compiled anew for sizes that are 1, or multiples of 16, would stop a server in the middle of a step
@triton.jit(do_not_specialize=["window", "num_tiles", "num_rows", "num_words"])
def attend(
    query,
    key,
    value,
    key_cache,
    value_cache,
    block_table,
    trees,
    words,
    depths,
    output,
    parts,
    sums,
    scale,
    soft_cap,
    window,
    num_tiles,
    num_rows,
    num_words,
    table_stride,
    query_row,
    query_head,
    key_row,
    key_head,
    value_row,
    value_head,
    key_cache_block,
    key_cache_slot,
    key_cache_head,
    value_cache_block,
    value_cache_slot,
    value_cache_head,
    output_row,
    output_head,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """A program: some nodes of one tree, the query heads of one key head, one split of the prefix."""
    NODES: tl.constexpr = BLOCK_M // GROUP
    tree = trees + tl.program_id(0) // num_tiles * 5
    first_node = tl.program_id(0) % num_tiles * NODES
    kv_head = tl.program_id(1)
    split, num_splits = tl.program_id(2), tl.num_programs(2)
    request, first_row, prefix_len = tl.load(tree), tl.load(tree + 1), tl.load(tree + 2)
    num_nodes, place = tl.load(tree + 3), tl.load(tree + 4)
    if first_node >= num_nodes:
        return
    m, d, t = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_T)
    node = first_node + m // GROUP
    head = kv_head * GROUP + m % GROUP
    is_row = (m // GROUP < NODES) & (node < num_nodes)
    is_row_dim = is_row[:, None] & (d < HEAD_SIZE)[None, :]
    q_place = (first_row + node)[:, None].to(tl.int64) * query_row + head[:, None] * query_head + d[None, :]
    q = tl.load(query + q_place, mask=is_row_dim, other=0.0)
    depth = tl.load(depths + place + node, mask=is_row, other=0)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)

    start = 0
    if HAS_WINDOW:
        # what the root sees first; deeper nodes see no earlier key
        start = tl.maximum(0, prefix_len + 1 - window) // BLOCK_T * BLOCK_T
    span = tl.cdiv(tl.cdiv(tl.maximum(0, prefix_len - start), num_splits), BLOCK_T) * BLOCK_T
    low = start + split * span
    high = tl.minimum(prefix_len, low + span)
    for first in range(low, high, BLOCK_T):
        position = first + t
        is_key = position < high
        is_key_dim = is_key[:, None] & (d < HEAD_SIZE)[None, :]
        block = tl.load(
            block_table + request.to(tl.int64) * table_stride + position // BLOCK_SIZE, mask=is_key, other=0
        ).to(tl.int64)
        slot = position % BLOCK_SIZE
        k_place = block * key_cache_block + slot * key_cache_slot + kv_head * key_cache_head
        v_place = block * value_cache_block + slot * value_cache_slot + kv_head * value_cache_head
        k = tl.load(key_cache + k_place[:, None] + d[None, :], mask=is_key_dim, other=0.0)
        v = tl.load(value_cache + v_place[:, None] + d[None, :], mask=is_key_dim, other=0.0)
        visible = is_row[:, None] & is_key[None, :]
        if HAS_WINDOW:
            visible = visible & (position[None, :] > (prefix_len + depth)[:, None] - window)
        acc, top, total = _accumulate(
            _scores(q, tl.trans(k), scale, soft_cap, HAS_CAP), visible, v, acc, top, total
        )

    if split == num_splits - 1:
        # parents precede children: no node of this program sees a later one
        end = tl.minimum(num_nodes, first_node + NODES)
        for first in range(0, end, BLOCK_T):
            seen = first + t
            is_key = seen < end
            is_key_dim = is_key[:, None] & (d < HEAD_SIZE)[None, :]
            row = (first_row + seen).to(tl.int64)
            k_place = row * key_row + kv_head * key_head
            v_place = row * value_row + kv_head * value_head
            k = tl.load(key + k_place[:, None] + d[None, :], mask=is_key_dim, other=0.0)
            v = tl.load(value + v_place[:, None] + d[None, :], mask=is_key_dim, other=0.0)
            visible = is_row[:, None] & is_key[None, :]
            word = tl.load(
                words + (place + node)[:, None] * num_words + (seen // 32)[None, :], mask=visible, other=0
            )
            visible = visible & (((word >> (seen % 32)[None, :]) & 1) != 0)
            if HAS_WINDOW:
                seen_depth = tl.load(depths + place + seen, mask=is_key, other=0)
                visible = visible & (seen_depth[None, :] > depth[:, None] - window)
            acc, top, total = _accumulate(
                _scores(q, tl.trans(k), scale, soft_cap, HAS_CAP), visible, v, acc, top, total
            )

    # a split may have seen nothing: its sum is 0 and its logarithm minus infinity, as ``top`` is
    total = tl.where(total == 0, 1.0, total)
    result = acc / total[:, None]
    if IS_SPLIT:
        part = (split.to(tl.int64) * num_rows + place + node) * (tl.num_programs(1) * GROUP) + head
        tl.store(parts + part[:, None] * HEAD_SIZE + d[None, :], result, mask=is_row_dim)
        tl.store(sums + part, top + tl.log2(total), mask=is_row)
    else:
        o_place = (
            (first_row + node)[:, None].to(tl.int64) * output_row + head[:, None] * output_head + d[None, :]
        )
        tl.store(output + o_place, result.to(output.dtype.element_ty), mask=is_row_dim)


@triton.jit(do_not_specialize=["num_splits", "num_tiles", "num_rows"])
def merge(
    trees,
    parts,
    sums,
    output,
    num_splits,
    num_tiles,
    num_rows,
    num_kv_heads,
    output_row,
    output_head,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Weigh the splits of some nodes' attention by the sums of their exponentials."""
    NODES: tl.constexpr = BLOCK_M // GROUP
    tree = trees + tl.program_id(0) // num_tiles * 5
    first_node = tl.program_id(0) % num_tiles * NODES
    first_row, num_nodes, place = tl.load(tree + 1), tl.load(tree + 3), tl.load(tree + 4)
    if first_node >= num_nodes:
        return
    m, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    node = first_node + m // GROUP
    head = tl.program_id(1) * GROUP + m % GROUP
    is_row = (m // GROUP < NODES) & (node < num_nodes)
    is_row_dim = is_row[:, None] & (d < HEAD_SIZE)[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for split in range(num_splits):
        part = (tl.cast(split, tl.int64) * num_rows + place + node) * (num_kv_heads * GROUP) + head
        log_sum = tl.load(sums + part, mask=is_row, other=float("-inf"))
        result = tl.load(parts + part[:, None] * HEAD_SIZE + d[None, :], mask=is_row_dim, other=0.0)
        new_top = tl.maximum(top, log_sum)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight, rescale = tl.exp2(log_sum - base), tl.exp2(top - base)
        acc = acc * rescale[:, None] + result * weight[:, None]
        total = total * rescale + weight
        top = new_top
    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    o_place = (first_row + node)[:, None].to(tl.int64) * output_row + head[:, None] * output_head + d[None, :]
    tl.store(output + o_place, result.to(output.dtype.element_ty), mask=is_row_dim)
