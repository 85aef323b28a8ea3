"""Numbers on the command line; an error repeats what was given."""

from __future__ import annotations

import typer


def integer(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"expected an integer, got {text!r}") from None


def number(text: str) -> float:
    """A number with or without a fraction."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"expected a number, got {text!r}") from None
