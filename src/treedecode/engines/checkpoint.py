"""Reading single tensors of a checkpoint without holding them in memory."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

# Rows compared to make sure that a tensor of the checkpoint is the one in memory.
_NUM_CHECKED = 64


def mapped_like(folder: Path, suffix: str, loaded: Tensor) -> Tensor | None:
    """The tensor of a safetensors checkpoint that equals ``loaded``, as a fresh file mapping.

    Only rows that are read become resident, which for an embedding table are few.

    Args:
        folder: Holds ``*.safetensors`` files.
        suffix: End of the tensor's name.
        loaded: Float32 ``[rows, columns]`` on CPU.

    Returns:
        The mapped tensor, or None where the checkpoint holds no such tensor (other format, dtype or values).
    """
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as checkpoint:
                names = [name for name in checkpoint.keys() if name.endswith(suffix)]  # noqa: SIM118
                candidates = [checkpoint.get_tensor(name) for name in names]
        except (OSError, SafetensorError):
            continue
        for tensor in candidates:
            if tensor.shape == loaded.shape and tensor.dtype == loaded.dtype:
                rows = torch.linspace(0, len(loaded) - 1, min(_NUM_CHECKED, len(loaded))).long()
                if torch.equal(tensor[rows], loaded[rows]):
                    return tensor
    return None
