"""What a verification found, for people and for machines."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import treedecode as td
from treedecode.verify.client import Endpoint
from treedecode.verify.results import Report, Status

_WIDE = 400
_STYLES = {
    Status.EXACT: "green",
    Status.NEAR_TIE: "yellow",
    Status.DIFFERENT: "bold red",
    Status.SKIPPED: "dim",
}


def subject_of(
    trees: Endpoint | None, plain: Endpoint | None, model: td.LoadedModel | None
) -> dict[str, Any]:
    """What is verified, and against what."""
    subject: dict[str, Any] = {}
    for name, server in (("endpoint", trees), ("plain_endpoint", plain)):
        subject[name] = server and {"url": server.url, "model": server.model}
    subject["model"] = model and {
        "path": str(model.path),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "implementation": model.implementation,
        "linear": model.linear,
        "head": model.head,
    }
    return subject


def _heading(subject: dict[str, Any]) -> str:
    trees, plain, model = subject["endpoint"], subject["plain_endpoint"], subject["model"]
    local = model and f"{model['path']}, {model['dtype']} on {model['device']}, {model['implementation']}"
    if trees is None:
        return f"trees against plain decoding: {local}"
    other = f"{plain['url']} ({plain['model']})" if plain else local
    return f"trees of {trees['url']} ({trees['model']}) against {other}"


def print_report(report: Report, subject: dict[str, Any]) -> None:
    """One line per check and prompt, and the verdict."""
    # a file or a pipe has no width: every check on one line
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDE)
    console.print(_heading(subject), soft_wrap=True)
    console.print()
    table = Table(box=None, pad_edge=False)
    for name in ("prompt", "check", "result"):
        table.add_column(name, no_wrap=True)
    table.add_column("", overflow="fold")
    last = None
    for finding in report.findings:
        name = "" if finding.prompt == last else finding.prompt
        last = finding.prompt
        table.add_row(name, finding.check, Text(finding.status, _STYLES[finding.status]), finding.detail)
    with console.capture() as captured:
        console.print(table)
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n")
    console.print()
    console.print(report.verdict, style="bold", soft_wrap=True)


def report_json(report: Report, subject: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """All of it as plain data: what was verified, with what, and the findings."""
    return {
        "treedecode_version": td.__version__,
        **subject,
        "settings": settings,
        "exact": report.exact,
        "complete": report.complete,
        "num_checked": report.num_checked,
        "num_differences": len(report.differences),
        "num_near_ties": report.num_near_ties,
        "verdict": report.verdict,
        "findings": [asdict(finding) for finding in report.findings],
    }
