"""From logits to the target's own choice after every node: penalties, warpers and one keyed draw per node.

The noise of a draw depends on the request's seed and the absolute output position only, so a request gives the same
tokens with or without trees, at any budget. Order and meaning of the steps follow transformers' ``generate``:
repetition penalty, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import Tensor

from treedecode.drawing import draw
from treedecode.engines.candidates import top_candidates
from treedecode.tree import DraftTree

# Rows of a nucleus that are looked at before the whole vocabulary is sorted (CPU only).
_NUCLEUS_POOL = 1024


@dataclass(frozen=True)
class SamplingParams:
    """How the target chooses a token.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: Keep the k likeliest tokens, or None.
        top_p: Keep the smallest set whose probability reaches ``top_p`` (0 < top_p <= 1), or None.
        min_p: Drop tokens below ``min_p`` times the likeliest one's probability (0 <= min_p <= 1), or None.
        repetition_penalty: Divide positive and multiply negative logits of every token seen before (Keskar et al.
            2019, CTRL, section 4.1), or None.
        seed: Key of the noise.

    Raises:
        TypeError: A value is not a number of the right kind.
        ValueError: A value is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, low=0.0)
        if self.top_k is not None:
            _check_integer("top_k", self.top_k, low=1)
        if self.top_p is not None:
            _check_real("top_p", self.top_p, low=0.0, high=1.0, above=True)
        if self.min_p is not None:
            _check_real("min_p", self.min_p, low=0.0, high=1.0)
        if self.repetition_penalty is not None:
            _check_real("repetition_penalty", self.repetition_penalty, low=0.0, above=True)
        _check_integer("seed", self.seed, low=0)

    @property
    def greedy(self) -> bool:
        """Whether the choice is the arg max."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether logits depend on the tokens before."""
        return self.repetition_penalty is not None and self.repetition_penalty != 1


def _check_real(name: str, value: object, low: float, high: float = math.inf, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if (
        not (low < number if above else low <= number)
        or number > high
        or math.isinf(number)
        or math.isnan(number)
    ):
        bounds = f"{'above' if above else 'at least'} {low:g}" + (
            f" and at most {high:g}" if high < math.inf else ""
        )
        raise ValueError(f"{name} must be {bounds}, got {value!r}")


def _check_integer(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if int(value) < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def apply_repetition_penalty(logits: Tensor, tree: DraftTree, history: Tensor, penalty: float) -> Tensor:
    """Penalises, for every node, the tokens of the history and of the node's own path.

    Args:
        logits: ``[N, vocab]``; row i follows node i. Not modified.
        tree: The step's tree.
        history: int64, distinct token ids of prompt and output, the root's included.
        penalty: See :class:`SamplingParams`.
    """
    seen = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    seen[:, history] = True
    if tree.num_drafted:
        ancestors = tree.shape.mask()
        rows, nodes = ancestors.nonzero()
        seen[
            torch.from_numpy(rows).to(seen.device), torch.from_numpy(tree.token_ids[nodes]).to(seen.device)
        ] = True
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def processed_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities ``[N, vocab]`` (float32 or wider) after temperature, top-k, top-p and min-p."""
    scores = logits.float() if logits.dtype.itemsize < 4 else logits
    scores = scores / params.temperature
    if params.top_k is not None and params.top_k < scores.shape[-1]:
        kth = scores.topk(params.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, -math.inf)
    probs = scores.softmax(-1)
    if params.top_p is not None and params.top_p < 1:
        probs = _nucleus(probs, params.top_p)
    if params.min_p:
        probs = probs.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), 0.0)
    return probs / probs.sum(-1, keepdim=True)


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Zeroes all outside the smallest set of likeliest tokens with total probability of at least ``top_p``.

    Tokens as likely as the last of the set are kept as well (as in top-k): a row's set then depends neither on the
    order in which equal values are sorted nor on the other rows of the step.
    """
    pool = min(_NUCLEUS_POOL, probs.shape[-1])
    if probs.device.type == "cpu" and bool((probs.topk(pool, dim=-1).values.sum(-1) >= top_p).all()):
        values = probs.topk(pool, dim=-1).values
    else:
        values = probs.sort(dim=-1, descending=True).values
    keep = values.cumsum(-1) - values < top_p  # the mass before a token has not reached top_p yet
    least = values.gather(-1, keep.sum(-1, keepdim=True) - 1)
    return probs.masked_fill(probs < least, 0.0)


def choose(
    logits: Tensor, params: SamplingParams, uniforms: Tensor | None, ids: Tensor | None = None
) -> Tensor:
    """The target's choice after each row, int64 ``[N]``.

    Args:
        logits: ``[N, vocab]``, penalties applied.
        params: How to choose.
        uniforms: ``[N]`` float64 in [0, 1), one per row; None for greedy.
        ids: ``top_candidates`` of the same logits if at hand; its first column is the greedy choice.
    """
    if params.greedy:
        return (top_candidates(logits, 1)[1] if ids is None else ids)[:, 0]
    if uniforms is None:
        raise ValueError("sampling needs one uniform per row, got None")
    return draw(processed_probs(logits, params), uniforms)
