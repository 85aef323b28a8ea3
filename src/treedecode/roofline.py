"""What a target forward pass costs on paper: ``Roofline``, from a GPU's peak rates."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from treedecode import topology
from treedecode.cost import CostCurve


@dataclass(frozen=True)
class Roofline:
    """Peak rates of one GPU and the size of the weights it reads (roofline model, doi:10.1145/1498765.1498785).

    A decode step reads every weight once, whatever the number of rows, and spends 2 FLOPs per parameter and row. It
    takes the longer of the two times, so rows cost nothing until computing them takes as long as reading the weights:
    the ridge. Attention's FLOPs, kernel launches and all else that keeps a GPU below its peaks are left out; a measured
    ``CostCurve`` is the better guide where there is one.

    Args:
        flops_per_s: dense peak of the arithmetic in use, FLOP/s.
        bytes_per_s: memory bandwidth, bytes/s.
        weight_bytes: bytes per parameter as stored: 2 for bfloat16, 0.5 for 4-bit weights.
        name: what it is, for people.
        source: where the rates come from.

    Raises:
        TypeError: a rate is not a number.
        ValueError: a rate or the ridge is not positive and finite.
    """

    flops_per_s: float
    bytes_per_s: float
    weight_bytes: float = 2.0
    name: str = "given rates"
    source: str = "given by the user"

    def __post_init__(self) -> None:
        for field in ("flops_per_s", "bytes_per_s", "weight_bytes"):
            object.__setattr__(self, field, _amount(getattr(self, field), field))
        _amount(self.ridge_tokens, "the ridge, flops_per_s * weight_bytes / (2 * bytes_per_s),")

    @classmethod
    def of(cls, name: str, weight_bytes: float = 2.0) -> Roofline:
        """The bfloat16 roofline of a GPU by name; case, spaces and punctuation do not matter.

        Raises:
            TypeError: the name is no text.
            ValueError: the GPU is not known; the message lists those that are.
        """
        if not isinstance(name, str):
            raise TypeError(f"hardware must be one of {', '.join(cls.known())}, got {name!r}")
        wanted = re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia").removeprefix("amd")
        wanted = wanted.removeprefix("geforce").removeprefix("instinct")
        for gpu in _GPUS:
            if wanted in (gpu.key, *gpu.other_names):
                return cls(gpu.tflops * 1e12, gpu.tb_per_s * 1e12, weight_bytes, gpu.name, gpu.source)
        raise ValueError(
            f"unknown hardware {name!r}: expected one of {', '.join(cls.known())}, or give FLOP/s and bytes/s"
        )

    @classmethod
    def known(cls) -> tuple[str, ...]:
        """The names that ``of`` takes, one per GPU."""
        return tuple(gpu.key for gpu in _GPUS)

    @property
    def ridge_tokens(self) -> float:
        """Rows of one forward pass at which computing them takes as long as reading the weights."""
        return self.flops_per_s * self.weight_bytes / (2.0 * self.bytes_per_s)

    def break_even_batch(self, num_nodes: int) -> int:
        """The largest batch at which trees of ``num_nodes`` nodes (root included) stay at or below the ridge.

        0 where one tree alone is past it. Trees can still pay beyond, but their rows are no longer free.
        """
        nodes = topology.count(num_nodes, "num_nodes", minimum=1)
        return math.floor(self.ridge_tokens / nodes * (1.0 + 1e-12))  # a ridge of exactly 30 holds 3 x 10

    def verified_tokens(self, batch: int, num_nodes: int) -> int:
        """Rows of a forward pass: ``batch`` trees of ``num_nodes`` nodes (root included) each."""
        return topology.count(batch, "batch", minimum=1) * topology.count(num_nodes, "num_nodes", minimum=1)

    def past_ridge(self, batch: int, num_nodes: int) -> float:
        """Rows of a forward pass as a multiple of the ridge: rows are free up to 1, and paid for in full above."""
        return self.verified_tokens(batch, num_nodes) / self.ridge_tokens

    def step_ms(self, num_rows: int, num_params: float, cache_bytes: float = 0.0) -> float:
        """Milliseconds of one forward pass.

        Args:
            num_rows: rows of all requests together, roots included.
            num_params: parameters of the target.
            cache_bytes: bytes of K/V cache that the pass reads: batch x context x bytes per token.

        Raises:
            TypeError, ValueError: a count below 1, or an amount or the time that is not positive and finite.
        """
        rows = topology.count(num_rows, "num_rows", minimum=1)
        params = _amount(num_params, "num_params")
        cached = _amount(cache_bytes, "cache_bytes") if cache_bytes else 0.0
        memory_s = (params * self.weight_bytes + cached) / self.bytes_per_s
        return _amount(1e3 * max(memory_s, 2.0 * params * rows / self.flops_per_s), "milliseconds of a step")

    def cost_curve(self, num_params: float, cache_bytes: float = 0.0) -> CostCurve:
        """``step_ms`` as a curve, equal to it at every number of rows; arguments as there."""
        flat_ms = self.step_ms(1, num_params, cache_bytes)
        last_flat = max(1, math.floor(flat_ms * 1e-3 * self.flops_per_s / (2.0 * num_params)))
        rows = sorted({1, last_flat, last_flat + 1, 2 * last_flat + 2})
        return CostCurve(rows, [self.step_ms(count, num_params, cache_bytes) for count in rows])


@dataclass(frozen=True)
class _Gpu:
    """The vendor's figures: dense bfloat16 with float32 accumulation (half of one "with sparsity"), and bandwidth."""

    key: str
    name: str
    tflops: float
    tb_per_s: float
    source: str
    other_names: tuple[str, ...] = ()


