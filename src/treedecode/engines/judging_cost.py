"""What judging the rows of a step costs, apart from the forward pass: on rows of text, and for sampled requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from treedecode.cost import CostCurve
from treedecode.engines.cache import KVCache
from treedecode.engines.judge import Judging
from treedecode.engines.params import SamplingParams
from treedecode.engines.step import StepInput
from treedecode.engines.target import Target
from treedecode.surface import Cost
from treedecode.tree import DraftTree

# Rows that judging is timed with, and passes that make them like text.
_TYPICAL_ROWS, _TYPICAL_ROUNDS = 16, 2
# Row counts and rounds of what a sampled request costs more: half a second for a vocabulary of 262,144.
_COUNTS, _ROUNDS = (1, 4, 16), 3
_LEAST_MS = 1e-3

_EXTRA: WeakKeyDictionary[Target, dict[Judging, CostCurve]] = WeakKeyDictionary()


@torch.inference_mode()
def typical_rows(target: Target, cache: KVCache) -> Tensor:
    """Features of up to 16 rows of the kind of text that the model writes; the first rows of ``cache`` are written.

    After noise a model is undecided, and a screened head scores many more candidates than it does for text. Rows whose
    tokens are the model's own choices after the rows before them (Jacobi decoding, arXiv:2305.10427) come near to text
    within two rounds.
    """
    cache.length = 0
    tokens = [token % target.vocab_size for token in range(1, 1 + min(_TYPICAL_ROWS, cache.capacity))]

    def features() -> Tensor:
        return target.forward(StepInput.of_chain(tokens, 0, target.device, target.dtype), cache)

    for _ in range(_TYPICAL_ROUNDS):
        tokens = tokens[:1] + target.top(features(), 1)[1][:-1, 0].tolist()
    return features()


def judged_cost(
    target: Target, cost: Cost, judging: Judging, clock: Callable[[], float] = time.perf_counter
) -> Cost:
    """The cost of steps whose rows are judged so, from that of greedy steps.

    Sampling, penalties and traces need all logits of every row, which can cost more than the rest of it. What they
    cost more is timed at the first request of the kind, half a second or so, and kept for later ones.

    Args:
        target: The model.
        cost: Of greedy steps, as ``measure_cost`` or a calibration has it.
        judging: Of the request.
        clock: Seconds, for tests.
    """
    if not judging.needs_logits:
        return cost
    known = _EXTRA.setdefault(target, {})
    kind = judging.kind(target.vocab_size)
    if kind not in known:
        known[kind] = _extra(target, kind, clock)
    return cost.plus(known[kind])


@torch.inference_mode()
def _extra(target: Target, judging: Judging, clock: Callable[[], float]) -> CostCurve:
    """Milliseconds by rows that ``judging`` takes beyond the greedy candidates of the same rows."""
    room = _TYPICAL_ROWS if target.max_positions is None else min(_TYPICAL_ROWS, target.max_positions)
    rows = typical_rows(target, target.new_cache(room))
    counts = [count for count in _COUNTS if count <= len(rows)]
    greedy = Judging(SamplingParams(), judging.num_candidates)

    def ms(kind: Judging, count: int) -> float:
        tree = DraftTree.trusted([node - 1 for node in range(count)], [1 % target.vocab_size] * count)
        began = clock()
        kind(target, rows[:count], tree, tree.token_tuple, 0)
        return 1e3 * (clock() - began)

    least = {(kind, count): float("inf") for count in counts for kind in (greedy, judging)}
    for _ in range(_ROUNDS):
        for kind, count in least:
            least[kind, count] = min(least[kind, count], ms(kind, count))
    extra = [max(_LEAST_MS, least[judging, count] - least[greedy, count]) for count in counts]
    return CostCurve.fit_convex(counts, extra)
