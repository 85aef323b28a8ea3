"""Which tree is best at which batch, and where that decision changes: ``sweep_batches``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from numpy.typing import ArrayLike

from treedecode import topology
from treedecode.expect import RankProbs, expected_tokens, node_reach
from treedecode.planner import plan_tree
from treedecode.shape import TreeShape

Kind = Literal["tree", "chain", "nothing"]

StepCost = Callable[[int, int], float]
"""Milliseconds of a step by batch and by rows of all its requests together (at least one per request)."""

# A node must gain more than rounding does: at full acceptance beyond the ridge every size is worth the same.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Choice:
    """One size of tree at one batch, the same tree for every request.

    Attributes:
        batch: requests in the step.
        num_drafted: nodes of each request's tree, root excluded; 0 is plain decoding.
        kind: "tree" if a node has two children, "chain" if none has, "nothing" without drafted nodes.
        expected_tokens: E[L], tokens per request and step.
        step_ms: what the step costs.
        speedup: tokens per second over plain decoding at the same batch.
    """

    batch: int
    num_drafted: int
    kind: Kind
    expected_tokens: float
    step_ms: float
    speedup: float

    @property
    def verified_tokens(self) -> int:
        """Rows of the step, roots included."""
        return self.batch * (1 + self.num_drafted)


@dataclass(frozen=True)
class Span:
    """Neighbouring batches with the same kind of best tree, first and last included."""

    kind: Kind
    first_batch: int
    last_batch: int


@dataclass(frozen=True)
class Sweep:
    """The best sizes by batch.

    Attributes:
        planned: the best tree of the largest size that was looked at; its prefixes are the best smaller ones.
        best: by batch, the best size of tree.
        chains: by batch, the best length of chain.
    """

    planned: TreeShape
    best: tuple[Choice, ...]
    chains: tuple[Choice, ...]

    def shape_of(self, choice: Choice) -> TreeShape:
        """The tree of one of ``best``."""
        return self.planned.prefix(choice.num_drafted)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the kind of the best tree changes, over the batches looked at."""
        spans: list[Span] = []
        for choice in self.best:
            if spans and spans[-1].kind == choice.kind:
                spans[-1] = Span(choice.kind, spans[-1].first_batch, choice.batch)
            else:
                spans.append(Span(choice.kind, choice.batch, choice.batch))
        return tuple(spans)


def sweep_batches(
    rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]],
    cost: StepCost,
    batches: Iterable[int],
    max_drafted: int = 64,
) -> Sweep:
    """Find the tree and the chain with the most tokens per second at every batch.

    All requests accept alike and get the same tree. Every size from 0 to ``max_drafted`` is looked at: measured costs
    are staircases and a roofline has a flat piece, so a rule that stops at the first node that does not pay would
    stop too early. The smallest of equal sizes wins.

    Args:
        rank_probs: by rank ``[ranks]``, or one row per depth; see ``RankProbs``.
        cost: milliseconds of a step by batch and rows, such as ``lambda batch, rows: curve.ms(rows)``.
        batches: at least 1 each, increasing.
        max_drafted: the most nodes per request, root excluded.

    Raises:
        TypeError, ValueError: as ``RankProbs``; a count is not an integer, too small, or out of order.
    """
    sizes = topology.int_tuple(tuple(batches), "batch", "position")
    for previous, size in zip((0, *sizes), sizes, strict=False):
        if size <= previous:
            raise ValueError(f"batches must be at least 1 and increase: {size} follows {previous}")
    probs = RankProbs(rank_probs)
    planned = plan_tree(rank_probs, max_drafted)
    tree_tokens = [1.0]
    for reach in node_reach(planned, rank_probs)[1:]:
        tree_tokens.append(tree_tokens[-1] + reach)
    chain_tokens, reach = [1.0], 1.0
    while len(chain_tokens) <= max_drafted:
        reach *= max(probs.at(len(chain_tokens)), default=0.0)
        if reach == 0.0:
            break
        chain_tokens.append(chain_tokens[-1] + reach)
    # the nodes below this size stand in one line
    chain_until = next((n for n in range(1, planned.num_nodes) if planned.parent_tuple[n] != n - 1), None)
    chain_until = planned.num_drafted if chain_until is None else chain_until - 1
    return Sweep(
        planned,
        tuple(_best(tree_tokens, cost, batch, chain_until) for batch in sizes),
        tuple(_best(chain_tokens, cost, batch, max_drafted) for batch in sizes),
    )


def judge_tree(
    shape: TreeShape,
    rank_probs: ArrayLike | Sequence[float] | Sequence[Sequence[float]],
    cost: StepCost,
    batch: int,
) -> Choice:
    """What one given tree does at one batch.

    Raises:
        TypeError, ValueError: as ``expected_tokens``; ``batch`` is not an integer of at least 1.
    """
    batch = topology.count(batch, "batch", minimum=1)
    tokens = expected_tokens(shape, rank_probs)
    return _choice(batch, shape.num_drafted, shape.is_chain, tokens, cost)


def _best(tokens: list[float], cost: StepCost, batch: int, chain_until: int) -> Choice:
    """The best size at one batch; ``tokens[n]`` is E[L] of ``n`` nodes, a chain up to ``chain_until``."""
    best, best_tokens, best_ms = 0, tokens[0], cost(batch, batch)
    for n in range(1, len(tokens)):
        ms = cost(batch, batch * (1 + n))
        if tokens[n] * best_ms > best_tokens * ms * (1.0 + _ROUNDING):
            best, best_tokens, best_ms = n, tokens[n], ms
    return _choice(batch, best, best <= chain_until, best_tokens, cost)


def _choice(batch: int, num_drafted: int, is_chain: bool, tokens: float, cost: StepCost) -> Choice:
    kind: Kind = ("chain" if is_chain else "tree") if num_drafted else "nothing"
    step_ms = cost(batch, batch * (1 + num_drafted))
    return Choice(batch, num_drafted, kind, tokens, step_ms, tokens * cost(batch, batch) / step_ms)
