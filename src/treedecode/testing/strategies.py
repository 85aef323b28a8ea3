"""Hypothesis strategies for trees: the one home of random test inputs."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from treedecode.tree import DraftTree, TreeShape


@st.composite
def parents(draw: st.DrawFn, max_nodes: int = 40) -> list[int]:
    """Parents of a random tree of 1 to ``max_nodes`` nodes, of any depth from star to chain."""
    num_nodes = draw(st.integers(1, max_nodes))
    # a node hangs under one of the `reach` nodes before it: 1 makes chains, many make wide trees
    reach = draw(st.integers(1, max_nodes))
    return [-1] + [draw(st.integers(max(0, node - reach), node - 1)) for node in range(1, num_nodes)]


def shapes(max_nodes: int = 40) -> st.SearchStrategy[TreeShape]:
    """Random topologies, siblings ranked in node order."""
    return parents(max_nodes).map(TreeShape.from_parents)


def rank_paths() -> st.SearchStrategy[set[tuple[int, ...]]]:
    """Rank paths closed under parents, in which siblings leave ranks out, such as (0, 1) without (0, 0)."""
    some = st.sets(st.lists(st.integers(0, 4), min_size=1, max_size=5).map(tuple), max_size=12)
    return some.map(lambda paths: {path[:length] for path in paths for length in range(1, len(path) + 1)})


@st.composite
def token_ids(draw: st.DrawFn, parents: list[int], vocab_size: int = 50) -> list[int]:
    """Tokens for a tree, siblings pairwise different; ``vocab_size`` must exceed the widest siblings."""
    tokens = [draw(st.integers(0, vocab_size - 1))]
    for node in range(1, len(parents)):
        taken = {tokens[other] for other in range(1, node) if parents[other] == parents[node]}
        tokens.append(draw(st.sampled_from([token for token in range(vocab_size) if token not in taken])))
    return tokens


@st.composite
def draft_trees(draw: st.DrawFn, max_nodes: int = 24, vocab_size: int = 50) -> DraftTree:
    """Random draft trees, with scores (log reach, never above the parent's) or without."""
    given = draw(parents(max_nodes))
    tokens = draw(token_ids(given, vocab_size))
    scores = None
    if draw(st.booleans()):
        scores = [0.0]
        for parent in given[1:]:
            scores.append(scores[parent] - draw(st.floats(0, 5)))
    return DraftTree(TreeShape.from_parents(given), tokens, scores)


@dataclass(frozen=True)
class WalkCase:
    """A tree and the target's choice after each of its nodes."""

    tree: DraftTree
    target_ids: list[int]


@st.composite
def walk_cases(draw: st.DrawFn, max_nodes: int = 24, vocab_size: int = 50) -> WalkCase:
    """Walks that often go deep: most nodes' targets are the token of one of their children."""
    tree = draw(draft_trees(max_nodes, vocab_size))
    target_ids = []
    for node in range(tree.num_nodes):
        drafted = [tree.token_tuple[child] for child in tree.shape.children(node)]
        if drafted and draw(st.integers(0, 4)):
            target_ids.append(draw(st.sampled_from(drafted)))
        else:
            target_ids.append(draw(st.integers(0, vocab_size - 1)))
    return WalkCase(tree, target_ids)


@st.composite
def accepted_paths(draw: st.DrawFn, max_nodes: int = 24) -> list[int]:
    """Paths as a walk gives them: the root, then ascending nodes."""
    later = draw(st.sets(st.integers(1, max_nodes - 1)))
    return [0, *sorted(later)]


@st.composite
def row_orders(draw: st.DrawFn, max_rows: int = 12) -> list[int]:
    """Any distinct rows in any order: permutations, reversals, overlaps."""
    rows = draw(st.permutations(range(draw(st.integers(1, max_rows)))))
    return list(rows[: draw(st.integers(1, len(rows)))])
