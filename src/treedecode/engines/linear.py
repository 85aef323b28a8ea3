"""Linear layers for the verify step: weights packed once on the CPU, plain ``F.linear`` elsewhere.

A verify step multiplies 2 to 64 rows with every weight. For such thin inputs PyTorch's float32 ``F.linear``
repacks the weight on every call, which costs more than the product itself. Two layouts do not need that. *Blocks*
of some 256 output columns, each read in order by one thread of a batched product (MKL), are read at the memory's own
speed for a single row and are the faster ones at every row count (benchmarks/hf_linear.py). oneDNN's own layout
serves where there is no MKL, or a weight has no fitting blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The row count that oneDNN's layout is tuned for. 16 is best or equal for 1 to 32 rows (benchmarks/hf_linear.py).
_PACK_ROWS = 16
# Columns of a block: below the least a product is too small for its thread, above the most it leaves the fast cache.
_LEAST_WIDTH, _BEST_WIDTH, _MOST_WIDTH, _LANES = 64, 256, 384, 16

# Rows and columns per block of a product with a weight that is not packed.
_THIN_ROWS, _THIN_WIDTH = range(3, 13), 32
# With more columns, joining the blocks costs what they save.
_MOST_BLOCKED = 1 << 16

_Pack = Callable[[Tensor], Tensor]
_Product = Callable[[Tensor, Tensor], Tensor]


def block_width(num_out: int, num_threads: int) -> int:
    """Output columns per block for a weight with ``num_out`` of them; 0 where no width fits.

    All threads get as many blocks, as nearly as the divisors of ``num_out`` allow; then the width nearest to 256 wins.
    """
    best, best_key = 0, (0.0, 0.0)
    for width in range(_LEAST_WIDTH, min(_MOST_WIDTH, num_out) + 1, _LANES):
        if num_out % width:
            continue
        blocks = num_out // width
        idle = -(-blocks // num_threads) * num_threads / blocks
        key = (idle, abs(width - _BEST_WIDTH))
        if not best or key < best_key:
            best, best_key = width, key
    return best


def pack_blocks(weight: Tensor) -> Tensor:
    """A copy of ``weight`` (``[out, in]``) as ``[blocks, in, width]``."""
    num_out, num_in = weight.shape
    width = block_width(num_out, torch.get_num_threads())
    return weight.detach().view(num_out // width, width, num_in).transpose(1, 2).contiguous()


def block_product(rows: Tensor, blocks: Tensor) -> Tensor:
    """``rows @ weight.T`` for ``[N, in]`` and a weight from :func:`pack_blocks`."""
    num_blocks, num_in, _ = blocks.shape
    num_rows = rows.shape[0]
    parts = torch.bmm(rows.expand(num_blocks, num_rows, num_in), blocks)
    return parts.view(1, -1) if num_rows == 1 else parts.transpose(0, 1).reshape(num_rows, -1)


def pack_onednn(weight: Tensor) -> Tensor:
    """A copy of ``weight`` (``[out, in]``) in oneDNN's own layout for thin inputs."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _PACK_ROWS)


def onednn_product(rows: Tensor, packed: Tensor) -> Tensor:
    """``rows @ weight.T`` for a weight from :func:`pack_onednn`."""
    return torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")


_LAYOUTS: dict[str, tuple[_Pack, _Product]] = {
    "blocked": (pack_blocks, block_product),
    "onednn-prepacked": (pack_onednn, onednn_product),
}


@functools.cache
def probe_blocks() -> str:
    """Why weights are not packed in blocks here; empty when they are."""
    if not torch.backends.mkl.is_available():
        return "this PyTorch build has no MKL (torch.backends.mkl.is_available() is False)"
    return _check_layout("blocked")


@functools.cache
def probe_prepack() -> str:
    """Why oneDNN-prepacked linear layers do not work here; empty when they do."""
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch build has no oneDNN (torch.backends.mkldnn.is_available() is False)"
    return _check_layout("onednn-prepacked")


