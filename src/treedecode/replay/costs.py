"""What a step costs: as given, or what the recordings themselves say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from treedecode.cost import CostCurve
from treedecode.replay.recording import Recording
from treedecode.surface import Cost

# Recorded steps make a curve only with so many different sizes, plain steps or nearly so among them.
_MIN_SIZES = 4
_MAX_SMALLEST = 2


@dataclass(frozen=True)
class StepCost:
    """Milliseconds of a step, and where they come from.

    Attributes:
        forward: Of a forward pass.
        draft_ms: Of drafting one tree.
        origin: In words.
    """

    forward: Cost
    draft_ms: float
    origin: str


def step_cost(
    recordings: Sequence[Recording],
    given: Cost | None = None,
    draft_ms: float | None = None,
    origin: str = "",
) -> StepCost:
    """The cost of a step.

    The first of these that there is: the given one; that which the model's measurement at loading left in a trace;
    the recorded verify times by number of rows, if the recorded steps had sizes enough, plain steps among them.

    Args:
        recordings: All that are replayed.
        given: A cost that replaces what the recordings say.
        draft_ms: Drafting time per tree; None takes the median of the recorded steps, or 0 where none is recorded.
        origin: Of ``given``, in words.

    Raises:
        ValueError: No cost is given and the recordings do not say.
    """
    recorded = [ms for recording in recordings for ms in recording.draft_ms]
    drafting = draft_ms if draft_ms is not None else statistics.median(recorded) if recorded else 0.0
    if given is not None:
        return StepCost(given, drafting, origin)
    measured = next((recording for recording in recordings if recording.cost is not None), None)
    if measured is not None and measured.cost is not None:
        return StepCost(measured.cost, drafting, "as measured when the model was loaded")
    points = [point for recording in recordings for point in recording.step_ms]
    sizes = {rows for rows, _ in points}
    if len(sizes) >= _MIN_SIZES and min(sizes) <= _MAX_SMALLEST:
        curve = CostCurve.fit([rows for rows, _ in points], [ms for _, ms in points])
        return StepCost(curve, drafting, f"verify times of {len(points)} recorded steps, by number of rows")
    raise ValueError(
        "the recordings do not say what a step costs: expected --cost FILE with a JSON object such as "
        '{"rows": [1, 8, 32], "ms": [10, 12, 20]}'
    )
