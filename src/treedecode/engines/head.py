"""The vocabulary head: full logits, and exact top candidates without computing them all in full precision.

The head is the largest weight of a small model and is read once per step. For greedy decoding only the best few
logits matter, so an int8 copy (a quarter of the bytes, and fast matrix units where the CPU has them) proposes
candidates, and the float32 rows of those candidates give the exact values.

With ``c`` the largest magnitude of each column of the weight, ``y = x c`` and ``v = w / c`` give the same product
``w . x``, and no column is much larger than another, which is what makes eight bits enough. ``v'`` is ``v`` rounded to
int8 steps by row; ``y'`` is ``y`` rounded twice, to int8 steps and what remains to 254 times finer ones, so that both
halves are rows of one int8 product. The candidates provably contain the float32 arg max:

    |v'.y' - v.y|  <=  |y| |v - v'|  +  |y - y'| |v'|      (Cauchy-Schwarz)

plus the rounding of float32. Where some id that was not scored could, by this bound, exceed the best score, more are
scored, and at last all of them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from treedecode.engines.candidates import order_candidates, top_candidates
from treedecode.engines.linear import thin_product

# Candidates per row that are scored in float32: on text the bound leaves about ten, on noise some hundreds.
_POOLS = (32, 1024)
_FLOAT32_ROUNDING = 2.0**-23
_LEVELS = 127
_FINER = 2 * _LEVELS
# Rows are handed over as unsigned bytes about this zero point: for signed ones oneDNN has a fast kernel with AMX
# alone, and takes a thousand times as long without.
_ZERO_POINT = 128
# Vocabulary rows per int8 product: its output is read again while it is in the processor's cache.
_PIECE = 65536


class Head:
    """The plain head.

    Args:
        product: From hidden rows to logits, before the soft cap.
        softcap: ``softcap * tanh(logits / softcap)`` is applied, or None.
    """

    kind = "float32"

    def __init__(self, product: Callable[[Tensor], Tensor], softcap: float | None) -> None:
        self._product, self._softcap = product, softcap

    def logits(self, hidden: Tensor) -> Tensor:
        """All logits ``[N, vocab]`` of ``[N, hidden]``."""
        logits = self._product(hidden)
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def top(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Best ``count`` logits and ids of each row, as ``top_candidates`` gives them."""
        return top_candidates(self.logits(hidden), count)


class Screen(NamedTuple):
    """What int8 can say about the logits of some rows: logit = unit * (rough +- error).

    Attributes:
        rough: float32 ``[N, vocab]``.
        unit: float32 ``[N]``.
        error: float32 ``[N]``, at least 0; NaN where a hidden row has one.
    """

    rough: Tensor
    unit: Tensor
    error: Tensor


