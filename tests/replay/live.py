"""Live runs of tiny models, traced; what a replay must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.engines.tiny import LONG, PROMPTS, target_of
from treedecode.cost import CostCurve
from treedecode.engines.loop import Decoder
from treedecode.engines.params import SamplingParams
from treedecode.engines.request import Request
from treedecode.engines.tracing import TraceObserver
from treedecode.replay.recording import Recording
from treedecode.replay.source import read_recordings
from treedecode.replay.walk import Walk
from treedecode.trace import TraceWriter
from treedecode.tree import DraftTree

PROMPT = PROMPTS[LONG]
COST = CostCurve([1, 8, 16, 48], [10.0, 12.0, 15.0, 40.0])


@dataclass(frozen=True)
class Live:
    """A run as its own statistics tell it, and the recording of its trace."""

    recording: Recording
    path: Path
    token_ids: list[int]
    trees: list[DraftTree]
    num_drafted: tuple[int, ...]
    num_accepted: tuple[int, ...]
    num_emitted: tuple[int, ...]

    def agrees(self, walk: Walk) -> bool:
        return (walk.num_drafted, walk.num_accepted, walk.num_emitted) == (
            self.num_drafted,
            self.num_accepted,
            self.num_emitted,
        )

    @property
    def mean_emitted(self) -> float:
        return sum(self.num_emitted) / len(self.num_emitted)


def record(
    path: Path,
    drafter: Any = "merged",
    budget: int | None = 8,
    count: int = 80,
    dense: bool = False,
    prompt: list[int] = PROMPT,
    stop_ids: tuple[int, ...] = (),
    family: str = "gemma3",
    **sampling: Any,
) -> Live:
    """Decodes with a tiny model and reads the trace back."""
    request = Request(
        tuple(prompt), count, budget, SamplingParams(**sampling), frozenset(stop_ids), dense=dense
    )
    target = target_of(family, "fused")
    model: Any = SimpleNamespace(
        path="tiny", config=SimpleNamespace(model_type=family), tokenizer=None, dtype=target.dtype,
        device=target.device, implementation="fused", target=target, cost=COST,
    )  # fmt: skip
    settings = {
        "max_new_tokens": count,
        "budget": "auto" if budget is None else budget,
        "drafter": getattr(drafter, "name", drafter),
        "dense": dense,
    }
    trees: list[DraftTree] = []
    accepted: list[int] = []

    def observe(tree: Any, verified: Any, acceptance: Any, prefix_len: Any, step_ms: Any) -> None:
        trees.append(tree)
        accepted.append(acceptance.num_accepted)

    with TraceWriter(path) as writer:
        observer = TraceObserver(writer, model, request, settings, observe)
        decoder = Decoder.of(target, request, drafter, COST, observer)
        observer.start()
        token_ids = [token for emission in decoder.run() for token in emission.token_ids]
    (recording,) = read_recordings([path])
    stats = decoder.stats.build(len(token_ids))
    return Live(
        recording,
        path,
        token_ids,
        trees,
        stats.nodes_per_step,
        tuple(accepted),
        stats.emitted_per_step,
    )
