"""Each worked-around bug is still there: a test that fails here says that its fix can go."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

pytestmark = pytest.mark.vllm


def test_the_cpu_build_is_found_under_vllms_name(monkeypatch):
    from treedecode.vllm.compat import vllm_version
    from treedecode.vllm.fixes import name_of_the_cpu_build

    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")
    monkeypatch.setattr(importlib.metadata, "version", importlib.metadata.version)
    name_of_the_cpu_build()
    assert importlib.metadata.version("vllm") == f"{vllm_version()}+cpu"
    assert importlib.metadata.version("torch") == importlib.metadata.distribution("torch").version


def test_the_launcher_runs_vllms_command():
    command = [sys.executable, "-m", "treedecode.vllm.launch", "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip().startswith("0.32.")