class ScreenedHead(Head):
    """A head whose :meth:`top` screens in int8 and scores in float32.

    ``top`` gives the exact greedy choice and exact values; beyond the first place an id can be missing only where more
    than 32 logits lie within the int8 error of each other.

    Attributes:
        num_fallbacks: Rows that needed full logits so far.

    Full logits (sampling, penalties, traces) come from the weight as it is: a packed copy would be most of the model's
    size again.

    Args:
        weight: Float32 ``[vocab, hidden]``, kept; for tied weights the embedding table.
    """

    kind = "int8-screened"

    def __init__(self, weight: Tensor) -> None:
        super().__init__(functools.partial(thin_product, weight=weight), None)
        self._weight = weight
        largest = weight.abs().amax(0)
        self._column_scale = torch.where(largest > 0, largest, 1.0)
        pieces = [Int8Weight(part / self._column_scale) for part in weight.split(_PIECE)]
        self._pieces = pieces
        self._weight_error = max(piece.error for piece in pieces)
        self._weight_norm = max(piece.norm for piece in pieces)
        self._kept = threading.local()  # a buffer per thread: requests may run side by side
        self.num_fallbacks = 0

    def top(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if count > _POOLS[0]:
            return super().top(hidden, count)
        screen = self.screen(hidden)
        values, ids, sure = self._score(hidden, screen, _POOLS[0], count)
        for pool in (*_POOLS[1:], None):
            if bool(sure.all()):
                break
            again = (~sure).nonzero()[:, 0]
            rows = hidden[again]
            if pool is None or pool >= len(self._weight):
                self.num_fallbacks += len(again)
                values[again], ids[again] = super().top(rows, count)
                break
            part = Screen(*(of_rows[again] for of_rows in screen))
            values[again], ids[again], sure[again] = self._score(rows, part, pool, count)
        return values, ids

    def screen(self, hidden: Tensor) -> Screen:
        """Rough logits of ``[N, hidden]``; they are overwritten by the thread's next call."""
        num_rows = len(hidden)
        kept: Tensor | None = getattr(self._kept, "rough", None)
        if (
            kept is None or len(kept) < num_rows
        ):  # kept: fresh pages for every step would cost more than the product
            kept = self._kept.rough = hidden.new_empty(num_rows, len(self._weight))
        rough = kept[:num_rows]
        scaled = hidden * self._column_scale
        step = (scaled.abs().amax(1, keepdim=True) / _LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
        steps = scaled / step
        coarse = steps.round()
        fine = ((steps - coarse) * _FINER).round()
        rows = as_bytes(torch.cat([coarse, fine]))
        for piece, out in zip(self._pieces, rough.split(_PIECE, dim=1), strict=True):
            product = piece.product(rows)
            torch.add(product[:num_rows], product[num_rows:], alpha=1 / _FINER, out=out)
        norm = torch.linalg.vector_norm(steps, dim=1)
        rounded_off = torch.linalg.vector_norm(steps - coarse - fine / _FINER, dim=1)
        error = norm * self._weight_error + rounded_off * self._weight_norm
        # of this product and of the float32 values that it is compared with
        error += 2 * hidden.shape[1] * _FLOAT32_ROUNDING * norm * self._weight_norm
        return Screen(rough, step[:, 0], error)

    def _score(self, hidden: Tensor, screen: Screen, pool: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores the ``pool`` roughly best ids of each row in float32: values, ids, and whether the first is sure."""
        rough_values, ids = top_candidates(screen.rough, pool)
        ids = ids.sort(-1).values
        rows = self._weight.index_select(0, ids.flatten()).view(*ids.shape, -1)
        values = torch.bmm(rows, hidden.unsqueeze(-1)).squeeze(-1)
        values, ids = order_candidates(values, ids)
        most_outside = (rough_values[:, -1] + screen.error) * screen.unit
        return values[:, :count], ids[:, :count], most_outside < values[:, 0]


class Int8Weight:
    """Some rows of a weight in int8, packed by oneDNN.

    Attributes:
        error: Largest norm of what rounding took from a row.
        norm: Largest norm of a rounded row.
    """

    def __init__(self, weight: Tensor) -> None:
        scale = weight.abs().amax(1) / _LEVELS
        self._scale = torch.where(scale > 0, scale, 1.0)
        rounded = (weight / self._scale[:, None]).round()
        restored = rounded * self._scale[:, None]
        self.error = torch.linalg.vector_norm(weight - restored, dim=1).max().item()
        self.norm = torch.linalg.vector_norm(restored, dim=1).max().item()
        self._zero_points = torch.zeros(len(weight), dtype=torch.int32)
        self._packed = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), [1, weight.shape[1]])

    def product(self, rows: Tensor) -> Tensor:
        """Float32 ``[N, out]`` of ``[N, in]`` rows made by :func:`as_bytes`."""
        return torch.ops.onednn.qlinear_pointwise(
            rows,
            1.0,
            _ZERO_POINT,
            self._packed,
            self._scale,
            self._zero_points,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )


def as_bytes(rows: Tensor) -> Tensor:
    """Whole numbers from -127 to 127 in float32, as :class:`Int8Weight` multiplies them."""
    return (rows + _ZERO_POINT).to(torch.uint8)


def probe_int8() -> str:
    """Why the int8 product of oneDNN cannot be used here; empty when it can.

    Processors without 8-bit dot products add pairs in 16 bits, which can overflow: the largest values are tried.
    """
    rows = torch.full((3, 64), float(_LEVELS))
    rows[1] = -_LEVELS
    rows[2, ::2] = -_LEVELS
    weight = torch.full((32, 64), float(_LEVELS))
    weight[1::2] = -_LEVELS
    try:
        got = Int8Weight(weight).product(as_bytes(rows))
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        return f"the oneDNN int8 operators do not run: {str(error).splitlines()[0]}"
    worst = (got - rows @ weight.T).abs().max().item()
    return "" if worst == 0 else f"the oneDNN int8 product is off by {worst:g} on its largest values"


def choose_head(plain: Head, weight: Tensor, num_rows: int = 8) -> Head:
    """A screened head where the int8 product is exact and not slow (some builds have no kernel for it), else the plain.

    Args:
        plain: Head without soft cap over the same weight.
        weight: As for :class:`ScreenedHead`.
        num_rows: Rows of a typical step.
    """
    if len(weight) <= _POOLS[-1] or probe_int8():
        return plain
    screened = ScreenedHead(weight)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_rows, weight.shape[1], generator=generator, dtype=weight.dtype)
    times: dict[str, float] = {}
    for _ in range(3):  # the best of three: the first runs create kernels
        for head in (plain, screened):
            began = time.perf_counter()
            if head is screened:
                top_candidates(screened.screen(hidden).rough, _POOLS[0])
            else:
                head.top(hidden, 1)
            times[head.kind] = min(times.get(head.kind, float("inf")), time.perf_counter() - began)
    # it reads a quarter of the bytes: only noise or a missing kernel makes it slower, and it also saves a packed copy
    return screened if times[screened.kind] < 1.5 * times[plain.kind] else plain
