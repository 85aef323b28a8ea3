"""The Triton kernels, interpreted on the CPU, against dense attention; and compiled for two GPUs that are not here."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is installed on Linux x86_64 alone")

import triton.language as tl

from treedecode.attention.paged import PlacedTree, pack_trees
from treedecode.attention.paged_triton import choose_splits, tree_attention
from treedecode.shape import TreeShape
from treedecode.testing.paged import GAP, SCALE, UNTOUCHED, paged_batch

RAGGED = [
    TreeShape.from_parents([-1, 0, 0, 1, 1, 2, 3]),
    TreeShape.chain(3),
    TreeShape.star(4),
    TreeShape.chain(0),
]
PREFIXES = [0, 107, 64, 5]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def attended(batch, window=None, soft_cap=0.0, num_splits=None, placed=None):
    output = torch.full_like(batch.query, UNTOUCHED)
    trees = pack_trees(placed or batch.placed)
    tree_attention(
        batch.query,
        batch.key,
        batch.value,
        *batch.caches,
        batch.table,
        trees,
        output,
        SCALE,
        window,
        soft_cap,
        num_splits,
    )
    return output.double()


def gap(batch, window=None, soft_cap=0.0, num_splits=None, placed=None):
    """The largest error, rows of no tree included."""
    got = attended(batch, window, soft_cap, num_splits, placed)
    return float((got - batch.expected(window, soft_cap)).abs().max())


@pytest.fixture(autouse=True)
def products_of_bfloat16(monkeypatch):
    """Triton 3.7's and 3.9's interpreter multiplies the bits of bfloat16 as integers. Remove when it does not."""
    from triton.runtime.interpreter import InterpreterBuilder

    stock = InterpreterBuilder.create_dot

    def create_dot(self, a, b, *others):
        a, b = (
            part if part.dtype.scalar != tl.bfloat16 else self.cast_impl(part, tl.float32) for part in (a, b)
        )
        return stock(self, a, b, *others)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("window", [None, 4, 70])
@pytest.mark.parametrize("block_size", [16, 32])
def test_ragged_trees(block_size, window, num_splits):
    assert gap(paged_batch(RAGGED, PREFIXES, block_size=block_size), window, 0.0, num_splits) < 2e-5


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (6, 1), (14, 2), (32, 1)])
def test_head_ratios(heads):
    assert gap(paged_batch(RAGGED, PREFIXES, heads=heads), window=9) < 2e-5


@pytest.mark.parametrize("head_size", [8, 80, 256])
def test_head_sizes(head_size):
    assert gap(paged_batch(RAGGED[:2], [3, 40], head_size=head_size), num_splits=2) < 2e-4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_splits", [1, 2])
def test_types(dtype, num_splits):
    assert gap(paged_batch(RAGGED, PREFIXES, dtype=dtype), 30, 0.0, num_splits) < TOLERANCE[dtype]


@pytest.mark.parametrize("soft_cap", [0.5, 5.0, 50.0])
def test_soft_caps(soft_cap):
    batch = paged_batch(RAGGED, PREFIXES)
    batch.query *= 20  # scores far beyond the cap
    assert gap(batch, None, soft_cap) < 5e-5


@pytest.mark.parametrize("num_nodes", [2, 17, 64, 129])
def test_budgets(num_nodes):
    chooser = np.random.default_rng(num_nodes)
    parents = [-1, *(int(chooser.integers(max(0, node - 9), node)) for node in range(1, num_nodes))]
    assert gap(paged_batch([TreeShape.from_parents(parents)], [50]), window=6) < 2e-5


@pytest.mark.parametrize("num_splits", [1, 5])
def test_prefixes(num_splits):
    prefix_lens = [0, 1, 15, 16, 17, 31, 32, 33, 100]
    assert gap(paged_batch([RAGGED[0]] * len(prefix_lens), prefix_lens), None, 0.0, num_splits) < 2e-5


def test_a_chain_is_causal_attention():
    batch = paged_batch([TreeShape.chain(20)], [33])
    (keys, values), rows = batch.prefixes[0], slice(GAP, GAP + 21)
    keys, values = torch.cat([keys, batch.key[rows]]), torch.cat([values, batch.value[rows]])
    causal = torch.nn.functional.scaled_dot_product_attention(
        batch.query[rows].transpose(0, 1),
        keys.transpose(0, 1),
        values.transpose(0, 1),
        attn_mask=torch.ones(21, 54).tril(33).bool(),
        scale=SCALE,
        enable_gqa=True,
    )
    assert float((attended(batch)[rows] - causal.transpose(0, 1)).abs().max()) < 2e-5


def as_chains(batch):
    """What a causal mask among the nodes would be."""
    return [
        PlacedTree(tree.request, tree.first_row, tree.prefix_len, TreeShape.chain(tree.shape.num_drafted))
        for tree in batch.placed
    ]


def without_prefix(batch):
    return [PlacedTree(tree.request, tree.first_row, 0, tree.shape) for tree in batch.placed]


def of_the_next_request(batch):
    last = len(batch.placed) - 1
    return [
        PlacedTree(last - tree.request, tree.first_row, min(tree.prefix_len, 5), tree.shape)
        for tree in batch.placed
    ]


@pytest.mark.parametrize("fault", [as_chains, without_prefix, of_the_next_request])
def test_planted_faults_are_seen(fault):
    batch = paged_batch(RAGGED, PREFIXES)
    batch.cache.nan_to_num_(0.5)
    assert gap(batch) < 2e-5
    assert gap(batch, placed=fault(batch)) > 1e-2


def test_a_window_by_slot_is_seen():
    """Depths that count nodes are positions by slot: the mask among the nodes stays that of the tree."""
    batch = paged_batch([TreeShape.star(6)], [40])
    packed = pack_trees(batch.placed)
    output = torch.full_like(batch.query, UNTOUCHED)
    packed.depths.copy_(torch.arange(7))
    tree_attention(batch.query, batch.key, batch.value, *batch.caches, batch.table, packed, output, SCALE, 8)
    assert float((output.double() - batch.expected(8)).abs().max()) > 1e-2
    assert gap(batch, 8) < 2e-5


@pytest.mark.parametrize(
    ("programs", "prefix_len", "processors", "splits"),
    [(1, 8192, 132, 32), (1, 100_000, 132, 132), (40, 8192, 132, 3), (200, 8192, 132, 1), (1, 100, 132, 1)],
)
def test_prefixes_are_split_while_processors_are_idle(programs, prefix_len, processors, splits):
    assert choose_splits(programs, prefix_len, processors) == splits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query": torch.zeros(5, 4, 32, dtype=torch.float64)}, "must have one type of"),
        ({"key": torch.zeros(5, 2, 32, dtype=torch.float16)}, "must have one type of"),
        ({"query": torch.zeros(5, 3, 32)}, "3 query heads must be a multiple of 2 key heads"),
        ({"key_cache": torch.zeros(1, 16, 1, 32)}, "caches must be"),
        ({"output": torch.zeros(4, 4, 32)}, "output must have the shape of the queries"),
        ({"window": 0}, "window must be None or at least 1, got 0"),
        ({"num_splits": 0}, "num_splits must be None or at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    cache = torch.zeros(1, 16, 2, 32)
    arguments = {
        "query": torch.zeros(5, 4, 32),
        "key": torch.zeros(5, 2, 32),
        "value": torch.zeros(5, 2, 32),
        "key_cache": cache,
        "value_cache": cache,
        "block_table": torch.zeros(1, 1, dtype=torch.int32),
        "trees": pack_trees([PlacedTree(0, 0, 0, TreeShape.chain(4))]),
        "output": torch.zeros(5, 4, 32),
        "scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        tree_attention(**{**arguments, **change})


def test_the_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.attention.compile_kernels"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    kernels = ["attend", "merge"]
    assert [line[:2] for line in lines] == [
        [kernel, target] for target in ("sm_80", "sm_90") for kernel in kernels
    ]
    # what GPUs of compute capability 8.6 and 8.9 have, the least of those since A100
    assert max(int(line[2]) for line in lines) <= 99 * 1024
