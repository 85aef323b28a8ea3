from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from treedecode.engines import linear as linear_module
from treedecode.engines.linear import (
    Linear,
    block_width,
    layout_of,
    main_kind,
    pack_module_linears,
    probe_blocks,
    probe_prepack,
    thin_product,
)


@pytest.mark.parametrize(("unit", "kind"), [(64, "blocked"), (8, "onednn-prepacked")])
@pytest.mark.parametrize("shape", [(1,), (2,), (8,), (17,), (32,), (2, 3)])
def test_packed_linears_equal_plain_ones(shape: tuple[int, ...], unit: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, 40, generator=generator) for size in (3 * unit, unit, unit)]
    biases = [torch.randn(3 * unit, generator=generator), None, torch.randn(unit, generator=generator)]
    x = torch.randn(*shape, 40, generator=generator)
    packed, plain = Linear(weights, biases, pack=True), Linear(weights, biases, pack=False)
    assert packed.kind == kind
    assert packed.packed
    assert not plain.packed
    torch.testing.assert_close(packed(x), plain(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pack", [True, False])
def test_several_weights_are_one_product(pack: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, 12, generator=generator) for size in (5, 3)]
    biases = [None, torch.randn(3, generator=generator)]
    x = torch.randn(4, 12, generator=generator)
    expected = torch.cat([F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], dim=1)
    joined = Linear(weights, biases, pack)
    assert joined.out_features == 8
    torch.testing.assert_close(joined(x), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_not_packed(dtype: torch.dtype) -> None:
    assert layout_of(torch.zeros(4, 4, dtype=dtype)) == "torch"
    weight = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = Linear([weight], [None], pack=True)
    assert not made.packed
    x = torch.ones(2, 6, dtype=dtype)
    assert made(x).equal(F.linear(x, weight))


def test_without_packing_weights_are_shared() -> None:
    weight = torch.randn(4, 4)
    made = Linear([weight], [None], pack=False)
    weight.zero_()
    assert made(torch.ones(1, 4)).equal(torch.zeros(1, 4))


class Tied(nn.Module):
    """An embedding, two layers that share its weight, one of its own, and one that is no plain ``nn.Linear``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.head, self.other, self.own = (nn.Linear(6, 10, bias=False) for _ in range(3))
        self.head.weight = self.other.weight = self.embedding.weight
        self.special = nn.Bilinear(6, 6, 2)


def test_tied_weights_are_packed_once() -> None:
    module = Tied()
    x = torch.randn(3, 6)
    expected = [layer(x).detach() for layer in (module.head, module.other, module.own)]
    replaced = pack_module_linears(module)
    assert len(replaced) == 3
    assert main_kind(replaced) == "onednn-prepacked"
    assert module.head is module.other is not module.own
    assert isinstance(module.special, nn.Bilinear)
    for layer, before in zip((module.head, module.other, module.own), expected, strict=True):
        torch.testing.assert_close(layer(x), before)
    assert module.embedding(torch.tensor([3])).shape == (1, 6)


def test_tied_weights_keep_their_own_biases() -> None:
    module = nn.ModuleList([nn.Linear(6, 10), nn.Linear(6, 10)])
    module[1].weight = module[0].weight
    x = torch.randn(3, 6)
    expected = [layer(x).detach() for layer in module]
    assert len(pack_module_linears(module)) == 2
    for layer, before in zip(module, expected, strict=True):
        torch.testing.assert_close(layer(x), before)


def test_wider_modules_stay_as_they_are() -> None:
    assert pack_module_linears(nn.Sequential(nn.Linear(4, 4).double())) == []
    assert main_kind([]) == "torch"


def test_layouts_that_do_not_run_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = torch.zeros(4, 4), torch.zeros(256, 4)
    assert (layout_of(small), layout_of(large)) == ("onednn-prepacked", "blocked")
    monkeypatch.setattr(linear_module, "probe_blocks", lambda: "no MKL here")
    assert layout_of(large) == "onednn-prepacked"
    monkeypatch.setattr(linear_module, "probe_prepack", lambda: "no oneDNN here")
    assert layout_of(large) == "torch"
    assert not Linear([small], [None], pack=True).packed


def test_probes_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe_prepack() == probe_blocks() == ""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert "has no oneDNN" in probe_prepack.__wrapped__()
    assert "has no MKL" in probe_blocks.__wrapped__()


@pytest.mark.parametrize(
    ("num_out", "num_threads", "width"),
    [
        (4096, 2, 256),
        (640, 2, 320),  # two blocks: with 160 columns there are four, further from the best
        (1536, 2, 256),
        (4096, 32, 128),  # as many blocks as threads
        (768, 2, 192),  # 256 would give three blocks to two threads
        (10_007, 2, 0),
        (48, 2, 0),
    ],
)
def test_block_widths(num_out: int, num_threads: int, width: int) -> None:
    assert block_width(num_out, num_threads) == width


@pytest.mark.parametrize("rows", [1, 4, 12, 13])
@pytest.mark.parametrize("columns", [96, 100])
def test_thin_products_equal_plain_ones(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(rows, 24, generator=generator), torch.randn(columns, 24, generator=generator)
    torch.testing.assert_close(thin_product(x, weight), F.linear(x, weight), rtol=1e-5, atol=1e-5)
