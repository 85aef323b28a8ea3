"""How long work tells what it is doing: a function from the name of a stage to a context manager around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Progress = Callable[[str], AbstractContextManager[Any]]


def silent(_stage: str) -> AbstractContextManager[Any]:
    """The progress of callers that show none."""
    return nullcontext()


def quiet_transformers() -> None:
    """Switches off transformers' own progress bars and advice, for programs that show their own progress."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
