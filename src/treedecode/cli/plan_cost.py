"""What a step costs, as the options of ``treedecode plan`` say it: a roofline or a measurement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from treedecode.cost_file import read_cost
from treedecode.roofline import Roofline
from treedecode.surface import CostSurface
from treedecode.sweep import StepCost

DEFAULT_HARDWARE = "h100"
DEFAULT_PARAMS = 8e9
DEFAULT_WEIGHT_BYTES = 2.0


@dataclass(frozen=True)
class PlanCost:
    """Where the milliseconds come from.

    Attributes:
        step_ms: By batch and rows of the step.
        description: For people, one line.
        source: Where its figures come from.
        roofline: None for a measurement, which has no ridge.
        details: For machines.
    """

    step_ms: StepCost
    description: str
    source: str
    roofline: Roofline | None
    details: dict[str, Any]


@dataclass(frozen=True)
class CostOptions:
    """The options as given; None where one is not."""

    hardware: str | None
    tflops: float | None
    tb_per_s: float | None
    params: float | None
    model_bytes: float | None
    weight_bytes: float | None
    context: int
    kv_bytes_per_token: float | None
    cost: Path | None

    def resolve(self) -> PlanCost:
        """The cost that they mean together.

        Raises:
            typer.TyperException: They contradict each other, or the file cannot be used.
        """
        if self.context < 0:
            raise typer.TyperException(f"--context must be at least 0 tokens, got {self.context}")
        return self._measured(self.cost) if self.cost else self._paper()

    def _measured(self, path: Path) -> PlanCost:
        others = {
            "--hardware": self.hardware,
            "--tflops": self.tflops,
            "--tb-per-s": self.tb_per_s,
            "--params": self.params,
            "--model-bytes": self.model_bytes,
            "--weight-bytes": self.weight_bytes,
            "--kv-bytes-per-token": self.kv_bytes_per_token,
        }
        if given := [flag for flag, value in others.items() if value is not None]:
            raise typer.TyperException(
                f"--cost is measured and needs no roofline: leave {', '.join(given)} out, or --cost"
            )
        try:
            saved = read_cost(path)
        except OSError as error:
            raise typer.TyperException(f"--cost: cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise typer.TyperException(f"--cost: {error}") from error
        kept, on = saved.cost, saved.conditions
        measured_on = "" if on is None else f"; {on.model} in {on.dtype} on {on.gpu or on.cpu}"
        curve = kept.at(self.context)
        if isinstance(kept, CostSurface) and not kept.prefix_lens[0] <= self.context <= kept.prefix_lens[-1]:
            first, last = kept.prefix_lens[0], kept.prefix_lens[-1]
            span = f"{last}" if first == last else f"{first} to {last}"
            how = "taken as they are" if first == last or self.context < first else "extrapolated"
            measured_on += f"; times at {span} tokens of context, {how} for {self.context}"
        return PlanCost(
            step_ms=lambda _batch, rows: curve.ms(rows),
            description=f"measured up to {curve.rows[-1]} rows, extrapolated beyond{measured_on}",
            source=str(path),
            roofline=None,
            details={"cost_file": str(path), "context": self.context},
        )

    def _paper(self) -> PlanCost:
        weight_bytes = DEFAULT_WEIGHT_BYTES if self.weight_bytes is None else self.weight_bytes
        roofline = self._roofline(weight_bytes)
        if self.params is not None and self.model_bytes is not None:
            raise typer.TyperException("--params and --model-bytes both say how large the model is: give one")
        if self.model_bytes is not None:
            num_params = self.model_bytes / weight_bytes
        else:
            num_params = DEFAULT_PARAMS if self.params is None else self.params
        if (self.kv_bytes_per_token is None) != (self.context == 0):
            raise typer.TyperException(
                "--context and --kv-bytes-per-token count only together: give both or none"
            )
        bytes_per_request = self.context * (self.kv_bytes_per_token or 0.0)
        description = (
            f"{roofline.name}: {roofline.flops_per_s / 1e12:g} TFLOP/s, {roofline.bytes_per_s / 1e12:g} TB/s; "
            f"{_in_words(num_params)} parameters of {weight_bytes:g} bytes"
        )
        if bytes_per_request:
            description += f"; {bytes_per_request / 1e6:,.0f} MB of K/V cache per request"
        return PlanCost(
            step_ms=partial(_paper_ms, roofline, num_params, bytes_per_request),
            description=description,
            source=roofline.source,
            roofline=roofline,
            details={
                "hardware": roofline.name,
                "source": roofline.source,
                "flops_per_s": roofline.flops_per_s,
                "bytes_per_s": roofline.bytes_per_s,
                "weight_bytes": weight_bytes,
                "num_params": num_params,
                "context": self.context,
                "kv_bytes_per_token": self.kv_bytes_per_token,
            },
        )

    def _roofline(self, weight_bytes: float) -> Roofline:
        if self.tflops is None and self.tb_per_s is None:
            try:
                return Roofline.of(DEFAULT_HARDWARE if self.hardware is None else self.hardware, weight_bytes)
            except ValueError as error:
                message = str(error).replace("FLOP/s and bytes/s", "--tflops and --tb-per-s")
                raise typer.TyperException(f"--hardware: {message}") from error
        if self.hardware is not None:
            raise typer.TyperException("--hardware names what --tflops and --tb-per-s describe: give either")
        if self.tflops is None or self.tb_per_s is None:
            missing = "--tflops" if self.tflops is None else "--tb-per-s"
            raise typer.TyperException(f"a roofline needs both --tflops and --tb-per-s: {missing} is missing")
        return Roofline(self.tflops * 1e12, self.tb_per_s * 1e12, weight_bytes)


def _paper_ms(
    roofline: Roofline, num_params: float, bytes_per_request: float, batch: int, rows: int
) -> float:
    return roofline.step_ms(rows, num_params, batch * bytes_per_request)


def _in_words(number: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.4g}{letter}"
    return f"{number:.4g}"
