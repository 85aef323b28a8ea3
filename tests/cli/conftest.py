"""A model small enough to load in every test, and the command line as a function."""

from __future__ import annotations

import functools
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import treedecode as td
from tests.models import tiny_gguf
from tests.verify.conftest import serve  # noqa: F401 (a fixture of this package too)
from treedecode.cli.app import main
from treedecode.models.gemma import convert_gemma
from treedecode.models.progress import silent


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A folder with a random Gemma 3 of seven small layers."""
    folder = tmp_path_factory.mktemp("cli")
    made = folder / "tiny"
    made.mkdir()
    convert_gemma(tiny_gguf.write(folder / "tiny.gguf"), made, silent)
    return made


@pytest.fixture(scope="session")
def load_once():
    """``td.load`` that keeps every model: measuring the cost of a step takes seconds."""
    return functools.cache(td.load)


@pytest.fixture(autouse=True)
def models_are_kept(monkeypatch, load_once):
    def load(name, device=None, dtype=None, revision=None, progress=None, calibration=None):
        if calibration == "auto":  # what is saved on this machine is not for tests
            calibration = None
        return load_once(name, device, dtype, revision, calibration=calibration)

    monkeypatch.setattr(td, "load", load)


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs ``treedecode ARGS``; ``stdin`` is bytes, or None for a terminal."""

    def run(*args: object, stdin: bytes | None = None) -> Ran:
        source = io.TextIOWrapper(io.BytesIO(stdin or b""))
        source.isatty = lambda: stdin is None
        monkeypatch.setattr(sys, "stdin", source)
        code = main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
