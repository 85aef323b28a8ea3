"""``treedecode calibrate``: measure what a step costs on this machine, once, and keep it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from treedecode.calibration import Calibration, check_writable, save
from treedecode.cli.numbers import number
from treedecode.cli.options import Device, Dtype, Revision
from treedecode.cli.outcome import INTERRUPTED, bad_input
from treedecode.cli.output import print_json, table_console
from treedecode.cli.progress import Stages
from treedecode.models import quiet_transformers

_MOST_SECONDS = 3600.0
_REFRESH_S = 0.25


def calibrate(
    model: Annotated[
        str, typer.Argument(help='"default", a folder in transformers format, or a Hub id.')
    ] = "default",
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Save to this file, for --calibration, and not where it is found by itself."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(parser=number, help="End measuring after this time; loading comes before.")
    ] = 60.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> int:
    """Measure what a step costs here, by number of rows and length of the context.

    From then on trees are sized by it, without measuring at every start, until machine, versions or model change.
    Run it while the machine has nothing else to do.
    """
    if not 0 < seconds <= _MOST_SECONDS:
        raise typer.TyperException(
            f"--seconds must be above 0 and at most {_MOST_SECONDS:g}, got {seconds:g}"
        )
    try:
        with bad_input():
            check_writable(output)
            made = _measure(model, revision, device, dtype, seconds)
            path = save(made, output)
    except KeyboardInterrupt:
        print("treedecode: interrupted, nothing was saved", file=sys.stderr)
        return INTERRUPTED
    if as_json:
        print_json({"path": str(path), **json.loads(made.to_json())})
    else:
        _show(made, path)
    return 0


def _measure(
    model: str, revision: str | None, device: str | None, dtype: str | None, seconds: float
) -> Calibration:
    stages = Stages()
    with stages("Starting"):
        from treedecode.engines.load import open_model
        from treedecode.engines.measure import calibrate as measure

        quiet_transformers()
    opened = open_model(model, device=device, dtype=dtype, revision=revision, progress=stages)
    with _bar(f"Measuring steps of {opened.path.name}", seconds) as progress:
        return measure(opened.path, opened.target, seconds, progress)


@contextmanager
def _bar(name: str, seconds: float) -> Iterator[Callable[[float], None]]:
    """A bar on standard error; where that is no terminal, one line.

    Drawn only when it is told of progress, which is between passes: a thread that draws would be timed as well.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.print(f"{name}: {seconds:g} s at most ...", markup=False)
        yield lambda _share: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task(name, total=1.0)
        drawn = 0.0

        def told(share: float) -> None:
            nonlocal drawn
            if share >= 1.0 or time.monotonic() - drawn >= _REFRESH_S:
                progress.update(task, completed=share, refresh=True)
                drawn = time.monotonic()

        yield told


def _show(made: Calibration, path: Path) -> None:
    conditions, surface = made.conditions, made.surface
    table = Table(
        box=None,
        pad_edge=False,
        title_justify="left",
        title=f"Milliseconds of a step of {conditions.model}, {conditions.dtype} on {conditions.gpu or conditions.cpu}",
    )
    table.add_column("rows", justify="right")
    for context in surface.prefix_lens:
        table.add_column(f"{context:,} tokens", justify="right")
    for place, count in enumerate(surface.rows):
        table.add_row(str(count), *(f"{line[place]:.2f}" for line in surface.ms_at))
    console = table_console()
    console.print(table)
    console.print(
        f"Medians of {made.num_repeats} or more passes each, which vary by {made.spread:.0%}; "
        "fitted so that cost never falls. Columns: length of the context."
    )
    if made.busy:
        console.print("The machine seems to have been busy: calibrate again when it is idle.")
    console.print(f"Saved to {path}")
