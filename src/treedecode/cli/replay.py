"""``treedecode replay``: will a tree pay here? From recordings, without running the model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import treedecode as td
from treedecode.cli.numbers import integer, number
from treedecode.cli.outcome import CHECK_FAILED, bad_input
from treedecode.cli.output import print_json
from treedecode.cli.progress import Stages

# As of treedecode generate.
MAX_BUDGET = 1024


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(
            help="Traces of `treedecode generate --trace FILE --dense`, other traces, or logs (docs/replay.md)."
        ),
    ],
    budget: Annotated[
        str,
        typer.Option(help='Drafted nodes per step, separated by commas; "auto" sizes every tree by cost.'),
    ] = "4,8,16,32,auto",
    width: Annotated[
        int, typer.Option(parser=integer, help="Candidates per depth of the leaf-sibling tree.")
    ] = 3,
    cost: Annotated[
        Path | None,
        typer.Option(
            help='JSON with the milliseconds of a forward pass by rows, {"rows": [...], "ms": [...]}, or a saved '
            "calibration; what the recordings say if not given."
        ),
    ] = None,
    draft_ms: Annotated[
        float | None,
        typer.Option(parser=number, help="Milliseconds of drafting per step; as recorded if not given."),
    ] = None,
    gate: Annotated[
        float, typer.Option(parser=number, help="Least gain over the chain, in tokens per step.")
    ] = 0.3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> int:
    """Say whether a tree would pay, from recorded generations and without running the model.

    Exits with 0 for go and 1 for no-go: a tree must emit at least --gate tokens per step more than the chain of the
    same size, and be faster than the fastest chain and than plain decoding.
    """
    # here, not above: other commands need not wait for numpy and pydantic
    from treedecode.cli.replay_text import print_replay
    from treedecode.cost_file import read_cost
    from treedecode.replay.costs import step_cost
    from treedecode.replay.data import select
    from treedecode.replay.run import replay as run_replay
    from treedecode.replay.source import read_recordings

    stages = Stages()
    with bad_input():
        budgets = _parse_budgets(budget)
        _check(width, draft_ms, gate)
        given = None if cost is None else read_cost(cost).cost
        with stages("Reading recordings"):
            selection = select(read_recordings(traces))
        step = step_cost(selection.replayed, given, draft_ms, origin=str(cost))
        found = run_replay(selection, budgets, step, width, gate, stages)
    if as_json:
        settings = {
            "treedecode_version": td.__version__,
            "files": [str(path) for path in traces],
            "width": width,
        }
        print_json(settings | asdict(found))
    else:
        print_replay(found)
    return 0 if found.verdict is not None and found.verdict.go else CHECK_FAILED


def _parse_budgets(text: str) -> list[int | str]:
    budgets: list[int | str] = []
    for part in text.split(","):
        word = part.strip()
        if word != "auto" and not (word.isdecimal() and 0 < int(word) <= MAX_BUDGET):
            raise ValueError(
                f'--budget must be numbers from 1 to {MAX_BUDGET}, or "auto", separated by commas, got {text!r}'
            )
        budgets.append(word if word == "auto" else int(word))
    return budgets


def _check(width: int, draft_ms: float | None, gate: float) -> None:
    if width < 1:
        raise ValueError(f"--width must be at least 1, got {width}")
    if draft_ms is not None and not 0.0 <= draft_ms < float("inf"):
        raise ValueError(f"--draft-ms must be at least 0, got {draft_ms}")
    if not 0.0 <= gate < float("inf"):
        raise ValueError(f"--gate must be at least 0 tokens per step, got {gate}")
