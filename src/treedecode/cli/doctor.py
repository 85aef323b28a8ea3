"""``treedecode doctor``: what runs on this machine, and why not."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.table import Table

from treedecode import __version__
from treedecode.calibration import cpu_name, saved_for
from treedecode.cli.output import print_json, table_console
from treedecode.cli.progress import Stages
from treedecode.models.default import LICENSE_NOTE, default_model_dir, is_converted, missing_extra
from treedecode.vllm.compat import check_version, vllm_version


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What.
        works: Whether it can be used here.
        detail: What there is, or why not and what to do.
    """

    name: str
    works: bool
    detail: str


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> int:
    """Show what runs on this machine, and why not.

    Exits with 1 if no model can be run at all.
    """
    with Stages()("Looking at this machine"):
        findings = examine()
    healthy = all(finding.works for finding in findings if finding.name in ("torch", "transformers"))
    if as_json:
        versions = {"treedecode_version": __version__, "healthy": healthy}
        print_json(versions | {"findings": [asdict(finding) for finding in findings]})
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for _ in range(3):
            table.add_column(overflow="fold")  # a path that is cut is of no use
        for finding in findings:
            table.add_row("yes" if finding.works else "no", finding.name, finding.detail)
        table_console().print(table)
    return 0 if healthy else 1


def examine() -> list[Finding]:
    """Everything that decides what treedecode can do here."""
    torch = _installed("torch")
    findings = [
        Finding("treedecode", True, f"{__version__}, Python {platform.python_version()}, {sys.platform}"),
        torch,
        _installed("transformers"),
    ]
    if torch.works:
        findings += [_cpu(), _blocks(), _prepack(), _int8(), _cuda(), _mps()]
    findings += [_optional("triton"), _default_model()]
    if torch.works and findings[2].works:
        findings.append(_calibration())
    return [*findings, _vllm()]


def _installed(package: str) -> Finding:
    try:
        return Finding(package, True, importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return Finding(package, False, f"not installed: pip install {package}")


def _cpu() -> Finding:
    import torch

    features = torch.backends.cpu.get_cpu_capability()
    return Finding("CPU", True, f"{cpu_name()}, {features} kernels, {torch.get_num_threads()} threads")


def _blocks() -> Finding:
    from treedecode.engines.linear import probe_blocks

    reason = probe_blocks()
    return Finding("blocked linear layers", not reason, reason or "float32 models on the CPU use them")


def _prepack() -> Finding:
    from treedecode.engines.linear import probe_prepack

    reason = probe_prepack()
    detail = "for float32 weights on the CPU that blocks do not fit"
    return Finding("oneDNN-prepacked linear layers", not reason, reason or detail)


def _int8() -> Finding:
    from treedecode.engines.head import probe_int8

    reason = probe_int8()
    detail = "find the candidates of a large vocabulary, which float32 then decides"
    return Finding("oneDNN int8 products", not reason, reason or detail)


def _cuda() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Finding("CUDA", True, ", ".join(names))
    if torch.version.cuda is None:
        return Finding("CUDA", False, "this PyTorch is built without it")
    return Finding("CUDA", False, f"PyTorch is built for CUDA {torch.version.cuda}, but finds no GPU")


def _mps() -> Finding:
    import torch

    if torch.backends.mps.is_available():
        return Finding("MPS", True, "Apple GPU")
    return Finding("MPS", False, "needs a Mac with an Apple GPU and PyTorch built for it")


def _optional(package: str) -> Finding:
    found = _installed(package)
    return found if found.works else Finding(package, False, "not installed (nothing here needs it)")


def _default_model() -> Finding:
    if is_converted():
        return Finding("default model", True, f"{default_model_dir()}. {LICENSE_NOTE}")
    if reason := missing_extra():
        return Finding("default model", False, f"{reason}. {LICENSE_NOTE}")
    return Finding(
        "default model", True, f"installed, converted on first use into {default_model_dir()}. {LICENSE_NOTE}"
    )


def _calibration() -> Finding:
    """Of the default model; which code runs it is only known once it is loaded, the rest is compared here."""
    name = "calibration of the default model"
    if not is_converted():
        return Finding(name, False, "not converted yet; treedecode calibrate does both")
    saved = saved_for(default_model_dir())
    if not saved:
        return Finding(
            name, False, "none, so steps are measured briefly at every start; treedecode calibrate makes one"
        )
    details = []
    for path, found, reason in saved:
        if found is None:
            details.append(reason)
            continue
        state = f"stale ({reason})" if reason else "fresh"
        conditions = found.conditions
        details.append(
            f"{conditions.dtype} on {conditions.device} of {found.measured_at.astimezone():%Y-%m-%d}, {state}: {path}"
        )
    fresh = any(found is not None and not reason for _, found, reason in saved)
    return Finding(
        name, fresh, "; ".join(details) + ("" if fresh else "; treedecode calibrate measures again")
    )


def _vllm() -> Finding:
    try:
        check_version()
    except ValueError as error:
        return Finding("vllm", False, str(error))
    return Finding("vllm", True, vllm_version() or "")
