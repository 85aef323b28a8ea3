"""A draft model as the spine of trees, on the real model: the model itself, and a copy with noise on its weights."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm.cases import GROUPS
from tests.vllm.conftest import ROOT
from tests.vllm.running import from_plain
from tests.vllm.spines import DEPTH, save_perturbed
from tests.vllm.test_engine import assert_same

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

KINDS = [f"kinds/{index}" for index in range(len(GROUPS["kinds"]))]
# a penalty, bad words, min_tokens with a stop token, a regular expression; seeds with and without a penalty
PARAMETERS = ["features/0", "features/3", "features/5", "features/11", "seeded/0", "seeded/3"]


def run(model_dir, draft, folder, names, **environment):
    """Answers and counts."""
    file = folder / "answers.json"
    command = [sys.executable, "-m", "tests.vllm.spines", model_dir, str(draft), str(file), *names]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | environment)
    answers, counts = json.loads(file.read_text())
    for name in ("depth", "rank"):
        counts[f"by_{name}"] = {int(key): number for key, number in counts[f"accepted_by_{name}"].items()}
    return from_plain(answers), counts


def test_every_spine_of_the_target_itself_is_accepted(model_dir, reference, tmp_path):
    # from two threads on, vLLM's attention splits the keys of a long request between them
    answers, counts = run(model_dir, model_dir, tmp_path, KINDS, OMP_NUM_THREADS="2")
    assert_same(answers, reference["kinds"])
    lengths = [len(answer.token_ids) for [answer] in answers]
    # the prompt's step emits one token, every other a whole spine and the bonus
    fewest = sum(1 + math.ceil((length - 1) / (DEPTH + 1)) for length in lengths)
    assert counts["num_request_steps"] == fewest and counts["num_emitted"] == sum(lengths)
    # no runner-up had to be rescued
    assert counts["by_rank"] == {0: counts["num_accepted"]}


def test_runners_up_of_a_noisy_copy_are_rescued(model_dir, reference, tmp_path):
    save_perturbed(Path(model_dir), tmp_path / "noisy")
    names = [*KINDS, *PARAMETERS]
    answers, counts = run(model_dir, tmp_path / "noisy", tmp_path, names)
    parts = (name.split("/") for name in names)
    assert_same(answers, [reference[group][int(index)] for group, index in parts])
    with_drafts = counts["num_request_steps"] - counts["num_bare"]
    assert 0.2 * with_drafts < counts["by_depth"][1] < with_drafts
    assert counts["by_rank"][1] > 10 and counts["by_rank"][2] > 0 and counts["num_moved_bytes"] > 0
