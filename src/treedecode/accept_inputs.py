"""Checked inputs of the walks: batches, distributions, and where the uniforms come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from treedecode.topology import count
from treedecode.tree import DraftTree

if TYPE_CHECKING:
    import torch

METHODS = ("one_draw", "with_replacement", "without_replacement", "traversal", "traversal_with_replacement")
Uniforms = ArrayLike | Sequence[float]


def check_batch(num_nodes: torch.Tensor | None, max_depth: int | None, **node_rows: torch.Tensor) -> int:
    """Check what the walks of a batch share, and return the depth below which no node is accepted.

    Args:
        num_nodes: integers ``[B]`` or None.
        max_depth: as given, None for ``N - 1``.
        **node_rows: int64 ``[B, N]`` by name, ``parents`` first.

    Raises:
        TypeError: a row of nodes is not int64.
        ValueError: the shapes disagree or ``max_depth`` is negative.
    """
    import torch

    *others, last = node_rows
    shape = next(iter(node_rows.values())).shape
    for name, given in node_rows.items():
        if given.dtype != torch.int64:
            raise TypeError(f"{name} must be int64, got {given.dtype}")
        if given.ndim != 2 or given.shape != shape or given.shape[1] == 0:
            raise ValueError(
                f"expected {', '.join(others)} and {last} of one shape [B, N], N >= 1: "
                f"parents {list(shape)}, {name} {list(given.shape)}"
            )
    batch_size, width = shape
    if num_nodes is not None and num_nodes.shape != (batch_size,):
        raise ValueError(f"num_nodes must have shape [{batch_size}], got {list(num_nodes.shape)}")
    return width - 1 if max_depth is None else count(max_depth, "max_depth")


def distributions(values: ArrayLike | torch.Tensor, what: str, num_nodes: int) -> np.ndarray:
    """``values`` as a float array ``[N, V]`` whose rows are distributions; the input is not modified.

    Raises:
        TypeError: no numbers.
        ValueError: another shape, or a row with a negative, a NaN or another sum than 1 (within 1e-4; 1e-2 for
            float16 and bfloat16).
    """
    tolerance = 1e-4
    if not isinstance(values, (np.ndarray, list, tuple)):
        import torch

        try:
            tensor = torch.as_tensor(values).detach().cpu()
        except (RuntimeError, TypeError) as error:
            raise TypeError(f"{what} must be numbers, got {type(values).__name__}") from error
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


def check_vocabulary(tree: DraftTree, vocab_size: int) -> None:
    """Raises ValueError if a drafted token is outside the vocabulary."""
    for node in range(1, tree.num_nodes):
        if tree.token_tuple[node] >= vocab_size:
            raise ValueError(
                f"drafted tokens must be in the target's vocabulary of {vocab_size}: "
                f"node {node} has token {tree.token_tuple[node]}"
            )


def check_drawn(tree: DraftTree, draft_probs: np.ndarray, replacement: bool) -> None:
    """Raises ValueError if the siblings cannot be draws from ``draft_probs`` in the tree's order."""
    if not tree.drawn:
        raise ValueError(
            "siblings drawn from draft_probs must keep draw order and duplicates, anything else biases the output: "
            "expected a tree made by DraftTree.sampled, got one made from a list of drafts"
        )
    for node in range(tree.num_nodes):
        drawn: dict[int, int] = {}
        for child in tree.shape.children(node):
            token = tree.token_tuple[child]
            if draft_probs[node, token] == 0:
                raise ValueError(
                    f"draft_probs must be the distribution that the drafts were drawn from: node {child} has token "
                    f"{token}, which has probability 0 in row {node}"
                )
            if not replacement and token in drawn:
                raise ValueError(
                    f"siblings drawn without replacement are different: nodes {drawn[token]} and {child} are both "
                    f"token {token} under node {node}"
                )
            drawn[token] = child


def draws(
    uniforms: Uniforms | None, generator: np.random.Generator | torch.Generator | None
) -> Iterator[float]:
    """The uniforms one by one: those given, or those of the generator.

    Raises:
        TypeError: a generator that is neither numpy's nor torch's.
        ValueError: both are given, or a uniform is outside [0, 1).
    """
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
