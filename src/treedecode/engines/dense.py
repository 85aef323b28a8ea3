"""Dense recording: what a drafter may see where a tree was verified, but only one token of it committed."""

from __future__ import annotations

from treedecode.drafters.base import VerifiedRows
from treedecode.tree import DraftTree


def as_if_missed(rows: VerifiedRows, accepted: list[int]) -> VerifiedRows:
    """The rows of a step as they would be had the first accepted node not been drafted.

    Its subtree holds what the target says about the output yet to come: live, that is known only once the output is
    there. A drafter that saw it would draft the very next positions from the answers (E[L] 3.8 where live has 2.3).

    Args:
        rows: Of the whole tree, with the root alone as path.
        accepted: The walk, root first.
    """
    if len(accepted) == 1:
        return rows
    tree, kept = rows.tree, {0: 0}  # node: its place among those that stay
    for node, parent in enumerate(tree.shape.parent_tuple):
        if node and node != accepted[1] and parent in kept:
            kept[node] = len(kept)
    nodes = list(kept)
    parents = [kept[tree.shape.parent_tuple[node]] if node else -1 for node in nodes]
    left = DraftTree.trusted(parents, [tree.token_tuple[node] for node in nodes])
    return VerifiedRows(left, rows.root_index, rows.path, rows.top_ids[nodes], rows.top_logits[nodes])
