"""``treedecode calibrate`` on a tiny model: what it prints and saves, and that it saves nothing when it is stopped."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

import treedecode as td
from treedecode import calibration
from treedecode.cli import calibrate as module
from treedecode.engines import load, measure


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TREEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "calibrations"


@pytest.fixture
def calibrate(run, tiny, monkeypatch):
    monkeypatch.setattr(
        measure, "_MAX_REPEATS", 3
    )  # not the clock, so that a busy machine measures the same contexts

    def calibrate(*args):
        return run("calibrate", tiny, "--seconds", "500", *args)

    return calibrate


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*")) if folder.exists() else []


def test_a_table_and_a_file(calibrate, cache):
    ran = calibrate()
    assert ran.code == 0
    (path,) = files(cache)
    saved = calibration.read(path)
    lines = ran.out.splitlines()
    assert lines[0].startswith("Milliseconds of a step of tiny, float32 on ")
    assert lines[1].split() == ["rows", "64", "tokens", "207", "tokens"]  # the model has 256 positions
    cells = [line.split() for line in lines[2 : 2 + len(saved.surface.rows)]]
    assert [int(cell[0]) for cell in cells] == list(saved.surface.rows)
    assert [cell[1:] for cell in cells] == [
        [f"{line[place]:.2f}" for line in saved.surface.ms_at] for place in range(len(saved.surface.rows))
    ]
    assert lines[-1] == f"Saved to {path}"
    assert "Measuring steps of tiny: 500 s at most ..." in ran.err


def test_it_is_used_from_then_on(calibrate, run, tiny, monkeypatch):
    monkeypatch.setattr(td, "load", load.load)
    generate = ["generate", "--model", tiny, "--max-new-tokens", 4, "the tree"]
    assert "no calibration of this model" in run(*generate).err
    calibrate()
    assert re.search(r"^cost of a step: calibration of \d{4}-\d\d-\d\d", run(*generate).err, re.MULTILINE)
    assert json.loads(run(*generate, "--json").out)["cost_source"].startswith("calibration of ")


def test_json_and_a_file_of_ones_own(calibrate, cache, tmp_path, tiny):
    file = tmp_path / "mine.json"
    ran = calibrate("--json", "--output", file, "--dtype", "float64")
    found = json.loads(ran.out)
    assert found.pop("path") == str(file)
    assert found == json.loads(file.read_text())
    assert found["conditions"]["dtype"] == "float64"
    assert files(cache) == []
    assert td.CostSurface.from_json(json.dumps(found["surface"])) == calibration.read(file).surface


@pytest.mark.parametrize("stage", ["_measure", "save"])
def test_ctrl_c_leaves_nothing(calibrate, cache, tmp_path, monkeypatch, stage):
    def interrupted(*_args):
        raise KeyboardInterrupt

    if stage == "_measure":
        monkeypatch.setattr(measure._Passes, "ms", interrupted)
    else:
        monkeypatch.setattr(calibration.os, "fsync", interrupted)
    ran = calibrate()
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.splitlines()[-1] == "treedecode: interrupted, nothing was saved"
    assert files(cache) == []


def test_a_busy_machine_is_said(calibrate, monkeypatch):
    monkeypatch.setattr(measure, "_spread", lambda _times: 0.3)
    assert "vary by 30%" in calibrate().out
    assert "The machine seems to have been busy" in calibrate().out
    monkeypatch.setattr(measure, "_spread", lambda _times: 0.03)
    assert "seems to have been busy" not in calibrate().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--seconds", "0"], ["--seconds", "above 0", "0"]),
        (["--seconds", "-1"], ["--seconds", "above 0"]),
        (["--seconds", "nan"], ["--seconds", "nan"]),
        (["--seconds", "1e9"], ["--seconds", "at most 3600"]),
        (["--seconds", "long"], ["--seconds", "expected a number", "long"]),
        (["--output", "/no/such/folder/file"], ["/no/such/folder"]),
        (["--output", "/"], ["got the folder /"]),
        (["--device", "abacus"], ["abacus"]),
        (["--dtype", "int8"], ["dtype", "int8"]),
        (["--revision", "main"], ["revision", "Hub id"]),
        (["second"], ["second"]),
    ],
)
def test_bad_input(run, tiny, cache, args, words):
    ran = run("calibrate", tiny, *args)
    assert (ran.code, ran.out) == (2, "")
    line = ran.err.splitlines()[-1]
    assert line.startswith("treedecode: ")
    assert all(word in line for word in words), line
    assert files(cache) == []


def test_unknown_models(run):
    ran = run("calibrate", "/no/such/folder")
    assert ran.code == 2
    assert "no such folder: /no/such/folder" in ran.err.splitlines()[-1]


def test_the_bar_is_drawn_between_passes_only(monkeypatch):
    """No thread of its own, which would be timed with the passes."""
    out = io.StringIO()
    monkeypatch.setattr(module, "Console", lambda **_: Console(file=out, force_terminal=True, width=100))
    monkeypatch.setattr(module, "_REFRESH_S", 0.0)
    import threading

    with module._bar("Measuring", 60.0) as told:
        before = threading.active_count()
        told(0.25)
        assert "25%" in out.getvalue()
        told(1.0)
        assert "100%" in out.getvalue()
        assert threading.active_count() == before == len(threading.enumerate())
        assert not any("refresh" in type(thread).__name__.lower() for thread in threading.enumerate())
