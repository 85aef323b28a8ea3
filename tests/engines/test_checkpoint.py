from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from treedecode.engines.checkpoint import mapped_like

NAME = "embed_tokens.weight"


def test_finds_the_tensor_that_is_equal(tmp_path: Path) -> None:
    weight = torch.randn(200, 4)
    save_file({"model.other": weight.clone(), "model.first." + NAME: weight + 1}, tmp_path / "a.safetensors")
    save_file({"model." + NAME: weight}, tmp_path / "b.safetensors")
    found = mapped_like(tmp_path, NAME, weight)
    assert found is not None and found.equal(weight)
    assert found.data_ptr() != weight.data_ptr()


def test_other_values_shapes_dtypes_and_files_are_not_taken(tmp_path: Path) -> None:
    weight = torch.randn(200, 4)
    assert mapped_like(tmp_path, NAME, weight) is None
    (tmp_path / "broken.safetensors").write_bytes(b"no header")
    save_file({"model." + NAME: weight}, tmp_path / "model.safetensors")
    assert mapped_like(tmp_path, NAME, weight + 1) is None
    assert mapped_like(tmp_path, NAME, weight[:100]) is None
    assert mapped_like(tmp_path, NAME, weight.double()) is None
    assert mapped_like(tmp_path, "lm_head.weight", weight) is None
    assert mapped_like(tmp_path, NAME, weight) is not None
