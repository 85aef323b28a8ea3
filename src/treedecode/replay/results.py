"""What a replay found, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treedecode.replay.ranks import Rescue
from treedecode.replay.strategies import Kind

# Drafted nodes per step, or "auto" for as many as pay; "mixed" for recorded steps whose budgets differ.
Budget = int | str


@dataclass(frozen=True)
class EstimateError:
    """How far an estimate was from live runs.

    Attributes:
        difference: E[L] by replay less E[L] of the live runs of the same outputs.
        num_runs: Live runs.
        setup: Where they come from: "these recordings", or model and prompts of a published measurement.
    """

    difference: float
    num_runs: int
    setup: str


@dataclass(frozen=True)
class Result:
    """One strategy at one budget, over all recordings.

    Attributes:
        strategy: Its name.
        kind: "plain", "chain" or "tree".
        budget: Drafted nodes per step; 0 for plain decoding.
        num_steps: Forward passes after the prompts'.
        num_emitted: Tokens that they emitted.
        mean_emitted: E[L], emitted tokens per step.
        interval: Its 95% bootstrap interval over recordings; None for fewer than three.
        mean_drafted: Drafted nodes per step.
        tokens_per_s: Under the cost of a step, drafting included.
        basis: "exact" where a live run would give the same counts by construction, else "estimate".
        error: What is known of an estimate's error; None where nothing is, and for exact ones.
        rows_known: Share of the verified nodes whose rows the recordings know; None where no drafter that
            uses rows was run again.
        reach_error: Calibration error of the reach that trees said of their nodes; None where they say none.
    """

    strategy: str
    kind: Kind
    budget: Budget
    num_steps: int
    num_emitted: int
    mean_emitted: float
    interval: tuple[float, float] | None
    mean_drafted: float
    tokens_per_s: float
    basis: Literal["exact", "estimate"]
    error: EstimateError | None
    rows_known: float | None
    reach_error: float | None


@dataclass(frozen=True)
class Verdict:
    """Will a tree pay here?

    Attributes:
        go: Whether some tree passes: the gain reaches the gate, and it is faster than plain decoding and every chain.
        tree: The fastest tree that passes or, where none does, the fastest of all.
        chain: The best chain of the same budget, or of all where there is none of it; None without any chain.
        fastest_other: The fastest of plain decoding and all chains.
        gain: Tokens per step of the tree over the chain (over plain decoding without a chain).
        interval: Its 95% bootstrap interval over recordings; None for fewer than three.
        gate: Least gain that is asked for.
        margin: ``gain - gate``.
        speed_ratio: Tokens/s of the tree over the fastest other.
    """

    go: bool
    tree: Result
    chain: Result | None
    fastest_other: Result
    gain: float
    interval: tuple[float, float] | None
    gate: float
    margin: float
    speed_ratio: float


@dataclass(frozen=True)
class Replay:
    """All that a replay found.

    Attributes:
        num_recordings: Outputs replayed.
        num_positions: Output positions where a step could start.
        dense: Whether they have trees at every position.
        drafter: Who drafted those; None where unknown.
        cost: Where the cost of a step comes from.
        draft_ms: Milliseconds of drafting added to every step with drafts.
        results: All strategies and budgets.
        rescue: Where spines failed; None without dense recordings.
        verdict: Go or no-go; None where no tree was replayed.
        notes: What was left out, and why.
    """

    num_recordings: int
    num_positions: int
    dense: bool
    drafter: str | None
    cost: str
    draft_ms: float
    results: tuple[Result, ...]
    rescue: Rescue | None
    verdict: Verdict | None
    notes: tuple[str, ...]
