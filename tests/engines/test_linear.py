from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from treedecode.engines import linear as linear_module
from treedecode.engines.linear import Linear, can_pack, pack_module_linears, probe_prepack


@pytest.mark.parametrize("rows", [1, 2, 8, 17, 32])
def test_packed_linears_equal_plain_ones(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(size, 40, generator=generator) for size in (24, 8, 8)]
    biases = [torch.randn(24, generator=generator), None, torch.randn(8, generator=generator)]
    x = torch.randn(rows, 40, generator=generator)
    packed, plain = Linear(weights, biases, pack=True), Linear(weights, biases, pack=False)
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
    assert not can_pack(torch.zeros(4, 4, dtype=dtype))
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
    assert pack_module_linears(module) == 3
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
    assert pack_module_linears(module) == 2
    for layer, before in zip(module, expected, strict=True):
        torch.testing.assert_close(layer(x), before)


def test_wider_modules_stay_as_they_are() -> None:
    assert pack_module_linears(nn.Sequential(nn.Linear(4, 4).double())) == 0


def test_without_onednn_linears_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "probe_prepack", lambda: "no oneDNN here")
    assert not Linear([torch.zeros(4, 4)], [None], pack=True).packed


def test_the_probe_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe_prepack() == ""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert "has no oneDNN" in probe_prepack.__wrapped__()
