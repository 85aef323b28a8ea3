"""The commands as a newcomer types them, on the default model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from treedecode.models import resolve_model
from treedecode.models.default import default_model_dir
from treedecode.surface import CostSurface

pytestmark = pytest.mark.real_model
PROMPT = "The history of the bicycle begins in the early nineteenth century, when"
COMMAND = [sys.executable, "-m", "treedecode", "generate", PROMPT]


@pytest.fixture(scope="module", autouse=True)
def converted():
    """The conversion has tests of its own, and would lengthen the first test here."""
    resolve_model("default")


def test_compare():
    ran = subprocess.run(
        [*COMMAND, "--compare", "--max-new-tokens", "48"], capture_output=True, text=True, check=True
    )
    trees, plain, verdict = ran.stderr.splitlines()[-3:]
    assert trees.startswith("trees: 48 tokens")
    assert plain.startswith("plain: 48 tokens")
    assert verdict.startswith("identical output, ")
    assert len(ran.stdout.split()) > 20


def test_json():
    command = [*COMMAND, "--json", "--max-new-tokens", "16", "--temperature", "0.8", "--seed", "4"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert found["stats"]["num_emitted"] == 16
    assert found["implementation"] == "fused"


def test_calibrate(tmp_path):
    """In a cache of its own, with the default model linked into it; then generate uses what was saved."""
    (tmp_path / default_model_dir().name).symlink_to(resolve_model("default"))
    environment = os.environ | {"TREEDECODE_CACHE": str(tmp_path)}
    program = [sys.executable, "-m", "treedecode"]

    def run(*args):
        return subprocess.run([*program, *args], capture_output=True, text=True, check=True, env=environment)

    found = json.loads(run("calibrate", "--seconds", "5", "--json").stdout)
    surface = CostSurface(**found["surface"])  # which refuses one that falls
    assert surface.prefix_lens[0] == 64
    assert found["num_repeats"] >= 3
    assert found["conditions"]["model"] == default_model_dir().name
    (path,) = (tmp_path / "calibrations").iterdir()
    assert found["path"] == str(path)
    text = run("generate", PROMPT, "--max-new-tokens", "8").stderr
    assert "cost of a step: calibration of " in text
    report = {finding["name"]: finding for finding in json.loads(run("doctor", "--json").stdout)["findings"]}
    assert report["calibration of the default model"]["works"]


def test_ctrl_c():
    process = subprocess.Popen(
        [*COMMAND, "--max-new-tokens", "4000", "--budget", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts background jobs, such as a whole test run, with the signal ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        first = process.stdout.read(12)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert first.strip()
    assert rest.endswith("\n")
    assert "tokens (interrupted)" in errors.splitlines()[-1]
    assert "Traceback" not in errors
