"""Replay of the default model's traces agrees with the runs that wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

import treedecode as td
from tests.e2e.prompts import PROMPTS
from treedecode.replay.source import read_recordings
from treedecode.replay.strategies import Recorded, Rerun
from treedecode.replay.walk import WHOLE, walk

pytestmark = pytest.mark.real_model
NUM_TOKENS = 48


def test_same_trace_same_tree_same_accepted_counts(gemma: td.LoadedModel, tmp_path: Path) -> None:
    """The recorded steps, the drafter run again, and one that uses no rows, run on another's trace."""
    prompt = next(iter(PROMPTS.values()))
    stats, recordings = {}, {}
    for drafter in ("merged", "prompt-lookup"):
        path = tmp_path / drafter
        with td.TraceWriter(path) as trace:
            options = {"max_new_tokens": NUM_TOKENS, "budget": 12, "drafter": drafter, "trace": trace}
            (generation,) = td.generate(gemma, [prompt], **options)
        stats[drafter] = generation.stats
        (recordings[drafter],) = read_recordings([path])
        assert recordings[drafter].output_ids == tuple(generation.token_ids)
    merged, lookup = stats["merged"], stats["prompt-lookup"]
    for live, found in (
        (merged, walk(recordings["merged"], Recorded(), WHOLE)),
        (merged, walk(recordings["merged"], Rerun("merged"), 12)),
        (lookup, walk(recordings["merged"], Rerun("prompt-lookup"), 12)),
    ):
        assert (found.num_drafted, found.num_emitted) == (live.nodes_per_step, live.emitted_per_step)
        assert sum(found.num_accepted) == live.num_accepted
    assert merged.num_accepted > 0
