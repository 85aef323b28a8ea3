"""Which drafted nodes the target accepts, and what is emitted.

Every walk starts at the root and follows the child whose token is the target's choice at the current node.
The last choice is always emitted, as the correction or, after a full match, as the bonus: a step emits
accepted + 1 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from treedecode.topology import count, int_tuple
from treedecode.tree import DraftTree

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Acceptance:
    """The outcome of one walk.

    Attributes:
        path: accepted nodes, root first: ``[0, ...]``.
        token_ids: the emitted tokens: those of ``path[1:]``, then the target's own choice after the last
            node.
        num_accepted: accepted drafted nodes, ``len(path) - 1``.
    """

    path: list[int]
    token_ids: list[int]
    num_accepted: int

    def cut(self, num_tokens: int) -> Acceptance:
        """Keep the first ``num_tokens`` emitted tokens, up to a stop or a cap, and the nodes that gave them."""
        token_ids = self.token_ids[: count(num_tokens, "num_tokens")]
        path = self.path[: 1 + len(token_ids)]
        return Acceptance(path, token_ids, len(path) - 1)


def accept_greedy(tree: DraftTree, target_ids: ArrayLike | Sequence[int]) -> Acceptance:
    """Walk ``tree`` along the target's greedy choices.

    Args:
        tree: the verified tree.
        target_ids: ``[N]`` integers, the target's choice after each node.

    Raises:
        TypeError: a target id is not an integer.
        ValueError: there is not one target id per node, or an emitted one is negative.
    """
    choices = int_tuple(target_ids, "target id")
    parents, tokens = tree.shape.parent_tuple, tree.token_tuple
    if len(choices) != len(parents):
        raise ValueError(
            f"expected one target id per node: {len(parents)} nodes, got {len(choices)} target ids"
        )
    node, choice = 0, choices[0]
    path, emitted = [0], [choice]
    # a child stands after its parent, so one pass over the nodes meets the path in order
    for candidate in range(1, len(parents)):
        if parents[candidate] == node and tokens[candidate] == choice:
            node, choice = candidate, choices[candidate]
            path.append(node)
            emitted.append(choice)
    if choice < 0:
        raise ValueError(f"target ids must be at least 0: node {node} has target id {choice}")
    return Acceptance(path, emitted, len(path) - 1)


def accept_sampled(
    tree: DraftTree,
    target_probs: ArrayLike | torch.Tensor,
    draft_probs: ArrayLike | torch.Tensor | None = None,
    method: str = "one_draw",
    uniforms: ArrayLike | Sequence[float] | None = None,
    generator: np.random.Generator | torch.Generator | None = None,
) -> Acceptance:
    """Walk ``tree`` along tokens drawn from the target's distribution.

    ``"one_draw"`` draws one token per visited node by inverse CDF (the first token whose cumulative
    probability exceeds the uniform) and follows the child that matches. The draw does not depend on the
    drafts, so the emitted tokens have the target's distribution whatever was drafted, and the same uniforms
    emit the same tokens with any tree.

    Args:
        tree: the verified tree.
        target_probs: ``[N, V]``, the processed distribution after each node.
        draft_probs: ``[N, V]``, row i = the distribution node i's children were drawn from; ``None`` for
            deterministic drafts. Checked, and of no influence on ``"one_draw"``.
        method: ``"one_draw"``.
        uniforms: numbers in [0, 1), the k-th for the k-th emitted token; at most ``max_depth + 1`` are used.
        generator: numpy or torch generator to draw from if no uniforms are given; torch's default one if
            neither is.

    Raises:
        TypeError: probabilities that are not numbers, or a generator of another kind.
        ValueError: another method, a wrong shape, a negative, NaN or not normalised row, a drafted token
            outside the vocabulary, a uniform outside [0, 1), too few uniforms, or uniforms and a generator
            together.
    """
    if method != "one_draw":
        raise ValueError(f"method must be 'one_draw', got {method!r}")
    probs = _distributions(target_probs, "target_probs", tree.num_nodes)
    if draft_probs is not None:
        drafted = _distributions(draft_probs, "draft_probs", tree.num_nodes)
        if drafted.shape != probs.shape:
            raise ValueError(f"draft_probs must have target_probs' shape {probs.shape}, got {drafted.shape}")
    vocab_size = probs.shape[1]
    for node in range(1, tree.num_nodes):
        if tree.token_tuple[node] >= vocab_size:
            raise ValueError(
                f"drafted tokens must be in the target's vocabulary of {vocab_size}: "
                f"node {node} has token {tree.token_tuple[node]}"
            )
    draws = _draws(uniforms, generator)
    path, emitted = [0], []
    while True:
        uniform = next(draws, None)
        if uniform is None:
            raise ValueError(f"uniforms ran out: expected at least {len(emitted) + 1}, got {len(emitted)}")
        token = _inverse_cdf(probs[path[-1]], uniform)
        emitted.append(token)
        matching = [child for child in tree.shape.children(path[-1]) if tree.token_tuple[child] == token]
        if not matching:
            return Acceptance(path, emitted, len(path) - 1)
        path.append(matching[0])


def _distributions(values: ArrayLike | torch.Tensor, what: str, num_nodes: int) -> np.ndarray:
    tolerance = 1e-4
    if not isinstance(values, (np.ndarray, list, tuple)):
        import torch

        tensor = torch.as_tensor(values).detach().cpu()
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tolerance, tensor = 1e-2, tensor.float()
        values = tensor.numpy()
    probs = np.asarray(values)
    if probs.dtype.kind not in "fiu":
        raise TypeError(f"{what} must be numbers, got dtype {probs.dtype}")
    if probs.ndim != 2 or probs.shape[0] != num_nodes or probs.shape[1] == 0:
        raise ValueError(f"{what} must have shape [N, V] with N = {num_nodes} nodes, got {probs.shape}")
    sums = probs.sum(axis=1, dtype=np.float64)
    bad = np.flatnonzero((probs.min(axis=1) < 0) | ~(np.abs(sums - 1.0) <= tolerance))
    if bad.size:
        row = int(bad[0])
        raise ValueError(
            f"{what} rows are distributions (no negative, no NaN, sum 1 within {tolerance}): "
            f"row {row} has minimum {probs[row].min()} and sum {sums[row]}"
        )
    return probs


def _inverse_cdf(probs: np.ndarray, uniform: float) -> int:
    cumulative = np.cumsum(probs, dtype=np.float64)
    total = float(cumulative[-1])
    # rounding in low precision must scale with the distribution, not pile up on its last token
    threshold = uniform if abs(total - 1.0) < 1e-12 else uniform * total
    token = int(np.searchsorted(cumulative, threshold, side="right"))
    return token if token < len(probs) else int(np.flatnonzero(probs)[-1])


def _draws(
    uniforms: ArrayLike | Sequence[float] | None, generator: np.random.Generator | torch.Generator | None
) -> Iterator[float]:
    if uniforms is not None:
        if generator is not None:
            raise ValueError("give uniforms or a generator, got both")
        numbers = np.atleast_1d(np.asarray(uniforms, np.float64))
        if numbers.ndim != 1 or not np.all((numbers >= 0) & (numbers < 1)):
            raise ValueError(f"uniforms must be a list of numbers with 0 <= u < 1, got {numbers.tolist()}")
        return iter(numbers.tolist())
    if isinstance(generator, np.random.Generator):
        return iter(generator.random, None)
    return _torch_draws(generator)


def _torch_draws(generator: torch.Generator | None) -> Iterator[float]:
    import torch

    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be numpy's or torch's, got {type(generator).__name__}")
    device = "cpu" if generator is None else generator.device
    return iter(lambda: torch.rand((), dtype=torch.float64, device=device, generator=generator).item(), None)


def truncate_at_stop(
    token_ids: Sequence[int], stop_ids: Collection[int] | int | None, max_tokens: int | None
) -> tuple[list[int], str | None]:
    """Cut a step's emitted tokens at the first stop token (kept) or at the cap, whichever comes first.

    Args:
        token_ids: emitted tokens in order.
        stop_ids: tokens that end the output: none, one, or several.
        max_tokens: tokens still allowed, ``None`` for no limit.

    Returns:
        The kept tokens, and ``"stop"``, ``"length"`` (the cap is reached) or ``None`` (generation goes on).

    Raises:
        ValueError: ``max_tokens`` is negative.
    """
    stops = () if stop_ids is None else (stop_ids,) if isinstance(stop_ids, int) else stop_ids
    limit = math.inf if max_tokens is None else count(max_tokens, "max_tokens")
    kept: list[int] = []
    for token in token_ids:
        if len(kept) >= limit:
            break
        kept.append(token)
        if token in stops:
            return kept, "stop"
    return kept, "length" if len(kept) >= limit else None


@dataclass(frozen=True)
class BatchAcceptance:
    """The outcome of a batch of walks, on the device of the inputs.

    Attributes:
        path: int64 ``[B, D + 1]``, accepted nodes, root first, -1 padded.
        token_ids: int64 ``[B, D + 1]``, emitted tokens, -1 padded.
        num_accepted: int64 ``[B]``.
    """

    path: torch.Tensor
    token_ids: torch.Tensor
    num_accepted: torch.Tensor


def walk_batch(
    parents: torch.Tensor,
    token_ids: torch.Tensor,
    target_ids: torch.Tensor,
    num_nodes: torch.Tensor | None = None,
    max_depth: int | None = None,
) -> BatchAcceptance:
    """Walk a batch of trees at once: ``accept_greedy`` for every row, without host synchronisation.

    Every node points at its parent if it matches the target's choice there, at itself if not; pointer
    doubling takes each to the root, through matches alone, or not. The number of tensor operations grows with
    log(depth).

    The values cannot be checked without a synchronisation: ``treedecode.batch`` builds checked batches. A
    node whose parent is missing or does not precede it is never accepted.

    Args:
        parents: int64 ``[B, N]``, -1 for the root; padding may hold anything.
        token_ids: int64 ``[B, N]``, siblings pairwise different.
        target_ids: int64 ``[B, N]``, the target's choice after each node.
        num_nodes: integers ``[B]``, each at least 1; nodes from there on are padding and never accepted.
        max_depth: the largest depth in the batch, ``N - 1`` if not given; deeper nodes are never accepted.

    Raises:
        TypeError: an input is not int64.
        ValueError: the shapes disagree or ``max_depth`` is negative.
    """
    import torch

    for name, given in (("parents", parents), ("token_ids", token_ids), ("target_ids", target_ids)):
        if given.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, got {given.dtype}")
        if given.ndim != 2 or given.shape != parents.shape or given.shape[1] == 0:
            raise ValueError(
                f"expected parents, token_ids and target_ids of one shape [B, N], N >= 1: "
                f"parents {list(parents.shape)}, {name} {list(given.shape)}"
            )
    batch_size, width = parents.shape
    if num_nodes is not None and num_nodes.shape != (batch_size,):
        raise ValueError(f"num_nodes must have shape [{batch_size}], got {list(num_nodes.shape)}")
    depth_limit = width - 1 if max_depth is None else count(max_depth, "max_depth")

    nodes = torch.arange(width, device=parents.device).expand(batch_size, width)
    safe_parents = parents.clamp(0, width - 1)
    matches = (target_ids.gather(1, safe_parents) == token_ids) & (parents >= 0) & (parents < nodes)
    if num_nodes is not None:
        matches &= nodes < num_nodes[:, None]
    pointer = torch.where(matches, safe_parents, nodes)
    for _ in range(max(0, min(depth_limit, width - 1) - 1).bit_length()):
        pointer = pointer.gather(1, pointer)
    accepted = pointer == 0

    # node order is depth order along the path: the k-th accepted node goes to column k, others to the last
    # column
    num_columns = max(width, depth_limit + 1)
    column = torch.where(accepted, accepted.cumsum(1) - 1, num_columns)
    path = parents.new_full((batch_size, num_columns + 1), -1).scatter_(1, column, nodes)[
        :, : depth_limit + 1
    ]
    padding = path < 0
    emitted = target_ids.gather(1, path.clamp(min=0)).masked_fill_(padding, -1)
    return BatchAcceptance(path, emitted, depth_limit - padding.sum(1))
