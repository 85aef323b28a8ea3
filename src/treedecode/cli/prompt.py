"""The prompt of a command: an argument, a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt's text; of a file or standard input without its last line break.

    Raises:
        typer.TyperException: None, two, an empty or an unreadable one.
    """
    if argument is not None and file is not None:
        raise typer.TyperException("give the prompt as an argument or with --file, not both")
    if argument is not None:
        text = argument
    elif file is not None and str(file) != "-":
        text = _read(file)
    elif sys.stdin.isatty():
        raise typer.TyperException("no prompt: give it as an argument, with --file or on standard input")
    else:
        text = _decode(sys.stdin.buffer.read(), "standard input").removesuffix("\n")
    if not text:
        raise typer.TyperException("the prompt is empty: expected at least one character")
    return text


def encode_prompt(tokenizer: Any, text: str, raw: bool) -> str | list[int]:
    """What the engine gets: the text itself, or for an instruct model the token ids of one turn of a conversation."""
    if raw or not tokenizer.chat_template:
        return text
    turn = [{"role": "user", "content": text}]
    return list(
        tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"]
    )


def _read(file: Path) -> str:
    try:
        return _decode(file.read_bytes(), str(file)).removesuffix("\n")
    except OSError as error:
        raise typer.TyperException(f"cannot read the prompt from {file}: {error.strerror}") from error


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.TyperException(f"the prompt in {source} must be UTF-8 text: {error}") from error
