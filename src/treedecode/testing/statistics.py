"""Chi-squared tests of samplers on vocabularies too large to enumerate, position by position.

Both models are tables: row ``target[d][path]`` is the target's distribution after ``path``, d tokens. ``simulate``
draws trees from the drafter, walks them and lets the target continue what was emitted; ``chi_squared`` compares the
tokens at every position with the target's rows after the tokens before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from treedecode.accept_batch import BatchAcceptance
from treedecode.accept_sampling import accept_sampled_batch
from treedecode.tree import TreeShape


@dataclass(frozen=True)
class Tables:
    """Two models that know a few tokens of context.

    Attributes:
        target: one table per position, float64 ``[V ** d, V]`` for position d, or ``[1, V]`` for all contexts.
        draft: likewise.
    """

    target: tuple[Tensor, ...]
    draft: tuple[Tensor, ...]

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.target[0].shape[1]


def opposed_tables(
    vocab_size: int, depth: int, seed: int, context: bool = True, scale: float = 1.0
) -> Tables:
    """Normal target logits, and draft logits that are minus the target's: the hardest drafter.

    Args:
        vocab_size: number of tokens.
        depth: of the trees; there are ``depth + 1`` positions.
        seed: same seed, same tables.
        context: whether every path has a row of its own.
        scale: standard deviation of the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = [vocab_size**d if context else 1 for d in range(depth + 1)]
    logits = [scale * torch.randn(n, vocab_size, generator=generator, dtype=torch.float64) for n in rows]
    return Tables(
        tuple(table.softmax(-1) for table in logits), tuple((-table).softmax(-1) for table in logits)
    )


def simulate(
    tables: Tables,
    shape: TreeShape,
    method: str,
    trials: int,
    seed: int,
    shared_stream: bool = False,
    sampler: Callable[..., BatchAcceptance] = accept_sampled_batch,
    chunk: int = 20_000,
) -> Tensor:
    """Tokens of ``trials`` independent steps, continued by the target, int64 ``[trials, max_depth + 1]``.

    Args:
        tables: both models.
        shape: of every tree; siblings in draw order.
        method: as in ``accept_sampled_batch``; says how siblings are drawn, too.
        trials: number of steps.
        seed: same seed, same tokens.
        shared_stream: draw the drafts with the numbers that the walk uses: a fault, for the tests of the tests.
        sampler: called like ``accept_sampled_batch``.
        chunk: steps walked at once.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for start in range(0, trials, chunk):
        size = min(chunk, trials - start)
        parts.append(_simulate(tables, shape, method, size, generator, shared_stream, sampler))
    return torch.cat(parts)


def _simulate(
    tables: Tables,
    shape: TreeShape,
    method: str,
    trials: int,
    generator: torch.Generator,
    shared_stream: bool,
    sampler: Callable[..., BatchAcceptance],
) -> Tensor:
    def numbers(columns: int) -> Tensor:
        return torch.rand(trials, columns, generator=generator, dtype=torch.float64)

    drafting = numbers(shape.num_nodes)
    verifying = drafting.roll(-1, 1) if shared_stream else numbers(shape.num_nodes)
    contexts = [torch.zeros(trials, dtype=torch.int64)]
    tokens = [torch.zeros(trials, dtype=torch.int64)]
    for node in range(1, shape.num_nodes):
        parent = shape.parent_tuple[node]
        row = _rows(tables.draft, shape.depth_tuple[parent], contexts[parent])
        if not method.endswith("with_replacement"):
            for elder in shape.children(parent):
                if elder < node:
                    row = row.scatter(1, tokens[elder][:, None], 0.0)
        tokens.append(_drawn(row, drafting[:, node]))
        contexts.append(contexts[parent] * tables.vocab_size + tokens[-1])
    rows = [
        torch.stack(
            [_rows(model, shape.depth_tuple[node], contexts[node]) for node in range(shape.num_nodes)], 1
        )
        for model in (tables.target, tables.draft)
    ]
    parents = torch.tensor([shape.parent_tuple]).expand(trials, -1)
    result = sampler(
        parents, torch.stack(tokens, 1), rows[0], verifying, rows[1], method, max_depth=shape.max_depth
    )
    emitted = result.token_ids
    context = torch.zeros(trials, dtype=torch.int64)
    final = []
    for position in range(shape.max_depth + 1):
        continued = _drawn(_rows(tables.target, position, context), numbers(1)[:, 0])
        final.append(torch.where(emitted[:, position] < 0, continued, emitted[:, position]))
        context = context * tables.vocab_size + final[-1]
    return torch.stack(final, 1)


def _rows(model: tuple[Tensor, ...], position: int, context: Tensor) -> Tensor:
    table = model[position]
    return table.expand(len(context), -1) if len(table) == 1 else table[context]


def _drawn(weights: Tensor, numbers: Tensor) -> Tensor:
    cumulative = weights.cumsum(-1)
    points = (numbers * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, points, right=True)[:, 0].clamp(max=weights.shape[1] - 1)


@dataclass(frozen=True)
class ChiSquared:
    """A chi-squared test.

    Attributes:
        statistic: sum over the cells of (observed - expected)^2 / expected.
        degrees: degrees of freedom.
    """

    statistic: float
    degrees: int

    @property
    def threshold(self) -> float:
        """``degrees + 10 sqrt(2 degrees)``: ten standard deviations above the mean."""
        return self.degrees + 10 * math.sqrt(2 * self.degrees)

    @property
    def passed(self) -> bool:
        """Whether the statistic is below the threshold."""
        return self.statistic < self.threshold


def chi_squared(tables: Tables, tokens: Tensor, position: int, min_expected: float = 5.0) -> ChiSquared:
    """Compares the tokens at ``position`` with the target's rows, given the tokens before.

    Cells with less than ``min_expected`` expected counts are pooled, by context.

    Args:
        tables: the models.
        tokens: ``[trials, positions]``, as ``simulate`` gives them.
        position: which column.
        min_expected: the smallest cell.
    """
    table, vocab_size = tables.target[position], tables.vocab_size
    context = torch.zeros(len(tokens), dtype=torch.int64)
    if len(table) > 1:
        for earlier in range(position):
            context = context * vocab_size + tokens[:, earlier]
    cells = torch.bincount(context * vocab_size + tokens[:, position], minlength=table.numel())
    observed = cells.view(table.shape).double()
    expected = observed.sum(1, keepdim=True) * table
    large = expected >= min_expected
    difference = (observed - expected) ** 2 / expected.clamp(min=1e-300)
    pooled_expected = expected.masked_fill(large, 0).sum(1)
    pooled_observed = observed.masked_fill(large, 0).sum(1)
    pooled = pooled_expected >= min_expected
    pooled_difference = (pooled_observed - pooled_expected) ** 2 / pooled_expected.clamp(min=1e-300)
    statistic = difference[large].sum() + pooled_difference[pooled].sum()
    degrees = (large.sum(1) + pooled.long() - 1).clamp(min=0).sum()
    return ChiSquared(float(statistic), int(degrees))
