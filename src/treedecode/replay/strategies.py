"""Ways to draft, replayed: each gives the tree that it would have verified at an output position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal, Protocol

from treedecode.drafters import make_drafter
from treedecode.drafters.base import DraftContext, VerifiedRows
from treedecode.planner import plan_tree
from treedecode.replay.ranks import RankCounts
from treedecode.replay.recording import Recording, by_ranks
from treedecode.shape import TreeShape
from treedecode.tree import DraftTree

Kind = Literal["plain", "chain", "tree"]
# Drafters that need no model, so that they can be run again on a recording.
RERUN: dict[str, Kind] = {"prompt-lookup": "chain", "suffix": "tree", "recycling": "tree", "merged": "tree"}
# Those of them that look at the text alone, and not at what else the target said.
TEXT_ONLY = frozenset({"prompt-lookup", "suffix"})


class Strategy(Protocol):
    """A way to draft. One walk at a time: ``begin``, then ``propose`` and ``observe`` by turns.

    Attributes:
        name: As shown.
        kind: What the gate takes it for.
        sizes_itself: Whether scores, where there are any, let a cost curve choose the size of every tree.
    """

    name: str
    kind: Kind
    sizes_itself: bool

    def begin(self, recording: Recording) -> None:
        """A recording is walked from its start."""
        ...

    def propose(self, position: int, max_drafted: int, max_depth: int) -> DraftTree:
        """The tree at ``position``; the caller cuts what is too large or too deep."""
        ...

    def observe(self, position: int, tree: DraftTree, path: Sequence[int]) -> None:
        """What became of it: the tree as verified, and the accepted nodes."""
        ...


class _FromRecording:
    """A strategy that needs nothing but the recording."""

    name: str
    kind: Kind
    sizes_itself: bool = False

    def begin(self, recording: Recording) -> None:
        self._recording = recording

    def observe(self, position: int, tree: DraftTree, path: Sequence[int]) -> None: ...

    def _root(self, position: int) -> DraftTree:
        return DraftTree.root_only(self._recording.output_ids[position])

    def _tree(self, position: int) -> DraftTree:
        tree = self._recording.trees.get(position)
        if tree is None:
            raise ValueError(
                f"{self._recording.name} has no tree at output position {position}: expected a dense recording"
            )
        return tree


class Plain(_FromRecording):
    """Plain decoding."""

    name: str = "plain"
    kind: Kind = "plain"

    def propose(self, position: int, max_drafted: int, max_depth: int) -> DraftTree:
        return self._root(position)


class Recorded(_FromRecording):
    """The recorded trees as they are: the steps of the run itself. Not for dense recordings.

    Args:
        kind: "chain" if all of them are chains.
    """

    name: str = "as recorded"

    def __init__(self, kind: Kind = "tree") -> None:
        self.kind: Kind = kind

    def propose(self, position: int, max_drafted: int, max_depth: int) -> DraftTree:
        return self._tree(position)


class Chain(_FromRecording):
    """The spine: the recorded drafter's best candidate at every depth."""

    name: str = "chain"
    kind: Kind = "chain"
    sizes_itself: bool = True

    def propose(self, position: int, max_drafted: int, max_depth: int) -> DraftTree:
        return by_ranks(self._tree(position), TreeShape.chain(max_drafted))


class LeafSiblings(_FromRecording):
    """The spine with its runner-ups beside it, depth by depth until the budget is spent.

    Args:
        width: Candidates per depth, the spine's own included.
    """

    kind: Kind = "tree"

    def __init__(self, width: int) -> None:
        self.name, self._width = f"leaf siblings {width}", width

    def propose(self, position: int, max_drafted: int, max_depth: int) -> DraftTree:
        return by_ranks(self._tree(position), leaf_siblings(max_drafted, self._width))


@cache
def leaf_siblings(max_drafted: int, width: int) -> TreeShape:
    """The spine with runner-ups of ``max_drafted`` drafted nodes, the last depth perhaps not full."""
    return TreeShape.leaf_siblings(math.ceil(max_drafted / width), width).prefix(max_drafted)


class StaticOptimal(_FromRecording):
    """The fixed tree that is best for the acceptance probabilities by depth and rank, measured elsewhere.

    They come from the other recordings or, where there is only one, from its other half, so that no tree is fitted to
    the tokens that it is tried on.

    Args:
        recordings: Dense ones, all that will be walked.
    """

    name: str = "static optimal"
    kind: Kind = "tree"

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._all = RankCounts.of(recordings)
        self._alone = len(recordings) == 1

    def begin(self, recording: Recording) -> None:
        super().begin(recording)
        middle = recording.num_positions // 2
        self._halves = (range(middle), range(middle, recording.num_positions))
        if self._alone:
            others = [RankCounts.of([recording], half) for half in reversed(self._halves)]
        else:
            others = [self._all.without(RankCounts.of([recording]))] * 2
        self._probs = [counts.rank_probs() for counts in others]
        self._shapes: dict[tuple[int, int], TreeShape] = {}

    def shape(self, position: int, max_drafted: int) -> TreeShape:
        """The tree of a budget; the same at every position unless there is but one recording."""
        key = int(position not in self._halves[0]), max_drafted
        if key not in self._shapes:
            self._shapes[key] = plan_tree(self._probs[key[0]], max_drafted)
        return self._shapes[key]

    def propose(self, position: int, max_drafted: int, max_depth: int) -> DraftTree:
        return by_ranks(self._tree(position), self.shape(position, max_drafted))


class Dynamic(_FromRecording):
    """The nodes of highest reach, by the scores of the recorded drafter: a new tree at every step."""

    name: str = "dynamic"
    kind: Kind = "tree"
    sizes_itself: bool = True

    def propose(self, position: int, max_drafted: int, max_depth: int) -> DraftTree:
        return self._tree(position).prefix(max_drafted)


class Rerun:
    """A drafter that needs no model, run again: it sees the known output, and what is recorded of the target's rows.

    Live it would see the rows of all its nodes. Of those that the recorded run did not verify nothing is known, and
    others stand in for them (``Recording.verified``): the trees of drafters that use rows are estimates.

    Args:
        name: One of ``RERUN``.
    """

    sizes_itself: bool = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: Kind = RERUN[name]
        self.num_known = self.num_verified = 0  # nodes, over all recordings

    def begin(self, recording: Recording) -> None:
        self._recording = recording
        self._drafter = make_drafter(self.name)
        self._drafter.begin(list(recording.prompt_ids))
        self._rows: list[VerifiedRows] = []

    def propose(self, position: int, max_drafted: int, max_depth: int) -> DraftTree:
        recording = self._recording
        rows, self._rows = tuple(self._rows), []
        text = [*recording.prompt_ids, *recording.output_ids[: position + 1]]
        context = DraftContext(text, len(recording.prompt_ids), max_drafted, max_depth, rows)
        return self._drafter.propose(context)

    def observe(self, position: int, tree: DraftTree, path: Sequence[int]) -> None:
        verified = self._recording.verified(position, tree, path)
        self.num_verified += tree.num_nodes
        self.num_known += verified.num_known
        if verified.rows is not None:
            self._rows.append(verified.rows)
