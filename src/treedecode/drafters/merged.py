"""One tree from all training-free sources, grown best first by calibrated reach probability."""

from __future__ import annotations

import heapq
import math

from treedecode.drafters import suffix
from treedecode.drafters.base import DraftContext, VerifiedRows
from treedecode.drafters.edge_model import Candidates, EdgeModel
from treedecode.drafters.recycling import RecycleStore, absent_feature
from treedecode.drafters.shared import SharedStore
from treedecode.drafters.suffix import SuffixIndex
from treedecode.tree import DraftTree

# Nodes that are less likely to be reached are not drafted: no step is cheap enough for them.
MIN_REACH = 0.003
# Shorter matches are looked up until there are so many candidates.
ENOUGH_CANDIDATES = 6


# -reach, depth and order of arrival (these three decide), place among the siblings, the siblings best first as (-reach,
# candidate), their candidates, their parent and its tail.
_Offer = tuple[float, int, int, int, list[tuple[float, int]], Candidates, int, tuple[int, ...]]


class MergedDrafter:
    """Drafts from token recycling and suffix matching together, or from one of them alone.

    What may follow a context is one deduplicated list of candidates, each with its probability by
    ``EdgeModel``; the tree takes nodes by reach, the product of the probabilities on their path, and looks up
    what may follow a node when it takes it.

    Args:
        name: shown in messages and traces.
        recycling: use what the target said in verified rows.
        suffix: use earlier matches in prompt and output.
        shared: what ended requests have left, asked where this one knows nothing; ``leave`` adds to it.
    """

    def __init__(
        self,
        name: str = "merged",
        recycling: bool = True,
        suffix: bool = True,
        shared: SharedStore | None = None,
    ) -> None:
        self.name = name
        self._shared = shared
        self._use_rows = recycling
        self._use_matches = suffix
        self.begin([])

    def begin(self, prompt_ids: list[int]) -> None:
        """Forget the last request."""
        self._rows = RecycleStore(self._shared)
        self._matches = SuffixIndex(self._shared)
        self._edges = EdgeModel()
        self._root_index = -1
        self._root_tail: tuple[int, ...] = ()
        self._root_match = 0
        self._found: dict[tuple[tuple[int, ...], int], Candidates] = {}

    def leave(self, token_ids: list[int], prompt_len: int) -> None:
        """The request has ended: leave what it taught to the shared store, if there is one.

        Args:
            token_ids: prompt and output.
            prompt_len: number of prompt tokens.
        """
        if self._shared is not None:
            self._shared.leave(self._rows if self._use_rows else None, token_ids, prompt_len)

    def propose(self, context: DraftContext) -> DraftTree:
        """The best tree of at most ``max_drafted`` nodes; scores are log reach."""
        self._observe(context)
        max_drafted, max_depth, edges = context.max_drafted, context.max_depth, self._edges
        min_reach = max(MIN_REACH, context.min_reach)
        parents, tokens, reach, sources = [-1], [self._root_tail[-1]], [1.0], ["root"]
        heap: list[_Offer] = []
        arrived = 0
        node, depth, tail, match = 0, 0, self._root_tail, self._root_match
        while len(parents) <= max_drafted:
            if depth < max_depth:
                found = self._found[tail, match] = self._candidates(tail, match)
                least = min_reach / reach[node]
                siblings = [
                    (-reach[node] * prob, i)
                    for i, prob in enumerate(edges.probabilities(found))
                    if prob > least
                ]
                if siblings:
                    siblings.sort()
                    heapq.heappush(heap, (siblings[0][0], depth + 1, arrived, 0, siblings, found, node, tail))
                    arrived += 1
            if not heap:
                break
            minus_reach, depth, _, place, siblings, found, parent, tail = heapq.heappop(heap)
            i = siblings[place][1]
            place += 1
            if place < len(siblings):
                heapq.heappush(
                    heap, (siblings[place][0], depth, arrived, place, siblings, found, parent, tail)
                )
                arrived += 1
            node = len(parents)
            parents.append(parent)
            tokens.append(found.tokens[i])
            reach.append(-minus_reach)
            sources.append("suffix" if found.suffix_features[i] else "recycling")
            tail, match = (*tail, found.tokens[i])[-suffix.MAX_ORDER :], found.match_length
        return DraftTree.trusted(parents, tokens, [math.log(value) for value in reach], sources)

    def _candidates(self, tail: tuple[int, ...], match_length: int) -> Candidates:
        """What may follow ``tail``, whose last token continued a match of ``match_length`` tokens."""
        order, tokens, row_features, second_features = self._rows.find(tail)
        suffix_features = [0] * len(tokens)
        longest = 0
        if self._use_matches:
            longest = self._matches.add_candidates(
                tail, match_length, tokens, suffix_features, ENOUGH_CANDIDATES
            )
            num_added = len(tokens) - len(row_features)
            row_features += [absent_feature(order)] * num_added
            second_features += [0] * num_added
        other = order * suffix.NUM_LENGTH_BINS + suffix.length_bin(longest)
        return Candidates(tokens, row_features, second_features, suffix_features, other, longest)

    def _observe(self, context: DraftContext) -> None:
        """Learn from what was verified, first how good the last drafts were, then what to draft from."""
        token_ids = context.token_ids
        for rows in context.rows:
            if rows.root_index == self._root_index:
                self._calibrate(rows, token_ids)
        self._found.clear()
        if self._use_rows:
            for rows in context.rows:
                self._rows.update(rows, token_ids)
        if self._use_matches:
            self._matches.extend(token_ids)
            self._root_match = max(0, self._matches.match_length(token_ids) - 1)
        self._root_index = len(token_ids) - 1
        self._root_tail = tuple(token_ids[-suffix.MAX_ORDER :])

    def _calibrate(self, rows: VerifiedRows, token_ids: list[int]) -> None:
        tail, match = self._root_tail, self._root_match
        first = rows.root_index + 1
        for token in token_ids[first : first + len(rows.path)]:
            # what the last tree was grown from: nothing has been learned since
            candidates = self._found.get((tail, match)) or self._candidates(tail, match)
            self._edges.learn(candidates, token)
            tail, match = (*tail, token)[-suffix.MAX_ORDER :], candidates.match_length
