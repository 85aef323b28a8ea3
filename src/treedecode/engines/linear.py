"""Linear layers for the verify step: oneDNN weights packed once on CPU, plain ``F.linear`` elsewhere.

A verify step multiplies 2 to 64 rows with every weight. For such thin inputs PyTorch's float32 ``F.linear``
repacks the weight on every call, which costs more than the product itself; a weight packed once does not.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The row count the packed layout is tuned for. 16 is best or equal for 1 to 32 rows (benchmarks/hf_linear.py).
_PACK_ROWS = 16


@functools.cache
def probe_prepack() -> str:
    """Whether oneDNN-prepacked linears work here.

    Returns:
        An empty string when they work, else the reason in one line (shown by ``treedecode doctor``).
    """
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch build has no oneDNN (torch.backends.mkldnn.is_available() is False)"
    try:
        weight = torch.linspace(-1, 1, 48 * 32).view(48, 32)
        rows = torch.linspace(-1, 1, 3 * 32).view(3, 32)
        got = packed_product(rows, pack_rows(weight))
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        return f"the oneDNN linear operators do not run: {str(error).splitlines()[0]}"
    worst = (got - F.linear(rows, weight)).abs().max().item()
    return "" if worst < 1e-4 else f"oneDNN-prepacked linears are off by {worst:.1e} from F.linear"


def can_pack(weight: Tensor) -> bool:
    """Whether ``weight`` (``[out, in]``) is one that packing serves: float32 on CPU, with oneDNN present."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and probe_prepack() == ""


def pack_rows(weight: Tensor) -> Tensor:
    """A copy of ``weight`` (``[out, in]``) in oneDNN's own layout for thin inputs."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _PACK_ROWS)


def packed_product(rows: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """``rows @ weight.T + bias`` for a weight from :func:`pack_rows`; ``[..., out]`` in the dtype of both."""
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")


class Linear(nn.Module):
    """``x @ weight.T + bias`` for inference; several weights with the same input become one product.

    Args:
        weights: One or more ``[out_i, in]`` tensors; the result has ``sum(out_i)`` columns, in order.
        biases: A ``[out_i]`` tensor or None per weight.
        pack: Keep a copy packed for oneDNN (CPU float32) instead of the weights themselves. The caller frees the
            originals. Without it the weights are shared, not copied.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], pack: bool) -> None:
        super().__init__()
        self.out_features = sum(weight.shape[0] for weight in weights)
        self.packed = pack and all(can_pack(weight) for weight in weights)
        merged = self.packed or len(weights) == 1
        self._bias = _joined_bias(weights, biases) if merged else None
        self._weights = tuple(weights)
        self._biases = tuple(biases)
        if self.packed:
            whole = weights[0] if len(weights) == 1 else torch.cat(tuple(weights))
            self._weights = (pack_rows(whole),)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: ``[..., in]``; returns ``[..., out]`` in the dtype of ``x``."""
        if self.packed:
            return packed_product(x, self._weights[0], self._bias)
        if len(self._weights) == 1:
            return F.linear(x, self._weights[0], self._bias)
        parts = [F.linear(x, weight, bias) for weight, bias in zip(self._weights, self._biases, strict=True)]
        return torch.cat(parts, dim=-1)


def _joined_bias(weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Tensor | None:
    if all(bias is None for bias in biases):
        return None
    parts = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias.detach()
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def pack_module_linears(module: nn.Module) -> int:
    """Replaces every ``nn.Linear`` below ``module`` that can be packed, freeing its weight; returns how many.

    Tied weights are packed once: a linear that shares its weight with an embedding keeps the embedding's tensor
    alive, and two linears that share one weight and bias share the packed copy.
    """
    packed: dict[tuple[int, int | None], Linear] = {}
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or not can_pack(child.weight):
                continue
            key = (child.weight.data_ptr(), None if child.bias is None else child.bias.data_ptr())
            if key not in packed:
                packed[key] = Linear([child.weight], [child.bias], pack=True)
            setattr(parent, name, packed[key])
            count += 1
    return count
