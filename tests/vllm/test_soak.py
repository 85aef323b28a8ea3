"""A thousand requests, some aborted and some preempted: every stream is whole, and nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.vllm.conftest import ROOT
from tests.vllm.soak import NUM_CASES, NUM_REQUESTS

# It needs no real model, but minutes.
pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

MAX_GROWTH_KIB = 16 * 1024


@pytest.fixture(scope="module")
def soak(tmp_path_factory):
    """What the run said."""
    folder = tmp_path_factory.mktemp("soak")
    file = folder / "soak.json"
    subprocess.run([sys.executable, "-m", "tests.vllm.soak", str(folder), str(file)], check=True, cwd=ROOT)
    return json.loads(file.read_text())


def test_every_stream_is_whole_or_a_beginning_of_what_stock_vllm_says(soak):
    assert sorted(soak["finished"] + soak["aborted"]) == list(range(NUM_REQUESTS))
    assert min(len(soak["finished"]), len(soak["aborted"])) > 0.1 * NUM_REQUESTS
    assert soak["num_preempted"] > 0 and soak["num_accepted"] > 0
    for number in soak["finished"]:
        assert soak["streams"][number] == soak["expected"][number % NUM_CASES], number
    for number in soak["aborted"]:
        stream, whole = soak["streams"][number], soak["expected"][number % NUM_CASES]
        assert stream == whole[: len(stream)], number


def test_no_block_and_no_request_is_left(soak):
    assert soak["leaked_blocks"] == 0
    assert not any(soak["kept"].values()), soak["kept"]


def test_memory_does_not_grow(soak):
    # what grows at first, such as caches of shapes, has grown by then
    settled, *later = soak["resident_kib"][len(soak["resident_kib"]) // 3 :]
    assert max(later) - settled < MAX_GROWTH_KIB, soak["resident_kib"]
