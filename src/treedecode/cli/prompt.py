"""The prompts of a command: an argument, a file or standard input."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from treedecode.json_text import parse_json


def read_prompts(arguments: Sequence[str] | None, file: Path | None) -> list[str]:
    """The texts of all prompts: every argument, every line of a file named ``*.jsonl``, or one of any other file.

    A line is a JSON string, or an object whose ``prompt`` is one; blank lines are left out.

    Raises:
        typer.TyperException: None, from two places, an empty or an unreadable one.
    """
    if file is None or arguments or file.suffix.lower() != ".jsonl":
        return [read_prompt(argument, file) for argument in arguments or [None]]
    prompts = []
    for number, line in enumerate(_read(file.read_bytes, str(file)).removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = parse_json(line)
        except ValueError as error:
            raise typer.TyperException(f"{file}, line {number} must be JSON: {error}") from None
        prompt = found.get("prompt") if isinstance(found, dict) else found
        if not isinstance(prompt, str) or not prompt:
            raise typer.TyperException(
                f'{file}, line {number} must be a text, or an object with a text as "prompt": '
                f"expected at least one character, got {prompt!r:.80}"
            )
        prompts.append(prompt)
    if not prompts:
        raise typer.TyperException(f"{file} has no prompt: expected one JSON text or object per line")
    return prompts


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt's text; of a file or standard input without its last line break, be it LF or CR LF.

    Raises:
        typer.TyperException: None, two, an empty or an unreadable one.
    """
    if argument is not None and file is not None:
        raise typer.TyperException("give the prompt as an argument or with --file, not both")
    if argument is not None:
        # what is no UTF-8 stands in an argument as lone surrogates
        text = _decode(argument.encode("utf-8", "surrogateescape"), "the argument")
    elif file is not None and str(file) != "-":
        text = _read(file.read_bytes, str(file))
    elif sys.stdin.isatty():
        raise typer.TyperException("no prompt: give it as an argument, with --file or on standard input")
    else:
        text = _read(sys.stdin.buffer.read, "standard input")
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


def _read(read: Callable[[], bytes], source: str) -> str:
    try:
        return re.sub(r"\r?\n\Z", "", _decode(read(), source))
    except OSError as error:
        raise typer.TyperException(f"cannot read the prompt from {source}: {error.strerror}") from error


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.TyperException(f"the prompt in {source} must be UTF-8 text: {error}") from error
