"""A grammar of vLLM's over a tree: which nodes it allows, and where it stands at each. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from treedecode.tree import DraftTree


class Grammar(Protocol):
    """The part of vLLM's ``StructuredOutputGrammar`` that a walk needs."""

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The beginning of ``tokens`` that the grammar allows, without advancing."""
        ...

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advances; False, and nothing changes, if the grammar does not allow it."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens."""
        ...

    def is_terminated(self) -> bool:
        """Whether the output has ended: nothing may follow."""
        ...


@dataclass(frozen=True)
class KeptTree:
    """What the scheduler kept of a request's drafts.

    Attributes:
        nodes: which of the proposed nodes, ascending, the root left out.
        parents: of these, as places among them counted from 1; 0 is the root.
        token_ids: of these.
    """

    nodes: tuple[int, ...]
    parents: tuple[int, ...]
    token_ids: tuple[int, ...]

    @classmethod
    def of(cls, nodes: Sequence[int], parents: Sequence[int], token_ids: Sequence[int]) -> KeptTree:
        """The tree of ``nodes`` of a draft given in the serving layout, without its root.

        Args:
            nodes: ascending, from 1, every node's parent among them or the root.
            parents: by drafted node of the whole draft, 0 for the root.
            token_ids: by drafted node of the whole draft.
        """
        place = {0: 0, **{node: place for place, node in enumerate(nodes, 1)}}
        kept_parents = tuple(place[parents[node - 1]] for node in nodes)
        return cls(tuple(nodes), kept_parents, tuple(token_ids[node - 1] for node in nodes))

    def prefix(self, num_nodes: int) -> KeptTree:
        """The first ``num_nodes`` nodes: a tree, as parents stand first."""
        return KeptTree(self.nodes[:num_nodes], self.parents[:num_nodes], self.token_ids[:num_nodes])


def walk_grammar(
    grammar: Grammar,
    request_id: str,
    parents: Sequence[int],
    token_ids: Sequence[int],
    visit: Callable[[int], None] = lambda node: None,
) -> list[int]:
    """Go down every path of a tree that the grammar allows, and leave the grammar where it was.

    Args:
        grammar: after the root, which is emitted already.
        request_id: for vLLM's messages.
        parents: by drafted node, 0 for the root, 1 for the first drafted node; a parent stands before its children.
        token_ids: by drafted node.
        visit: called at the root (0) and at every allowed node, with the grammar standing there.

    Returns:
        The allowed nodes, ascending, without the root. Below a node at which the output ends there are none.
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    depths = [0] * (len(parents) + 1)
    for node, parent in enumerate(parents, 1):
        children[parent].append(node)
        depths[node] = depths[parent] + 1
    allowed, depth, todo = [], 0, [0]
    while todo:
        node = todo.pop()
        if node:
            if depth >= depths[node]:
                grammar.rollback(depth + 1 - depths[node])
                depth = depths[node] - 1
            token = [token_ids[node - 1]]
            # vLLM logs an error for a token that is not validated before
            if grammar.validate_tokens(token) != token or not grammar.accept_tokens(request_id, token):
                continue
            depth += 1
            allowed.append(node)
        visit(node)
        if not grammar.is_terminated():
            todo.extend(reversed(children[node]))
    if depth:
        grammar.rollback(depth)
    return sorted(allowed)


def best_chain(parents: Sequence[int]) -> list[int]:
    """The first child of the first child, and so on, of a tree as in ``walk_grammar``."""
    first: dict[int, int] = {}
    for node, parent in enumerate(parents, 1):
        first.setdefault(parent, node)
    chain, node = [], 0
    while node in first:
        node = first[node]
        chain.append(node)
    return chain


def kept_tree(root: int, kept: KeptTree, proposed: DraftTree | None) -> DraftTree:
    """What the scheduler kept of ``proposed``; a bare tree if the proposal is another one or gone."""
    nodes = (0, *kept.nodes)
    parents = () if proposed is None else proposed.shape.parent_tuple
    if (
        proposed is not None
        and nodes[-1] < len(parents)
        and all(parents[node] in nodes for node in kept.nodes)
    ):
        tree = proposed.only(nodes)
        if tree.shape.parent_tuple[1:] == kept.parents and tree.token_tuple[1:] == kept.token_ids:
            return tree
    return DraftTree.trusted((-1, *kept.parents), (root, *kept.token_ids))
