"""How commands end: exit codes, and errors of the library as bad input."""

from __future__ import annotations

import os.path
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        raise typer.TyperException(" ".join([str(error), *getattr(error, "__notes__", ())])) from error


def check_output(flag: str, output: Path | None, **inputs: Path | str | None) -> None:
    """Refuses an output file that is also one of the ``inputs``, which are given by the name of their flag."""
    for name, path in inputs.items():
        # isfile, not exists: a terminal may be read and written
        if (
            output
            and path
            and os.path.isfile(output)
            and os.path.isfile(path)
            and os.path.samefile(output, path)
        ):
            raise typer.TyperException(
                f"{flag} would overwrite the file of --{name.replace('_', '-')}: expected another than {output}"
            )
