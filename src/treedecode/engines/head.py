"""The vocabulary head: full logits, and exact top candidates without computing them all in full precision.

The head is the largest weight of a small model and is read once per step. For greedy decoding only the best few
logits matter, so a copy in bfloat16 (half the bytes, and fast matrix units where the CPU has them) proposes
candidates, and the float32 rows of those candidates give the exact values. The candidates provably contain the float32
arg max: with ``x`` the hidden row, ``w`` a head row and ``x', w'`` their bfloat16 roundings,

    |x'.w' - x.w|  <=  |x| |w - w'|  +  |x - x'| |w'|      (Cauchy-Schwarz)

plus the rounding of the accumulation and of the bfloat16 result. Where the bound cannot rule out that the arg max was
missed, the step computes full logits instead.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from treedecode.engines.candidates import order_candidates, top_candidates
from treedecode.engines.linear import Linear, pack_rows, packed_product

# Candidates per row that are scored in float32: on text the bound leaves under ten, on noise some hundreds.
_POOLS = (32, 1024)
# Relative rounding of a bfloat16 result (half of this, doubled for safety).
_RESULT_ROUNDING = 2.0**-8
_FLOAT32_ROUNDING = 2.0**-23
_CHUNK = 16384


class Head:
    """The plain head.

    Args:
        linear: From hidden rows to logits.
        softcap: ``softcap * tanh(logits / softcap)`` is applied, or None.
    """

    kind = "float32"

    def __init__(self, linear: Linear, softcap: float | None) -> None:
        self._linear, self._softcap = linear, softcap

    def full(self) -> Linear:
        """The linear layer of full logits."""
        return self._linear

    def logits(self, hidden: Tensor) -> Tensor:
        """All logits ``[N, vocab]`` of ``[N, hidden]``."""
        logits = self.full()(hidden)
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def top(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Best ``count`` logits and ids of each row, as ``top_candidates`` gives them."""
        return top_candidates(self.logits(hidden), count)


class ScreenedHead(Head):
    """A head whose :meth:`top` screens in bfloat16 and scores in float32.

    ``top`` gives the exact greedy choice and exact values; beyond the first place an id can be missing only where more
    than 32 logits lie within the bfloat16 error of each other.

    Attributes:
        num_fallbacks: Rows that needed full logits so far.

    Full logits (sampling, penalties, traces) need a packed float32 copy; it is made when they are first asked for.

    Args:
        weight: Float32 ``[vocab, hidden]``, kept; for tied weights the embedding table.
    """

    kind = "bfloat16-screened"

    def __init__(self, weight: Tensor) -> None:
        self._softcap = None
        self._full: Linear | None = None
        self._weight = weight
        rounded = weight.bfloat16()
        self._packed = pack_rows(rounded)
        self._weight_error = max(
            torch.linalg.vector_norm(w - r.float(), dim=1).max().item()
            for w, r in zip(weight.split(_CHUNK), rounded.split(_CHUNK), strict=True)
        )
        self._weight_norm = max(
            torch.linalg.vector_norm(w.float(), dim=1).max().item() for w in rounded.split(_CHUNK)
        )
        self.num_fallbacks = 0

    def full(self) -> Linear:
        if self._full is None:
            self._full = Linear([self._weight], [None], pack=True)
        return self._full

    def top(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if count > _POOLS[0]:
            return super().top(hidden, count)
        rounded = hidden.bfloat16()
        rough = packed_product(rounded, self._packed)
        values, ids, sure = self._score(hidden, rounded, rough, _POOLS[0], count)
        for pool in (*_POOLS[1:], None):
            if bool(sure.all()):
                break
            again = (~sure).nonzero()[:, 0]
            rows = hidden[again]
            if pool is None or pool >= rough.shape[1]:
                self.num_fallbacks += len(again)
                values[again], ids[again] = super().top(rows, count)
                break
            values[again], ids[again], sure[again] = self._score(
                rows, rounded[again], rough[again], pool, count
            )
        return values, ids

    def _score(
        self, hidden: Tensor, rounded: Tensor, rough: Tensor, pool: int, count: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores the ``pool`` roughly best ids of each row in float32: values, ids, and whether the first is sure."""
        rough_values, ids = top_candidates(rough, pool)
        rough_values = rough_values.float()
        sure = rough_values[:, -1] < self._threshold(hidden, rounded.float(), rough_values[:, 0])
        ids = ids.sort(-1).values
        rows = self._weight.index_select(0, ids.flatten()).view(*ids.shape, -1)
        values = torch.bmm(rows, hidden.unsqueeze(-1)).squeeze(-1)
        values, ids = order_candidates(values, ids)
        return values[:, :count], ids[:, :count], sure

    def _threshold(self, hidden: Tensor, rounded: Tensor, best: Tensor) -> Tensor:
        """Rough logits below this cannot be the arg max; ``[N]``."""
        norm = torch.linalg.vector_norm(hidden, dim=1)
        error = (
            norm * self._weight_error + torch.linalg.vector_norm(hidden - rounded, dim=1) * self._weight_norm
        )
        error += hidden.shape[1] * _FLOAT32_ROUNDING * norm * self._weight_norm
        least = best - _RESULT_ROUNDING * best.abs() - 2 * error
        return torch.where(least >= 0, least / (1 + _RESULT_ROUNDING), least / (1 - _RESULT_ROUNDING))


def choose_head(plain: Head, weight: Tensor, num_rows: int = 8) -> Head:
    """The faster of a plain and a screened head on this machine, by timing both on ``num_rows`` rows.

    Args:
        plain: Head without soft cap over the same weight.
        weight: As for :class:`ScreenedHead`.
        num_rows: Rows of a typical step.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return plain
    screened = ScreenedHead(weight)
    hidden = torch.randn(num_rows, weight.shape[1], generator=torch.Generator().manual_seed(0))
    times: dict[str, float] = {}
    for _ in range(3):  # the best of three: the first runs create kernels
        for head in (plain, screened):
            began = time.perf_counter()
            if head is screened:
                top_candidates(packed_product(hidden.bfloat16(), screened._packed), _POOLS[0])
            else:
                head.top(hidden, 1)
            times[head.kind] = min(times.get(head.kind, float("inf")), time.perf_counter() - began)
    return screened if times[screened.kind] < times[plain.kind] else plain
