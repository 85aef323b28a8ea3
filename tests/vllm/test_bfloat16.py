"""An engine in bfloat16: trees say what stock vLLM says, up to near ties, which are told apart from errors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.vllm.conftest import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

# Logits between 16 and 32 are an eighth of a nat apart in bfloat16; either of two may be off by one such step.
MAX_TIE = 0.25
# How many of the 128 tokens may be another than the choice of the same model over the whole prompt at once.
MAX_TIES = 8


@pytest.fixture(scope="module")
def runs(model_dir, tmp_path_factory):
    """Outputs and gaps of stock vLLM, of trees and of trees without compaction, by name; and the trees' counts."""
    file = tmp_path_factory.mktemp("bfloat16") / "runs.json"
    subprocess.run([sys.executable, "-m", "tests.vllm.bfloat16", model_dir, str(file)], check=True, cwd=ROOT)
    return json.loads(file.read_text())


def flat(gaps):
    return [gap for answer in gaps for gap in answer]


@pytest.mark.parametrize("name", ["stock", "trees"])
def test_every_token_is_the_models_choice_or_nearly_tied_with_it(runs, name):
    _, gaps, counts = runs
    found = flat(gaps[name])
    assert max(found) <= MAX_TIE, sorted(found)[-MAX_TIES:]
    assert sum(gap > 0 for gap in found) <= MAX_TIES
    assert counts["num_accepted"] > 0 and counts["num_moved_bytes"] > 0


def test_trees_leave_stock_vllms_output_at_near_ties_only(runs):
    said, gaps, _ = runs
    for index, (trees, stock) in enumerate(zip(said["trees"], said["stock"], strict=True)):
        apart = next(
            (i for i, (mine, other) in enumerate(zip(trees, stock, strict=True)) if mine != other), None
        )
        if apart is not None:
            assert max(gaps["trees"][index][apart], gaps["stock"][index][apart]) <= MAX_TIE, (index, apart)


def test_an_error_is_no_near_tie(runs):
    _, gaps, _ = runs
    assert max(flat(gaps["broken"])) > 4 * MAX_TIE