# other_names has what PyTorch calls the same part; PCIe and NVL variants have other rates and stay unknown
_GPUS = (
    _Gpu(
        "a100",
        "NVIDIA A100 SXM 80 GB",
        312.0,
        2.039,
        "NVIDIA A100 Tensor Core GPU datasheet",
        ("a100sxm", "a100sxm4", "a100sxm80gb", "a100sxm480gb"),
    ),
    _Gpu(
        "h100",
        "NVIDIA H100 SXM",
        989.0,
        3.35,
        "NVIDIA H100 Tensor Core GPU datasheet (1,979 TFLOP/s with sparsity)",
        ("h100sxm", "h100sxm5", "h10080gbhbm3"),
    ),
    _Gpu(
        "h200",
        "NVIDIA H200 SXM",
        989.0,
        4.8,
        "NVIDIA H200 Tensor Core GPU datasheet (1,979 TFLOP/s with sparsity)",
        ("h200sxm", "h200sxm5"),
    ),
    _Gpu(
        "b200",
        "NVIDIA B200 (HGX, 1000 W)",
        2250.0,
        8.0,
        "NVIDIA Blackwell Architecture Technical Brief, HGX B200 (4.5 PFLOP/s with sparsity)",
        ("b200sxm", "hgxb200"),
    ),
    _Gpu("l40s", "NVIDIA L40S", 362.05, 0.864, "NVIDIA L40S GPU datasheet"),
    _Gpu(
        "rtx4090",
        "NVIDIA GeForce RTX 4090",
        165.2,
        1.008,
        "NVIDIA Ada GPU Architecture whitepaper, appendix A",
        ("4090",),
    ),
    _Gpu("mi300x", "AMD Instinct MI300X", 1307.4, 5.3, "AMD Instinct MI300X Accelerator data sheet"),
)


def _amount(value: object, what: str) -> float:
    if isinstance(value, (bool, str)):
        raise TypeError(f"{what} must be a number, got {value!r}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be a number, got {value!r}") from None
    if not 0.0 < number < math.inf:
        raise ValueError(f"{what} must be positive and finite, got {number:g}")
    return number
