"""Replays recordings with every strategy and budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treedecode.models.progress import Progress, silent
from treedecode.reliability import Reliability
from treedecode.replay.costs import StepCost
from treedecode.replay.data import Selection
from treedecode.replay.errors import live_error, published_error
from treedecode.replay.gate import Cell, decide, interval
from treedecode.replay.ranks import measure_rescue
from treedecode.replay.recording import Recording
from treedecode.replay.results import Budget, Replay, Result
from treedecode.replay.strategies import (
    RERUN,
    TEXT_ONLY,
    Chain,
    Dynamic,
    LeafSiblings,
    Plain,
    Recorded,
    Rerun,
    StaticOptimal,
    Strategy,
)
from treedecode.replay.walk import AUTO_MAX_DRAFTED, WHOLE, mean_emitted, walk

# Of a drafter without a model where the recordings did not time one: a tree of tens of nodes, on one core.
_RERUN_MS = 1.0


def replay(
    selection: Selection,
    budgets: Sequence[Budget],
    cost: StepCost,
    width: int = 3,
    gate: float = 0.3,
    stage: Progress = silent,
) -> Replay:
    """Replays all strategies that the recordings allow.

    On dense recordings: the chain of the recorded drafter's best candidates, leaf siblings of one width, the best
    static tree, and the best tree of every step (dynamic) where candidates have scores. On others: the recorded steps.
    On all: plain decoding, and the drafters that need no model, run again.

    Args:
        selection: What is replayed.
        budgets: Drafted nodes per step, at least 1; "auto" sizes scored trees by cost, step by step.
        cost: Of a step.
        width: Of the leaf siblings, the spine's own node included.
        gate: Least gain in tokens per step that makes a tree worth its trouble.
        stage: Called with the name of every strategy before it is replayed; returns a context manager.

    Raises:
        ValueError: A recording has no tree where it should have one.
    """
    recordings = selection.replayed
    cells = []
    for strategy, budget in _plan(recordings, budgets, width):
        with stage(f"Replaying {strategy.name}, {budget} nodes"):
            cells.append(_cell(strategy, budget, selection, cost))
    dense = recordings[0].dense
    return Replay(
        num_recordings=len(recordings),
        num_positions=sum(recording.num_positions for recording in recordings),
        dense=dense,
        drafter=recordings[0].drafter,
        cost=cost.origin,
        draft_ms=cost.draft_ms,
        results=tuple(cell.result for cell in cells),
        rescue=measure_rescue(recordings) if dense else None,
        verdict=decide(cells, gate),
        notes=tuple(_notes(selection, budgets)),
    )


def _plan(
    recordings: Sequence[Recording], budgets: Sequence[Budget], width: int
) -> Iterator[tuple[Strategy, Budget]]:
    """Every strategy with every budget that it can be replayed at."""
    numbers = sorted({budget for budget in budgets if isinstance(budget, int)})
    ordered: list[Budget] = [*numbers, *(["auto"] if "auto" in budgets else [])]
    yield Plain(), 0
    if recordings[0].dense:
        limit = _recorded_budget(recordings)
        trees = [tree for recording in recordings for tree in recording.trees.values() if tree.num_drafted]
        scored = all(tree.scores is not None for tree in trees)
        strategies = [
            Chain(),
            LeafSiblings(width),
            StaticOptimal(recordings),
            *([Dynamic()] if scored else []),
        ]
        for strategy in strategies:
            for budget in ordered:
                small = isinstance(budget, int) and (limit is None or budget <= limit)
                if small or (budget == "auto" and scored and strategy.sizes_itself):
                    yield strategy, budget
    elif all(recording.trees for recording in recordings):
        recorded = {recording.budget for recording in recordings}
        if recorded != {0}:  # plain decoding is there already
            only = recorded.pop() if len(recorded) == 1 else None
            chains = all(tree.shape.is_chain for recording in recordings for tree in recording.trees.values())
            yield Recorded("chain" if chains else "tree"), "mixed" if only is None else only
    for name in RERUN:
        for budget in ordered:
            yield Rerun(name), budget  # counts what it knows, so a fresh one each


def _recorded_budget(recordings: Sequence[Recording]) -> int | None:
    """The largest budget for which recorded trees are whole; None where whole trees are all the drafter has."""
    budgets = [AUTO_MAX_DRAFTED if r.budget == "auto" else r.budget for r in recordings]
    return min((budget for budget in budgets if isinstance(budget, int)), default=None)


def _cell(strategy: Strategy, budget: Budget, selection: Selection, cost: StepCost) -> Cell:
    recordings = selection.replayed
    size = WHOLE if isinstance(strategy, Recorded) else None if budget == "auto" else int(budget)
    walks = tuple(walk(recording, strategy, size, cost.forward) for recording in recordings)
    exact = _is_exact(strategy, budget, recordings)
    error = None
    if not exact:
        error = live_error(strategy, budget, recordings, walks, selection.live) or published_error(
            strategy, budget
        )
    reliability = Reliability()
    for one in walks:
        reliability.merge(one.reliability)
    num_steps, num_emitted = sum(one.num_steps for one in walks), sum(sum(one.num_emitted) for one in walks)
    draft_ms = _draft_ms(strategy, recordings[0].drafter, cost.draft_ms)
    result = Result(
        strategy=strategy.name,
        kind=strategy.kind,
        budget=budget,
        num_steps=num_steps,
        num_emitted=num_emitted,
        mean_emitted=mean_emitted(walks),
        interval=interval(walks),
        mean_drafted=sum(sum(one.num_drafted) for one in walks) / num_steps,
        tokens_per_s=1e3 * num_emitted / sum(one.ms(cost.forward, draft_ms) for one in walks),
        basis="exact" if exact else "estimate",
        error=error,
        rows_known=_rows_known(strategy),
        reach_error=reliability.error,
    )
    # the recorded drafter, if it can be run again, sees then what it would see live
    return Cell(result, walks, weighed=not (isinstance(strategy, Dynamic) and recordings[0].drafter in RERUN))


def _is_exact(strategy: Strategy, budget: Budget, recordings: Sequence[Recording]) -> bool:
    """Whether a live run gives the same counts: the recorded steps and their drafter, and drafters that use no rows."""
    if isinstance(strategy, Plain | Recorded):
        return True
    if not isinstance(strategy, Rerun) or budget == "auto":  # sized by the cost of the day
        return False
    return strategy.name in TEXT_ONLY or all(
        not r.dense and (r.drafter, r.budget) == (strategy.name, budget) for r in recordings
    )


def _rows_known(strategy: Strategy) -> float | None:
    if not isinstance(strategy, Rerun) or strategy.name in TEXT_ONLY:
        return None
    return strategy.num_known / max(1, strategy.num_verified)


def _draft_ms(strategy: Strategy, recorded: str | None, draft_ms: float) -> float:
    if isinstance(strategy, Plain) or strategy.name == "prompt-lookup":  # a look-up takes next to no time
        return 0.0
    if isinstance(strategy, Rerun) and recorded not in RERUN:
        return _RERUN_MS
    return draft_ms


def _notes(selection: Selection, budgets: Sequence[Budget]) -> Iterator[str]:
    recordings = selection.replayed
    if recordings[0].dense:
        limit = _recorded_budget(recordings)
        if limit is not None and any(isinstance(budget, int) and budget > limit for budget in budgets):
            yield (
                f"The recorded trees have at most {limit} drafted nodes: beyond that only the drafters that are run "
                "again are replayed."
            )
    else:
        yield (
            "Chain, leaf siblings, static and dynamic trees need a tree at every output position: record with "
            "treedecode generate --trace FILE --dense, or log draft_ids."
        )
    if selection.unused:
        yield f"Left out, because their outputs are not among the dense ones: {', '.join(selection.unused)}."
