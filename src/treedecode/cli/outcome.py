"""How commands end: exit codes, and errors of the library as bad input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

# A check failed, or the answer is no.
CHECK_FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


@contextmanager
def bad_input() -> Iterator[None]:
    """What the library refuses is bad input."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise typer.TyperException(str(error)) from error
