"""Options that several commands have: which model, and where and how it runs."""

from __future__ import annotations

from typing import Annotated

import typer

Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub id.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, mps, ...; the fastest that is there if not given.")
]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16, ...; that of the checkpoint if not given.")
]
