"""Which drafted nodes the target accepts, and what is emitted.

Every walk starts at the root and follows the child whose token is the target's choice at the current node.
The last choice is always emitted, as the correction or, after a full match, as the bonus: a step emits
accepted + 1 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from treedecode.accept_batch import BatchAcceptance, walk_batch
from treedecode.accept_inputs import METHODS, check_drawn, check_vocabulary, distributions, draws
from treedecode.topology import count, int_tuple
from treedecode.tree import DraftTree, check_tree

if TYPE_CHECKING:
    import torch

__all__ = [
    "Acceptance",
    "BatchAcceptance",
    "accept_greedy",
    "accept_sampled",
    "truncate_at_stop",
    "walk_batch",
]


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
        TypeError: ``tree`` is no DraftTree, or a target id is not an integer.
        ValueError: there is not one target id per node, or an emitted one is negative.
    """
    check_tree(tree)
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

    ``"one_draw"``, for deterministic drafts, draws one token per visited node by inverse CDF (the first token
    whose cumulative probability exceeds the uniform) and follows the child that matches. The draw does not depend
    on the drafts, so the emitted tokens have the target's distribution whatever was drafted, and the same
    uniforms emit the same tokens with any tree.

    The other methods are for siblings drawn from ``draft_probs``, and emit the target's distribution over those
    draws. They need a tree in draw order (``DraftTree.sampled``) whose shape does not depend on the drawn tokens:

    - ``"with_replacement"``: recursive rejection over siblings that were drawn independently (SpecInfer,
      arXiv:2305.09781, Algorithm 2).
    - ``"without_replacement"``: the same where every sibling was drawn from what its elder siblings left (RSD,
      arXiv:2402.14160; Sequoia, arXiv:2402.12374).
    - ``"traversal"``: from the leaves up, whole paths at once; siblings drawn without replacement (traversal
      verification, arXiv:2505.12398). On a chain it accepts as many tokens in expectation as any exact method can
      (block verification, arXiv:2403.10444, Algorithm 2 and its optimality theorem). On a tree it mostly accepts
      more than ``"without_replacement"``, but not on every one: below the root, a leaf that stands before a sibling
      with a subtree is accepted more often at the cost of what is below the sibling (docs/exactness.md).
      ``"traversal_with_replacement"`` is the same for independent siblings.

    Args:
        tree: the verified tree.
        target_probs: ``[N, V]``, the processed distribution after each node. Not modified.
        draft_probs: ``[N, V]``, row i = the distribution node i's children were drawn from (the rows of leaves
            are not used); ``None`` for deterministic drafts. Checked, and of no influence on ``"one_draw"``. Not
            modified.
        method: one of the five above.
        uniforms: numbers in [0, 1), the k-th for the k-th decision. ``"one_draw"`` uses one per emitted token; the
            others one per sibling tested (in draw order; ``"traversal"`` tests children before their parent) and
            one for the last token: at most ``num_nodes``.
        generator: numpy or torch generator to draw from if no uniforms are given; torch's default one if
            neither is. All methods but ``"one_draw"`` take ``num_nodes`` numbers from it, used or not.

    Raises:
        TypeError: no DraftTree, probabilities that are not numbers, or a generator of another kind.
        ValueError: another method, no ``draft_probs`` where they are needed, a wrong shape, a negative, NaN or not
            normalised row, a drafted token outside the vocabulary or without draft probability, a tree of
            ``DraftTree.build`` or repeated siblings where they cannot be draws, a uniform outside [0, 1), too few
            uniforms, or uniforms and a generator together.
    """
    check_tree(tree)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    probs = distributions(target_probs, "target_probs", tree.num_nodes)
    drafted = None
    if draft_probs is not None:
        drafted = distributions(draft_probs, "draft_probs", tree.num_nodes)
        if drafted.shape != probs.shape:
            raise ValueError(f"draft_probs must have target_probs' shape {probs.shape}, got {drafted.shape}")
    check_vocabulary(tree, probs.shape[1])
    if method != "one_draw":
        if drafted is None:
            raise ValueError(
                f"method {method!r} needs draft_probs, the distributions that the drafts were drawn from; "
                "deterministic drafts go with 'one_draw'"
            )
        check_drawn(tree, drafted, replacement=method.endswith("with_replacement"))
        return _accept_drawn(tree, probs, drafted, method, draws(uniforms, generator))
    numbers = draws(uniforms, generator)
    path, emitted = [0], []
    while True:
        uniform = next(numbers, None)
        if uniform is None:
            raise ValueError(f"uniforms ran out: expected at least {len(emitted) + 1}, got {len(emitted)}")
        token = _inverse_cdf(probs[path[-1]], uniform)
        emitted.append(token)
        matching = [child for child in tree.shape.children(path[-1]) if tree.token_tuple[child] == token]
        if not matching:
            return Acceptance(path, emitted, len(path) - 1)
        path.append(matching[0])


def _accept_drawn(
    tree: DraftTree, probs: np.ndarray, drafted: np.ndarray, method: str, numbers: Iterator[float]
) -> Acceptance:
    """A batch of one, on the CPU, in float64."""
    import torch

    from treedecode import accept_sampling
    from treedecode.walking import link

    shape = tree.shape
    order = [0]  # siblings stand in rank order, whatever the order of the nodes
    for node in order:
        order.extend(shape.children(node))
    place = {node: index for index, node in enumerate(order)}
    parents = torch.tensor([[-1, *(place[shape.parent_tuple[node]] for node in order[1:])]])
    tokens = torch.tensor([[tree.token_tuple[node] for node in order]])
    target, draft = (torch.tensor(rows[order], dtype=torch.float64)[None] for rows in (probs, drafted))
    given = list(islice(numbers, tree.num_nodes))
    uniforms = torch.tensor([given + [0.0] * (tree.num_nodes - len(given))], dtype=torch.float64)

    trees, depth = link(parents, tokens), shape.max_depth
    walked = accept_sampling.walk(trees, target, draft, uniforms, method, depth, tree.num_drafted)
    used = int(walked.used) + 1
    if used > len(given):
        raise ValueError(f"uniforms ran out: expected at least {used}, got {len(given)}")
    result = accept_sampling.finish(trees, walked, uniforms, depth)
    num_accepted = int(result.num_accepted)
    path = [order[node] for node in result.path[0, : num_accepted + 1].tolist()]
    return Acceptance(path, result.token_ids[0, : num_accepted + 1].tolist(), num_accepted)


def _inverse_cdf(probs: np.ndarray, uniform: float) -> int:
    cumulative = np.cumsum(probs, dtype=np.float64)
    total = float(cumulative[-1])
    # rounding in low precision must scale with the distribution, not pile up on its last token
    threshold = uniform if abs(total - 1.0) < 1e-12 else uniform * total
    token = int(np.searchsorted(cumulative, threshold, side="right"))
    return token if token < len(probs) else int(np.flatnonzero(probs)[-1])


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
