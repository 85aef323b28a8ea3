from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.tiny import FUSED, MAKERS, make_tiny, target_of, tiny
from treedecode.engines.build import build_target
from treedecode.engines.fused import FusedDecoder
from treedecode.engines.probe import check_against, check_trees, reference_logits, worst_difference
from treedecode.engines.step import StepInput
from treedecode.engines.target import UnsupportedModelError


def test_difference_is_relative() -> None:
    expected = torch.tensor([100.0, -200.0])
    assert worst_difference(expected + 2, expected) == pytest.approx(0.01)
    assert np.isnan(worst_difference(expected * torch.nan, expected))


@pytest.mark.parametrize("name", MAKERS)
def test_right_targets_pass(name: str) -> None:
    for implementation in ("fused", "transformers") if name in FUSED else ("transformers",):
        target = target_of(name, implementation)
        assert check_against(target, reference_logits(tiny(name))) == ""
        check_trees(target, name)


@pytest.mark.parametrize("name", FUSED)
def test_a_wrong_norm_is_seen(name: str) -> None:
    """A fused copy of a model whose last norm was then changed is no copy of it."""
    model = make_tiny(name)
    fused = FusedDecoder(model, consume=False)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.02)
        model.model.norm.weight.add_(0.02)
    assert "its logits differ from the model's own by" in check_against(fused, reference_logits(model))


def test_nan_is_seen() -> None:
    target, expected = target_of("llama", "fused"), reference_logits(tiny("llama"))
    assert check_against(target, torch.full_like(expected, torch.nan)) != ""


def test_a_fused_layer_that_is_wrong_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a known type whose code differs runs through transformers, or is refused where fused is a must."""
    model = make_tiny("llama")
    plain = model.model.norm.forward
    monkeypatch.setattr(model.model.norm, "forward", lambda hidden: 1.1 * plain(hidden) + 0.1)
    assert build_target(model, consume=False).implementation == "transformers"
    with pytest.raises(UnsupportedModelError, match=r"no fused implementation .* logits differ"):
        build_target(model, consume=False, implementation="fused")


@pytest.mark.parametrize("ignored", ["positions", "mask"])
@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_ignored_inputs_are_seen(ignored: str, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model with ALiBi or a causal mask of its own does: trees are refused."""
    original = StepInput.__init__

    def init(self: Any, token_ids: Any, depths: Any, tree_mask: Any, prefix_len: int, dtype: Any) -> None:
        if ignored == "positions" and depths is not None:
            depths = np.arange(len(depths))
        original(self, token_ids, depths, None if ignored == "mask" else tree_mask, prefix_len, dtype)

    monkeypatch.setattr(StepInput, "__init__", init)
    with pytest.raises(UnsupportedModelError, match="'llama' does not verify trees"):
        check_trees(target_of("llama", implementation), "llama")
