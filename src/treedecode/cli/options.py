"""Options that several commands have: which model, where and how it runs, and the size of trees."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub id.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, mps, ...; the fastest that is there if not given.")
]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16, ...; that of the checkpoint if not given.")
]


def parse_budget(text: str) -> int | Literal["auto"]:
    """A number of drafted nodes, or "auto"."""
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise typer.TyperException(
            f'--budget must be a number of drafted nodes or "auto", got {text!r}'
        ) from None
