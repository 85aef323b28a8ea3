"""What is replayed, and what only helps: recordings of one prompt know more together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treedecode.replay.recording import Recording


@dataclass(frozen=True)
class Selection:
    """Recordings by their part.

    Attributes:
        replayed: All dense or none, dense ones of one drafter; with the rows of other dense ones of the same output.
        live: Runs of outputs that are replayed: what the estimates are compared with.
        unused: Names of those that are of no use beside the dense ones: other prompts or other outputs.
    """

    replayed: tuple[Recording, ...]
    live: tuple[Recording, ...]
    unused: tuple[str, ...]


def select(recordings: Sequence[Recording]) -> Selection:
    """Sorts recordings: where there are dense ones, those of the first one's drafter are replayed.

    Raises:
        ValueError: There is no step to replay.
    """
    dense = [recording for recording in recordings if recording.dense]
    chosen = [one for one in dense if one.drafter == dense[0].drafter] if dense else list(recordings)
    if not any(recording.num_positions for recording in chosen):
        raise ValueError("nothing to replay: expected an output of at least 2 tokens, got none")
    others = [one for one in recordings if all(one is not other for other in chosen)]
    helpful = [one for one in others if any(same_output(one, other) for other in chosen)]
    # not those of live runs: estimates are compared with them
    replayed = [_with_rows(one, dense) for one in chosen if one.num_positions]
    return Selection(
        tuple(replayed),
        tuple(one for one in helpful if not one.dense),
        tuple(one.name for one in others if all(one is not other for other in helpful)),
    )


def same_output(one: Recording, other: Recording) -> bool:
    """Whether both are of the same prompt and emitted the same tokens."""
    return one.prompt_ids == other.prompt_ids and one.output_ids == other.output_ids


def _with_rows(recording: Recording, others: Sequence[Recording]) -> Recording:
    """The recording with the rows of all recordings of the same output: what the target says does not depend on who
    drafted."""
    rows = {}
    for other in others:
        if other is not recording and same_output(recording, other):
            rows.update(other.rows)
    return replace(recording, rows=rows | dict(recording.rows)) if rows else recording
