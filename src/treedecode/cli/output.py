"""Standard output: JSON in any encoding, and what to do when nothing can be written to it."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console

_NARROWEST = 80


def table_console() -> Console:
    """A console for tables, at least 80 columns wide: narrower terminals wrap lines better than cells do."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, _NARROWEST)
    return console


def print_json(content: Any) -> None:
    """Prints one JSON object; characters that standard output has no code for are escaped."""
    text = json.dumps(content, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        text = json.dumps(content)
    print(text)


def open_streams() -> None:
    """Opens the standard streams that the caller closed (``treedecode ... >&-``) on the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (for the process's life)


def drop_output() -> None:
    """Sends what was not written yet, and all that follows, to the null device: the interpreter flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_fault(error: OSError | UnicodeEncodeError) -> str:
    """What went wrong, in one line. Errors of files name them; the one that does not is of standard output."""
    if isinstance(error, UnicodeEncodeError):
        odd = ascii(error.object[error.start])
        return f"the output is {error.encoding} and has no {odd}: set PYTHONIOENCODING=utf-8, or use --json"
    if error.filename is not None:
        return str(error)
    drop_output()
    return f"cannot write to standard output: {error.strerror}"
