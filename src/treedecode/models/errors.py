"""What goes wrong when a model is looked for."""

from __future__ import annotations


class ModelNotFoundError(ValueError):
    """No such model, or not a complete one; the message is one line that says what to do."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
