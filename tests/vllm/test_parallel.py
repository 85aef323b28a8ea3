"""Tensor parallelism over two processes: stock output, and the same walks on both ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.vllm.conftest import ROOT
from tests.vllm.parallel import GROUPS_RUN
from tests.vllm.running import from_plain
from tests.vllm.test_engine import assert_same

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]


def test_two_ranks_walk_alike_and_answer_as_stock_vllm(model_dir, reference, tmp_path):
    file = tmp_path / "answers.json"
    command = [sys.executable, "-m", "tests.vllm.parallel", model_dir, str(file)]
    subprocess.run(command, check=True, cwd=ROOT)
    answers, counts = json.loads(file.read_text())
    for name in GROUPS_RUN:
        assert_same(from_plain(answers[name]), reference[name])
    assert len(counts) == 2 and counts[0] == counts[1]
    assert counts[0]["num_accepted"] > 0 and counts[0]["num_moved_bytes"] > 0
