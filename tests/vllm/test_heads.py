"""EAGLE, EAGLE-3, MTP, Medusa and a draft model as spines, on tiny targets: stock output, and stock spines."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.vllm.conftest import ROOT
from tests.vllm.heads import DEPTH, METHODS, NUM_ALIKE, WIDTH
from tests.vllm.running import from_plain
from tests.vllm.test_engine import assert_same

# They need no real model, but minutes.
pytestmark = [pytest.mark.vllm, pytest.mark.real_model]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What every method's engines said, by method."""
    folder = tmp_path_factory.mktemp("heads")
    file = folder / "runs.json"
    command = [sys.executable, "-m", "tests.vllm.heads", str(folder), str(file), *METHODS]
    subprocess.run(command, check=True, cwd=ROOT)
    return json.loads(file.read_text())


@pytest.mark.parametrize("method", METHODS)
def test_the_output_is_that_of_stock_vllm_without_speculation(runs, method):
    answers = {name: from_plain(run["answers"]) for name, run in runs[method].items()}
    assert_same(answers["trees"], answers["plain"])


@pytest.mark.parametrize("method", METHODS)
def test_spines_are_the_chains_that_stock_vllm_drafts(runs, method):
    """After trees of which runners-up were accepted, the drafter must see rows and caches as after a chain."""
    chains, trees = (
        {place: spine for place, spine in runs[method][name]["spines"].items() if int(place[0]) < NUM_ALIKE}
        for name in ("chain", "trees")
    )
    common = chains.keys() & trees.keys()
    assert len(common) > 25
    # trees end where the request does
    pairs = {place: list(zip(chains[place], trees[place], strict=False)) for place in common}
    assert not {place: pair for place, pair in pairs.items() if any(mine != stock for stock, mine in pair)}
    assert sum(map(len, pairs.values())) > 0.8 * DEPTH * len(common)


@pytest.mark.parametrize("method", METHODS)
def test_runners_up_are_accepted(runs, method):
    counts = runs[method]["trees"]["counts"]
    by_rank = {int(rank): number for rank, number in counts["accepted_by_rank"].items()}
    if method == "draft_model":  # the target itself: only penalties and sampling make it wrong
        assert by_rank[0] > 0.9 * counts["num_accepted"] > 0.5 * counts["num_emitted"]
    else:
        assert by_rank[1] > 0 and counts["num_moved_bytes"] > 0 and max(by_rank) < WIDTH
    lengths = [len(answer.token_ids) for [answer] in from_plain(runs[method]["trees"]["answers"])]
    assert counts["num_emitted"] == sum(lengths)
