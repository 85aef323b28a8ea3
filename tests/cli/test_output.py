"""Where the output goes, and what happens when it cannot go there or Ctrl-C is pressed early."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from treedecode.cli.app import main

PLAN = ["plan", "--max-batch", "2", "--max-drafted", "2"]
needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture
def generate(tiny):
    return ["generate", "--model", str(tiny), "--max-new-tokens", "4"]


@needs_full_device
@pytest.mark.parametrize("flags", [[], ["--json"], ["--json", "--max-batch", "200"]])
@pytest.mark.parametrize("command", ["plan", "generate"])
def test_a_full_disk_is_one_line(command, flags, generate, monkeypatch, capsys):
    if command == "generate":
        flags = flags[:1]
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([*(PLAN if command == "plan" else [*generate, "ab"]), *flags]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line == "treedecode: cannot write to standard output: No space left on device"
        full.flush()  # as the interpreter does at exit


@needs_full_device
def test_a_trace_that_cannot_be_written_is_named(run, tiny):
    ran = run("generate", "--model", tiny, "--max-new-tokens", 4, "--trace", "/dev/full", "ab")
    assert ran.code == 2
    assert ran.err.splitlines()[-1] == "treedecode: [Errno 28] No space left on device: '/dev/full'"


def test_a_reader_that_left_is_no_error(monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as left:
        monkeypatch.setattr(sys, "stdout", left)
        assert main(PLAN) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_closed_streams(name, monkeypatch, capsys, generate):
    monkeypatch.setattr(sys, name, None)
    code = main(generate if name == "stdin" else PLAN)
    getattr(sys, name).close()
    assert code == (2 if name == "stdin" else 0)
    if name == "stdin":
        assert "the prompt is empty" in capsys.readouterr().err


def test_an_encoding_without_the_character(monkeypatch, capsys, generate):
    def printed(*flags):
        out = io.TextIOWrapper(io.BytesIO(), "ascii")
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(out, "isatty", lambda: True)  # the prompt is shown as well
        code = main([*generate, "--raw", *flags, "\xe9"])
        return code, out.buffer.getvalue(), capsys.readouterr().err

    code, out, _ = printed("--json")
    assert code == 0
    assert json.loads(out)["prompt"] == "\xe9"
    code, _, errors = printed()
    assert code == 2
    expected = "treedecode: the output is ascii and has no '\\xe9': set PYTHONIOENCODING=utf-8, or use --json"
    assert errors.splitlines()[-1] == expected


INTERRUPTED_AT = """
import os, signal, sys
module = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from treedecode.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["typer", "numpy", "treedecode.cli.serve", "torch"])
def test_ctrl_c_during_imports(module):
    args = [module, "generate", "--model", "/no/such", "ab"]
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT, *args], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (130, "")


def test_ctrl_c_ends_the_program(monkeypatch):
    from treedecode import __main__
    from treedecode.cli import app

    def interrupted():
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(app, "main", interrupted)
    assert __main__.main() == 130
    assert signal.getsignal(signal.SIGINT) is before
