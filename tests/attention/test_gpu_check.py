"""The check that a GPU is given, as far as it goes without one."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is installed on Linux x86_64 alone")

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *map(str, arguments)])
    return script.main()


def test_the_kernel_is_checked_without_a_gpu(script, monkeypatch, tmp_path):
    report = tmp_path / "report.json"
    monkeypatch.setattr(script, "TOLERANCE", {script.torch.float32: 5e-5})
    assert run(script, monkeypatch, "--device", "cpu", "--output", report) == 0
    found = json.loads(report.read_text())
    assert found["passed"] and len(found["kernel"]) == 11 and "kernel_ms" not in found
    assert found["environment"]["device"] == "cpu, interpreted"


def test_a_wrong_kernel_fails_the_check(script, monkeypatch, tmp_path):
    report = tmp_path / "report.json"
    monkeypatch.setattr(script, "attend", lambda batch, placed, **settings: batch.query)
    assert run(script, monkeypatch, "--device", "cpu", "--output", report) == 1
    found = json.loads(report.read_text())
    assert not found["passed"] and not any(case["passed"] for case in found["kernel"])


def test_a_missing_gpu_is_named(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(script.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        run(script, monkeypatch, "--output", tmp_path / "report.json")
    assert "no CUDA device is visible to PyTorch" in capsys.readouterr().err


def answer(token_ids, logprobs):
    return {"token_ids": token_ids, "logprobs": logprobs}


def test_answers_are_compared_up_to_the_first_difference(script):
    stock = answer([5, 6, 7], [{"5": -0.1}, {"6": -0.5, "8": -0.625}, {"7": -0.1}])
    assert script.difference(stock, stock) is None
    assert script.difference(stock, answer([5, 8, 1], [])) == {"place": 1, "gap_nat": 0.125}
    assert script.difference(stock, answer([5, 9, 7], [])) == {"place": 1, "gap_nat": None}