def _check_layout(kind: str) -> str:
    """What is wrong with a layout on a small product, in one line; empty if nothing is."""
    pack, product = _LAYOUTS[kind]
    weight = torch.linspace(-1, 1, 128 * 32).view(128, 32)
    rows = torch.linspace(-1, 1, 3 * 32).view(3, 32)
    try:
        got = product(rows, pack(weight))
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        return f"{kind} linear layers do not run: {str(error).splitlines()[0]}"
    worst = (got - F.linear(rows, weight)).abs().max().item()
    return "" if worst < 1e-4 else f"{kind} linear layers are off by {worst:.1e} from F.linear"


def layout_of(weight: Tensor) -> str:
    """How ``weight`` (``[out, in]``) is packed here: "blocked", "onednn-prepacked", or "torch" for not at all.

    Float32 on CPU is packed. The choice depends on the machine, not on timings, so that runs give the same bits.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return "torch"
    num_out = weight.shape[0]
    fits = block_width(num_out, torch.get_num_threads()) > 0 and not probe_blocks()
    if fits and num_out <= _MOST_BLOCKED:
        return "blocked"
    if not probe_prepack():
        return "onednn-prepacked"
    return "blocked" if fits else "torch"


def thin_product(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows @ weight.T`` for ``[N, in]`` and a large ``[out, in]`` weight that stays as it is.

    For a few rows on the CPU a batched product of small blocks does not repack the weight, as ``F.linear`` does.
    """
    if rows.device.type != "cpu" or len(rows) not in _THIN_ROWS or weight.shape[0] % _THIN_WIDTH:
        return F.linear(rows, weight)
    blocks = weight.view(-1, _THIN_WIDTH, weight.shape[1]).transpose(1, 2)
    return block_product(rows, blocks)


class Linear(nn.Module):
    """``x @ weight.T + bias`` for inference; several weights with the same input become one product.

    Args:
        weights: One or more ``[out_i, in]`` tensors; the result has ``sum(out_i)`` columns, in order.
        biases: A ``[out_i]`` tensor or None per weight.
        pack: Keep a packed copy (CPU float32) instead of the weights themselves. The caller frees the originals.
            Without it the weights are shared, not copied.

    Attributes:
        kind: As :func:`layout_of` has it.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None], pack: bool) -> None:
        super().__init__()
        self.out_features = sum(weight.shape[0] for weight in weights)
        self._weights = tuple(weights)
        self._biases = tuple(biases)
        self.kind = "torch"
        if pack and all(layout_of(weight) != "torch" for weight in weights):
            whole = weights[0] if len(weights) == 1 else torch.cat(tuple(weights))
            self.kind = layout_of(whole)
            pack_weight, self._product = _LAYOUTS[self.kind]
            self._weights = (pack_weight(whole),)
        self._bias = _joined_bias(weights, biases) if self.packed or len(weights) == 1 else None

    @property
    def packed(self) -> bool:
        """Whether a packed copy is kept."""
        return self.kind != "torch"

    def forward(self, x: Tensor) -> Tensor:
        """``x``: ``[..., in]``; returns ``[..., out]`` in the dtype of ``x``."""
        if self.packed:
            rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
            out = self._product(rows, self._weights[0])
            if self._bias is not None:
                out = out + self._bias
            return out if x.dim() == 2 else out.view(*x.shape[:-1], -1)
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


def pack_module_linears(module: nn.Module) -> list[Linear]:
    """Replaces every ``nn.Linear`` below ``module`` that can be packed, freeing its weight; returns what came instead.

    Tied weights are packed once: a linear that shares its weight with an embedding keeps the embedding's tensor
    alive, and two linears that share one weight and bias share the packed copy.
    """
    packed: dict[tuple[int, int | None], Linear] = {}
    replaced: list[Linear] = []
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or layout_of(child.weight) == "torch":
                continue
            key = (child.weight.data_ptr(), None if child.bias is None else child.bias.data_ptr())
            if key not in packed:
                packed[key] = Linear([child.weight], [child.bias], pack=True)
            setattr(parent, name, packed[key])
            replaced.append(packed[key])
    return replaced


def main_kind(linears: Sequence[Linear]) -> str:
    """The layout that most of some layers have, as reported to users: "torch" if there are none."""
    kinds = [linear.kind for linear in linears]
    return max(set(kinds), key=kinds.count, default="torch")
