"""EAGLE, EAGLE-3, MTP, Medusa and a draft model on tiny targets: stock output, and what stock drafters draft."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.vllm.conftest import ROOT
from tests.vllm.heads import DEPTH, METHODS, NUM_ALIKE, SIZED, WIDTH
from tests.vllm.running import from_plain
from tests.vllm.test_engine import assert_same

BRANCHING = [method for method in METHODS if method != "medusa"]
# They need no real model, but minutes.
pytestmark = [pytest.mark.vllm, pytest.mark.real_model]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What every method's engines said, by method."""
    folder = tmp_path_factory.mktemp("heads")
    file = folder / "runs.json"
    command = [sys.executable, "-m", "tests.vllm.heads", str(folder), str(file)]
    subprocess.run(command, check=True, cwd=ROOT)
    return json.loads(file.read_text())


def compared(runs, method, name, found):
    """Pairs of what stock vLLM's drafter and another one said, token by token, where both were asked."""
    stock, others = (
        {place: tokens for place, tokens in said.items() if int(place[0]) < NUM_ALIKE}
        for said in (runs[method]["chain"][found], runs[method][name][found])
    )
    # trees end where the request does
    return {
        place: list(zip(stock[place], others[place], strict=False)) for place in stock.keys() & others.keys()
    }


def wrong(pairs):
    """Where something else was said."""
    return {place: pair for place, pair in pairs.items() if any(mine != stock for stock, mine in pair)}


@pytest.mark.parametrize("method", METHODS)
def test_the_output_is_that_of_stock_vllm_without_speculation(runs, method):
    answers = {name: from_plain(run["answers"]) for name, run in runs[method].items()}
    for name, given in answers.items():
        if name != "chain":  # stock vLLM samples wrongly on a CPU with speculation
            assert_same(given, answers["plain"])


@pytest.mark.parametrize("method", METHODS)
def test_spines_are_the_chains_that_stock_vllm_drafts(runs, method):
    """After trees of which runners-up were accepted, the drafter must see rows and caches as after a chain."""
    pairs = compared(runs, method, "trees", "spines")
    assert len(pairs) > 25 and not wrong(pairs)
    assert sum(map(len, pairs.values())) > 0.8 * DEPTH * len(pairs)


@pytest.mark.parametrize("method", SIZED)
def test_steps_without_drafts_leave_no_hole_in_a_drafters_cache(runs, method):
    pairs = compared(runs, method, "pausing", "spines")
    assert len(pairs) > 5 and not wrong(pairs)
    counts = runs[method]["pausing"]["counts"]
    assert counts["num_bare"] > counts["num_request_steps"] / 2 and counts["num_accepted"] > 0


@pytest.mark.parametrize("method", SIZED)
def test_trees_are_sized_by_cost(runs, method):
    assert runs[method]["steep"]["counts"]["num_verified"] == 0
    counts = runs[method]["auto"]["counts"]
    emitted = [len(answer.token_ids) for [answer] in from_plain(runs[method]["auto"]["answers"])]
    assert counts["num_emitted"] == sum(emitted)
    assert counts["num_verified"] < runs[method]["trees"]["counts"]["num_verified"]


@pytest.mark.parametrize("method", BRANCHING)
def test_branches_go_on_as_stock_vllm_would_from_the_same_tokens(runs, method):
    """The spine is stock vLLM's chain, and what follows the second guess is what its drafter says after that."""
    for found in ("spines", "seconds"):
        pairs = compared(runs, method, "branches", found)
        assert len(pairs) > 5 and not wrong(pairs), found
        assert sum(map(len, pairs.values())) > 0.8 * DEPTH * len(pairs)
    if method in ("draft_model", "eagle"):  # others, being random, are hardly ever right twice
        assert runs[method]["branches"]["continued"] > 0
    assert not runs[method]["trees"]["continued"]


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
