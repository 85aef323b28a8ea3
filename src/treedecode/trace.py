"""Traces: what a generation drafted, verified and accepted, step by step, as JSON lines (docs/trace.md)."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from treedecode.json_text import parse_json

if TYPE_CHECKING:
    from pydantic import ValidationError

SCHEMA_VERSION = 1
_DIGITS = 6  # of logprobs, scores and milliseconds: far below the rounding of float32 logits


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One verify step of ``N`` nodes.

    Attributes:
        index: Steps before it.
        emitted_ids: Tokens that it emitted.
        prefix_len: Tokens whose keys and values were in the cache; node ``i`` had position ``prefix_len + depth``.
        parents: ``[N]``, -1 for the root, which is node 0.
        token_ids: ``[N]``, the last committed token and the drafted ones.
        sources: ``[N]``, who drafted each node; None where the drafter does not say.
        scores: ``[N]``, log reach probabilities (None for minus infinity); None where the drafter gives none.
        path: Accepted nodes, root first.
        top_ids: ``[N][k]``, the target's best next tokens after each node, best first (k is 8 at most).
        top_logprobs: ``[N][k]``, their log probabilities under the unprocessed softmax; None for minus infinity.
        draft_ms: Drafting and choosing the size of the tree.
        verify_ms: Positions, mask, forward pass, choices.
        commit_ms: Walk and compaction of the cache.

    Raises:
        ValueError: The columns disagree about ``N``, a time is negative or not finite, or the path leaves the tree.
    """

    index: int
    emitted_ids: list[int]
    prefix_len: int
    parents: list[int]
    token_ids: list[int]
    sources: list[str] | None
    scores: list[float | None] | None
    path: list[int]
    top_ids: list[list[int]]
    top_logprobs: list[list[float | None]]
    draft_ms: float
    verify_ms: float
    commit_ms: float

    def __post_init__(self) -> None:
        num_nodes = len(self.parents)
        for name in ("token_ids", "sources", "scores", "top_ids", "top_logprobs"):
            column = getattr(self, name)
            if column is not None and len(column) != num_nodes:
                raise ValueError(
                    f"step {self.index}: {name} must have {num_nodes} entries, got {len(column)}"
                )
        for name in ("draft_ms", "verify_ms", "commit_ms"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"step {self.index}: {name} must be at least 0 milliseconds, got {getattr(self, name)}"
                )
        if not self.path or self.path[0] != 0 or min(self.path) < 0 or max(self.path) >= num_nodes:
            raise ValueError(
                f"step {self.index}: path must start at 0 and hold nodes from 0 to {num_nodes - 1}, got {self.path}"
            )


@dataclass(frozen=True)
class Trace:
    """One generation read back.

    Attributes:
        header: Model, tokenizer, prompt ids and settings, with ``schema_version``.
        steps: In order. The first output token comes from the prompt's own forward pass: it is the root of step 0.
    """

    header: dict[str, Any]
    steps: list[StepRecord]


class TraceWriter:
    """Writes one generation to a file; every line is complete on disk as soon as it is written.

    Args:
        path: The file; one that exists is replaced by the header, not before.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None
        self._has_header = False

    def header(self, about: dict[str, Any]) -> None:
        """Writes the first line.

        Raises:
            OSError: The file cannot be written.
            ValueError: There is a header already: a file holds one generation.
        """
        if self._has_header:
            raise ValueError("a trace file holds one generation: give every prompt a TraceWriter of its own")
        line = _line({"type": "header", "schema_version": SCHEMA_VERSION, **about})
        self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115  (closed by close)
        self._has_header = True
        self._write(self._file, line)

    def step(self, record: StepRecord) -> None:
        """Writes one step.

        Raises:
            OSError: The file cannot be written.
            ValueError: There is no header yet, or the writer is closed.
        """
        if self._file is None:
            raise ValueError(
                "a trace starts with a header: call header before step, and close after the last"
            )
        columns = {field.name: getattr(record, field.name) for field in fields(record)}
        self._write(self._file, _line({"type": "step"} | columns))

    def close(self) -> None:
        """Closes the file; twice is fine."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _write(self, file: TextIO, line: str) -> None:
        try:
            file.write(line)
            file.flush()
        except OSError as error:
            with suppress(OSError):  # closing writes what is left, in vain
                self.close()
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def read_trace(path: str | Path) -> Trace:
    """Reads a trace; a last line that was cut off (the writer was killed) is left out.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no trace, of another schema version, or damaged; names the line.
    """
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(StepRecord)
    lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    # text after the last line feed is a line that was not finished
    parsed = [_parse(path, number, line) for number, line in enumerate(lines[:-1], 1)]
    if not parsed or parsed[0].get("type") != "header":
        raise ValueError(f"{path} is no trace: the first line must be a header, got {lines[0][:60]!r}")
    header = {key: value for key, value in parsed[0].items() if key != "type"}
    if (version := header.get("schema_version")) != SCHEMA_VERSION:
        raise ValueError(f"{path} has trace schema version {version}, expected {SCHEMA_VERSION}")
    steps = []
    for number, line in enumerate(parsed[1:], 2):
        if line.pop("type", None) != "step":
            raise ValueError(f'{path}, line {number}: expected "type": "step" after the header')
        try:
            steps.append(adapter.validate_json(json.dumps(line), strict=True))
        except ValidationError as error:
            raise ValueError(
                f"{path}, line {number} is no step of schema version {version}: {first_fault(error)}"
            ) from error
    return Trace(header, steps)


def first_fault(error: ValidationError) -> str:
    """The first of pydantic's complaints in one line: place, rule and what was there."""
    first = error.errors()[0]
    found = first["input"]
    got = "" if first["type"] in ("missing", "json_invalid", "value_error") else f", got {found!r:.60}"
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return (f"{place.removeprefix('.')}: " if place else "") + first["msg"] + got


def _parse(path: str | Path, number: int, line: str) -> dict[str, Any]:
    try:
        parsed = parse_json(line)
    except ValueError as error:
        raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}, line {number} must be a JSON object, got {type(parsed).__name__}")
    return parsed


def _line(content: dict[str, Any]) -> str:
    return json.dumps(_rounded(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


def _rounded(value: Any) -> Any:
    """Floats rounded, those that JSON has no word for as None, and numbers of other libraries as Python's own."""
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return round(number, _DIGITS) if math.isfinite(number) else None
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
