"""How far estimates are from live runs: of the recordings at hand, or of a published measurement."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from importlib import resources

from treedecode.replay.data import same_output
from treedecode.replay.recording import Recording
from treedecode.replay.results import Budget, EstimateError
from treedecode.replay.strategies import Dynamic, Recorded, Rerun, Strategy
from treedecode.replay.walk import WHOLE, Walk, mean_emitted, walk

_PUBLISHED = "measured_errors.json"


def live_error(
    strategy: Strategy,
    budget: Budget,
    recordings: Sequence[Recording],
    walks: Sequence[Walk],
    live: Sequence[Recording],
) -> EstimateError | None:
    """Compares replayed walks with live runs of the same outputs, by the same drafter at the same budget.

    Args:
        strategy: What was replayed.
        budget: Its budget.
        recordings: What was walked.
        walks: One for each.
        live: Traces that are not dense.

    Returns:
        None if there is no such run, or the strategy is none that runs live.
    """
    if not isinstance(strategy, Rerun | Dynamic):
        return None
    pairs = [
        (taken, walk(run, Recorded(), WHOLE))
        for recording, taken in zip(recordings, walks, strict=True)
        for run in live
        if same_output(run, recording)
        and run.budget == budget
        and run.drafter == (strategy.name if isinstance(strategy, Rerun) else recording.drafter)
    ]
    if not pairs:
        return None
    replayed, real = (mean_emitted(side) for side in zip(*pairs, strict=True))
    return EstimateError(replayed - real, len(pairs), "these recordings")


def published_error(strategy: Strategy, budget: Budget) -> EstimateError | None:
    """The error that ``benchmarks/replay_estimates.py`` measured; None where it did not."""
    published = _published()
    found = published["errors"].get(strategy.name, {}).get(str(budget))
    if found is None:
        return None
    return EstimateError(found["difference"], found["num_runs"], published["setup"])


@functools.cache
def _published() -> dict:
    source = resources.files("treedecode.replay").joinpath(_PUBLISHED)
    return json.loads(source.read_text(encoding="utf-8"))
