"""The core again, in plain Python from the definitions: slow, obvious, and sharing no code with it.

Everything starts from ``path_of``, the climb from a node to the root; the core never climbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product


def path_of(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the root down to ``node``."""
    climb = [node]
    while parents[climb[-1]] != -1:
        climb.append(parents[climb[-1]])
    return climb[::-1]


def mask(parents: Sequence[int]) -> list[list[bool]]:
    """``[N][N]``, who sees whom."""
    return [[j in path_of(parents, i) for j in range(len(parents))] for i in range(len(parents))]


def position_ids(parents: Sequence[int], prefix_len: int) -> list[int]:
    """Position of every node."""
    return [prefix_len + len(path_of(parents, node)) - 1 for node in range(len(parents))]


def step_mask(parents: Sequence[int], prefix_len: int, window: int | None) -> list[list[bool]]:
    """``[N][prefix_len + N]``, what every node sees of the prefix and the tree."""
    node_positions = position_ids(parents, prefix_len)
    key_positions = [*range(prefix_len), *node_positions]
    rows = []
    for node, position in enumerate(node_positions):
        visible = [True] * prefix_len + [j in path_of(parents, node) for j in range(len(parents))]
        if window is not None:
            visible = [
                seen and position - window < key <= position
                for seen, key in zip(visible, key_positions, strict=True)
            ]
        rows.append(visible)
    return rows


def packed(rows: Sequence[Sequence[bool]], bits: int) -> list[list[int]]:
    """Rows of booleans as words of ``bits`` bits, lowest bit first."""
    starts = range(0, len(rows[0]), bits)
    return [
        [sum(1 << k for k, seen in enumerate(row[start : start + bits]) if seen) for start in starts]
        for row in rows
    ]


def children(parents: Sequence[int], node: int) -> list[int]:
    """Children in node order."""
    return [child for child, parent in enumerate(parents) if parent == node]


def rank_path(parents: Sequence[int], node: int) -> tuple[int, ...]:
    """Place among its siblings of every node on the way to ``node``, root excluded."""
    return tuple(children(parents, parents[step]).index(step) for step in path_of(parents, node)[1:])


def linked(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node, -1 = none."""
    first_child, next_sibling = [], []
    for node, parent in enumerate(parents):
        first_child.append((children(parents, node) or [-1])[0])
        later = [] if parent == -1 else [other for other in children(parents, parent) if other > node]
        next_sibling.append((later or [-1])[0])
    return first_child, next_sibling


def leaf_paths(parents: Sequence[int]) -> list[list[int]]:
    """Path of every leaf, padded with -1 to the longest."""
    paths = [path_of(parents, node) for node in range(len(parents)) if not children(parents, node)]
    longest = max(map(len, paths))
    return [path + [-1] * (longest - len(path)) for path in paths]


def walk(
    parents: Sequence[int], token_ids: Sequence[int], target_ids: Sequence[int]
) -> tuple[list[int], list[int]]:
    """``(path, emitted)``: the longest root path whose every token is the target's choice before it."""
    correct = []
    for node in range(len(parents)):
        path = path_of(parents, node)
        if all(token_ids[child] == target_ids[parent] for parent, child in pairwise(path)):
            correct.append(path)
    path = max(correct, key=len)
    return path, [target_ids[node] for node in path]


def committed_rows(num_rows: int, prefix_len: int, path: Sequence[int]) -> list[int]:
    """Which old row every new row holds after a commit; rows past the path keep their own."""
    rows = list(range(num_rows))
    return [*rows[:prefix_len], *(prefix_len + node for node in path), *rows[prefix_len + len(path) :]]


def emitted_distribution(
    parents: Sequence[int], token_ids: Sequence[int], target_probs: Sequence[Sequence[float]]
) -> dict[tuple[int, ...], float]:
    """Exact probability of every sequence that a step can emit, from the target's distributions alone."""
    outcomes: dict[tuple[int, ...], float] = {}
    pending: list[tuple[int, tuple[int, ...], float]] = [(0, (), 1.0)]
    while pending:
        node, emitted, mass = pending.pop()
        for token, probability in enumerate(target_probs[node]):
            if probability == 0:
                continue
            grown = (*emitted, token)
            below = [child for child in children(parents, node) if token_ids[child] == token]
            if below:
                pending.append((below[0], grown, mass * probability))
            else:
                outcomes[grown] = outcomes.get(grown, 0.0) + mass * probability
    return outcomes


def uniform_cells(
    target_probs: Sequence[Sequence[float]], num_draws: int
) -> list[tuple[tuple[float, ...], float]]:
    """Cut the cube of ``num_draws`` uniforms into cells ``(midpoints, volume)`` on which no draw changes.

    Running a sampler at every midpoint and adding up the volumes gives its output distribution exactly.
    """
    edges = {0.0, 1.0}
    for row in target_probs:
        total = 0.0
        for probability in row:
            total += probability
            edges.add(min(total, 1.0))
    ordered = sorted(edges)
    cells = [((low + high) / 2, high - low) for low, high in pairwise(ordered) if high - low > 1e-15]
    combined = []
    for combination in product(cells, repeat=num_draws):
        volume = 1.0
        for _, width in combination:
            volume *= width
        combined.append((tuple(middle for middle, _ in combination), volume))
    return combined
