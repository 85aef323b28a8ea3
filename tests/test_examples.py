"""The examples run: their drafters on a toy target, and as scripts on the default model."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import treedecode as td
from tests.drafters.driver import decode, markov_target, plain

CUSTOM_DRAFTER = Path(__file__).parents[1] / "examples" / "custom_drafter.py"


def test_custom_drafter_decodes_exactly_and_in_fewer_passes() -> None:
    drafter = td.make_drafter(runpy.run_path(str(CUSTOM_DRAFTER))["BigramDrafter"]())
    target = markov_target(vocab_size=30, order=1)
    outcome = decode(drafter, target, [1, 2, 3], 200, 4)
    assert outcome.token_ids == plain(target, [1, 2, 3], 200)
    assert outcome.mean_emitted > 2


@pytest.mark.real_model
def test_custom_drafter_runs_as_a_script() -> None:
    done = subprocess.run(
        [sys.executable, CUSTOM_DRAFTER], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.startswith("One, two, three.")
    assert "tokens per forward pass" in done.stderr
