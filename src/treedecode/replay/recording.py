"""One recorded generation: the output, what was drafted where, and what the target said after which text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from treedecode.drafters.base import VerifiedRows
from treedecode.surface import Cost
from treedecode.tree import DraftTree, TreeShape

# The target's best next tokens and their log probabilities, best first.
Row = tuple[Sequence[int], Sequence[float]]
# A text that the target was shown: the last output position up to which it is the output, and the tokens after that.
Text = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Recording:
    """One prompt and its output, as far as a trace or a log knows them.

    A *position* is an index into ``output_ids``. A step at position ``p`` has ``output_ids[p]`` as its root and drafts
    for ``output_ids[p + 1]`` and on; the first output token comes from the prompt's own forward pass.

    Attributes:
        name: File, and line where it holds several.
        prompt_ids: Prompt tokens.
        output_ids: All emitted tokens: what every strategy emits as well.
        max_emitted: Tokens that the run was allowed to emit; drafts beyond them are not made.
        trees: Recorded tree of a step, by position.
        dense: Whether there is a tree at every position where a step can start.
        rows: What the target said, by text.
        drafter: Name of the drafter that made ``trees``; None where it is not known.
        budget: Its drafted nodes per step, or "auto"; None where it is not known.
        step_ms: Rows and milliseconds of the recorded verify steps.
        draft_ms: Milliseconds of drafting of the recorded steps.
        cost: Milliseconds of a forward pass, as measured when the model was loaded.
    """

    name: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    max_emitted: int
    trees: Mapping[int, DraftTree] = field(default_factory=dict)
    dense: bool = False
    rows: Mapping[Text, Row] = field(default_factory=dict)
    drafter: str | None = None
    budget: int | str | None = None
    step_ms: tuple[tuple[int, float], ...] = ()
    draft_ms: tuple[float, ...] = ()
    cost: Cost | None = None

    @property
    def num_positions(self) -> int:
        """Positions where a step can start."""
        return max(0, len(self.output_ids) - 1)

    def text(self, position: int, token_ids: Sequence[int]) -> Text:
        """The output up to ``position`` followed by ``token_ids``; see :func:`text_of`."""
        return text_of(self.output_ids, position, token_ids)

    def verified(self, position: int, tree: DraftTree, path: Sequence[int]) -> Verified:
        """What the target would have said about ``tree`` at ``position``, as far as that is recorded.

        Nodes with unknown rows give way to as many nodes of the tree that was recorded there, best first, so that a
        drafter learns from about as many rows as live; never to one that shows what follows output still to come.

        Args:
            position: Of the root.
            tree: What is verified.
            path: The accepted nodes, root first.
        """
        found: dict[
            tuple[int, ...], Row
        ] = {}  # by tokens below the root; a parent stands before its children
        places = []
        for tail in tails(tree):
            places.append(tail)
            row = self.rows.get(self.text(position, tail))
            if row is not None and (not tail or tail[:-1] in found):
                found[tail] = row
        num_known = len(found)
        if not num_known:
            return Verified(None, 0)
        last = position + len(path) - 1
        recorded = self.trees.get(position)
        for tail in () if recorded is None else tails(recorded):
            if len(found) == tree.num_nodes:
                break
            text = self.text(position, tail)
            if tail not in found and tail[:-1] in found and text[0] <= last and text in self.rows:
                found[tail] = self.rows[text]
        node_of = {tail: node for node, tail in enumerate(found)}
        width = min(len(ids) for ids, _ in found.values())
        rows = VerifiedRows(
            DraftTree.trusted(
                [node_of[tail[:-1]] if tail else -1 for tail in found],
                [tail[-1] if tail else tree.token_tuple[0] for tail in found],
            ),
            len(self.prompt_ids) + position,
            tuple(node_of[places[node]] for node in path if places[node] in node_of),
            np.array([ids[:width] for ids, _ in found.values()], np.int64),
            np.array([logprobs[:width] for _, logprobs in found.values()], np.float32),
        )
        return Verified(rows, num_known)


@dataclass(frozen=True)
class Verified:
    """Rows of a tree that was not run.

    Attributes:
        rows: What a drafter is shown; None if nothing is known, not even of the root.
        num_known: Nodes of the tree whose rows are known.
    """

    rows: VerifiedRows | None
    num_known: int


def text_of(output_ids: Sequence[int], position: int, token_ids: Sequence[int]) -> Text:
    """Names the text ``output_ids[: position + 1]`` followed by ``token_ids``: equal texts have equal names."""
    start = 0
    while (
        start < len(token_ids)
        and position + 1 < len(output_ids)
        and token_ids[start] == output_ids[position + 1]
    ):
        start += 1
        position += 1
    return position, tuple(token_ids[start:])


def tails(tree: DraftTree) -> Iterator[tuple[int, ...]]:
    """The tokens from below the root to each node, node by node."""
    found: list[tuple[int, ...]] = []
    for parent, token in zip(tree.shape.parent_tuple, tree.token_tuple, strict=True):
        found.append((*found[parent], token) if parent >= 0 else ())
        yield found[-1]


def follow(tree: DraftTree, token_ids: Sequence[int]) -> list[int]:
    """The nodes, root first, that spell the start of ``token_ids``: the walk of a target that says them."""
    path = [0]
    for token in token_ids:
        found = [node for node in tree.shape.children(path[-1]) if tree.token_tuple[node] == token]
        if not found:
            break
        path.append(found[0])
    return path


def by_ranks(tree: DraftTree, shape: TreeShape) -> DraftTree:
    """The nodes of ``tree`` at the rank paths of ``shape``, in the order of ``shape``; those it lacks are left out."""
    children = {
        (parent, rank): node
        for node, (parent, rank) in enumerate(
            zip(tree.shape.parent_tuple, tree.shape.rank_tuple, strict=True)
        )
        if node
    }
    given = [0]  # node of the tree for each node of the shape, -1 where it lacks it
    kept = {0: 0}  # node of the tree: its place in the result
    parents = [-1]
    for parent, rank in zip(shape.parent_tuple[1:], shape.rank_tuple[1:], strict=True):
        node = children.get((given[parent], rank), -1)
        given.append(node)
        if node >= 0:
            parents.append(kept[given[parent]])
            kept[node] = len(kept)
    scores = tree.scores
    return DraftTree.trusted(
        parents,
        [tree.token_tuple[node] for node in kept],
        None if scores is None else [float(scores[node]) for node in kept],
        None if tree.sources is None else [tree.sources[node] for node in kept],
    )
