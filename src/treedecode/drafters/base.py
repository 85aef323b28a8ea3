"""The drafter seam: a frozen context in, a ``DraftTree`` out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from treedecode.tree import DraftTree

# Candidates per verified row that drafters and traces see.
NUM_CANDIDATES = 8


@dataclass(frozen=True)
class VerifiedRows:
    """What the target said after every node of a verified tree (or after prompt tokens), accepted or not.

    Attributes:
        tree: the nodes that the target ran, root first; for prompt rows a chain of prompt tokens.
        root_index: index of the root in ``DraftContext.token_ids``; the tokens before it are its history.
        path: accepted nodes, root first; all nodes for prompt rows.
        top_ids: int64 ``[N, k]``, the target's ``k`` best next tokens after each node, best first.
        top_logits: float32 ``[N, k]``, their logits, descending; processed where the request has penalties, logits
            processors or a grammar.
    """

    tree: DraftTree
    root_index: int
    path: tuple[int, ...]
    top_ids: np.ndarray
    top_logits: np.ndarray


@dataclass(frozen=True)
class DraftContext:
    """All that a drafter may look at in one step.

    Attributes:
        token_ids: prompt and emitted tokens; the last one is the root. Shared with the engine and growing
            between calls: read only.
        prompt_len: number of prompt tokens.
        max_drafted: never return more drafted nodes.
        max_depth: never return a deeper node; 0 means the root alone.
        rows: what the target said since the previous ``propose``, prompt rows first; may be empty.
        min_reach: a hint: nodes that are less likely to be reached will not be verified.
    """

    token_ids: list[int]
    prompt_len: int
    max_drafted: int
    max_depth: int
    rows: tuple[VerifiedRows, ...] = ()
    min_reach: float = 0.0


@runtime_checkable
class Drafter(Protocol):
    """Proposes a tree per step. One drafter serves one request at a time.

    Same calls, same trees: ties are broken by score (descending), then depth, then insertion order, never at
    random.
    """

    name: str

    def begin(self, prompt_ids: list[int]) -> None:
        """A new request starts: drop what belonged to the last one. Stores that stay useful may stay."""
        ...

    def propose(self, context: DraftContext) -> DraftTree:
        """Draft a tree whose root is ``context.token_ids[-1]``.

        Returns:
            Nodes in descending reach, so that every prefix is the best smaller tree; ``scores`` are log reach
            if the drafter can estimate it, else ``None``.
        """
        ...


def check_is_tree(tree: object, drafter: str) -> DraftTree:
    """What a drafter proposed, if it is a tree; ``TypeError`` otherwise."""
    if not isinstance(tree, DraftTree):
        raise TypeError(f"drafter {drafter!r} must propose a DraftTree, got {type(tree).__name__}")
    return tree


def check_draft(tree: DraftTree, root: int, vocab_size: int, drafter: str) -> None:
    """Refuses a draft that the target cannot verify.

    Raises:
        ValueError: The root is not the last committed token, or a token is not in the target's vocabulary.
    """
    tokens = tree.token_tuple
    if tokens[0] != root:
        raise ValueError(
            f"drafter {drafter!r} must root its tree at the last committed token {root}, got {tokens[0]}"
        )
    if max(tokens) >= vocab_size or min(tokens) < 0:
        odd = next(token for token in tokens if not 0 <= token < vocab_size)
        raise ValueError(
            f"drafter {drafter!r} proposed token {odd}, the target's vocabulary has {vocab_size} tokens: "
            "drafter and target must share one vocabulary"
        )
