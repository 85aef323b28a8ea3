"""Many trees at once: checked rows in, padded arrays out, fixed sizes, and SGLang's batched layout.

Errors name the row and, within it, the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treedecode.topology import count
from treedecode.tree import DraftTree, TreeShape, check_tree


@dataclass(frozen=True)
class PaddedBatch:
    """Trees as arrays, padded to the largest; the form ``walk_batch`` takes.

    Attributes:
        parents: int64 ``[B, N]``; -1 for the root and for padding.
        token_ids: int64 ``[B, N]``; padding is 0, a valid id for any embedding, and no walk accepts it.
        num_nodes: int64 ``[B]``.
    """

    parents: np.ndarray
    token_ids: np.ndarray
    num_nodes: np.ndarray


def pad_trees(trees: Sequence[DraftTree], width: int | None = None) -> PaddedBatch:
    """Pad ``trees`` to ``width`` nodes each (to the largest if not given).

    Raises:
        TypeError: a row is no DraftTree.
        ValueError: a tree has more than ``width`` nodes.
    """
    for row, tree in enumerate(trees):
        check_tree(tree, f"row {row}")
    largest = max((tree.num_nodes for tree in trees), default=1)
    width = largest if width is None else count(width, "width", minimum=1)
    if largest > width:
        row = next(row for row, tree in enumerate(trees) if tree.num_nodes > width)
        raise ValueError(f"row {row}: expected at most {width} nodes, got {trees[row].num_nodes}")
    parents = np.full((len(trees), width), -1, np.int64)
    token_ids = np.zeros((len(trees), width), np.int64)
    for row, tree in enumerate(trees):
        parents[row, : tree.num_nodes] = tree.parents
        token_ids[row, : tree.num_nodes] = tree.token_ids
    return PaddedBatch(parents, token_ids, np.array([tree.num_nodes for tree in trees], np.int64))


@dataclass(frozen=True)
class BucketBatch:
    """Trees as arrays of a fixed size, as a captured graph needs them, with padding that no walk can accept.

    A padding node stands behind all nodes of its row. It has no parent and no child; its token, -1, is no token
    that a target can choose; it sees itself alone (a row that sees nothing has no softmax), and no node sees it. So
    it is in no path, a commit never moves it, and its cache row is dead like that of a rejected node. Rows from
    ``num_requests`` on are padding from their root on; what a walk says of them is to be dropped.

    Attributes:
        parents: int64 ``[B, N]``; -1 for the root and for padding.
        token_ids: int64 ``[B, N]``, for the walk; -1 for padding.
        input_ids: int64 ``[B, N]``, for the embedding; 0, a valid id, for padding.
        depths: int64 ``[B, N]``; 0 for padding, so that its position is one that the root has, too.
        mask: bool ``[B, N, N]``, the tree masks; padding sees itself.
        sees_prefix: bool ``[B, N]``, the nodes: they see what is cached, padding does not.
        num_nodes: int64 ``[B]``, the nodes before the padding, as ``walk_batch`` takes it; 1 for rows without
            request.
        num_requests: rows that are requests.
    """

    parents: np.ndarray
    token_ids: np.ndarray
    input_ids: np.ndarray
    depths: np.ndarray
    mask: np.ndarray
    sees_prefix: np.ndarray
    num_nodes: np.ndarray
    num_requests: int


def pad_to_bucket(trees: Sequence[DraftTree], num_drafted: int, batch_size: int | None = None) -> BucketBatch:
    """Pad every tree to ``num_drafted`` drafted nodes, and the batch to ``batch_size`` rows (none if not given).

    Raises:
        TypeError, ValueError: a count is no integer or negative; a tree has more drafted nodes (its row is named);
            there are more trees than rows.
    """
    width = 1 + count(num_drafted, "num_drafted")
    size = len(trees) if batch_size is None else count(batch_size, "batch_size")
    if len(trees) > size:
        raise ValueError(f"expected at most batch_size = {size} trees, got {len(trees)}")
    padded = pad_trees(trees, width)
    parents = np.full((size, width), -1, np.int64)
    input_ids, depths = np.zeros((2, size, width), np.int64)
    mask = np.zeros((size, width, width), np.bool_)
    mask[:] = np.eye(width, dtype=np.bool_)
    num_nodes = np.ones(size, np.int64)
    rows = len(trees)
    parents[:rows], input_ids[:rows], num_nodes[:rows] = padded.parents, padded.token_ids, padded.num_nodes
    for row, tree in enumerate(trees):
        depths[row, : tree.num_nodes] = tree.depths
        mask[row, : tree.num_nodes, : tree.num_nodes] = tree.shape.mask()
    sees_prefix = np.arange(width) < num_nodes[:, None]
    sees_prefix[rows:] = False
    token_ids = np.where(sees_prefix, input_ids, -1)
    return BucketBatch(parents, token_ids, input_ids, depths, mask, sees_prefix, num_nodes, rows)


def check_trees(
    parents: Sequence[Sequence[int]] | np.ndarray,
    token_ids: Sequence[Sequence[int]] | np.ndarray,
    num_nodes: Sequence[int] | np.ndarray | None = None,
    scores: Sequence[Sequence[float]] | np.ndarray | None = None,
) -> list[DraftTree]:
    """Build every row's tree, refusing the whole batch if any is malformed.

    Args:
        parents: B rows, ragged or padded.
        token_ids: B rows, likewise.
        num_nodes: ``[B]``, the nodes of each row before its padding; ``None`` if the rows are not padded.
        scores: B rows or ``None``.

    Raises:
        TypeError, ValueError: as ``DraftTree``, with the row named; or the numbers of rows differ.
    """
    for name, rows in (("token_ids", token_ids), ("num_nodes", num_nodes), ("scores", scores)):
        if rows is not None and len(rows) != len(parents):
            raise ValueError(
                f"expected one row of {name} per tree: {len(parents)} trees, got {len(rows)} rows"
            )
    trees = []
    for row in range(len(parents)):
        try:
            size = None if num_nodes is None else count(num_nodes[row], "num_nodes", minimum=1)
            if size is not None and size > len(parents[row]):
                raise ValueError(f"expected num_nodes of at most {len(parents[row])}, got {size}")
            shape = TreeShape.from_parents(parents[row][:size])
            row_scores = None if scores is None else scores[row][:size]
            trees.append(DraftTree(shape, token_ids[row][:size], row_scores))
        except (TypeError, ValueError) as error:
            raise type(error)(f"row {row}: {error}") from error
    return trees


@dataclass(frozen=True)
class RetrieveLayout:
    """SGLang's, TensorRT-LLM's and xgrammar's layout of a batch, int64 ``[B, N]`` each, -1 = none.

    Attributes:
        retrieve_index: row of the node in the flattened ``[B * N]`` batch, -1 for padding.
        retrieve_next_token: first child.
        retrieve_next_sibling: next sibling.
    """

    retrieve_index: np.ndarray
    retrieve_next_token: np.ndarray
    retrieve_next_sibling: np.ndarray


def to_retrieve(shapes: Sequence[TreeShape], width: int | None = None) -> RetrieveLayout:
    """Lay out ``shapes``, padded to ``width`` nodes each (to the largest if not given).

    Raises:
        ValueError: a tree has more than ``width`` nodes.
    """
    largest = max((shape.num_nodes for shape in shapes), default=1)
    width = largest if width is None else count(width, "width", minimum=1)
    index, first_child, next_sibling = np.full((3, len(shapes), width), -1, np.int64)
    for row, shape in enumerate(shapes):
        size = shape.num_nodes
        if size > width:
            raise ValueError(f"row {row}: expected at most {width} nodes, got {size}")
        index[row, :size] = row * width + np.arange(size)
        first_child[row, :size], next_sibling[row, :size] = shape.linked()
    return RetrieveLayout(index, first_child, next_sibling)


def from_retrieve(layout: RetrieveLayout) -> list[TreeShape]:
    """Invert ``to_retrieve``: nodes are those with a ``retrieve_index`` other than -1.

    Raises:
        TypeError, ValueError: as ``TreeShape.from_linked``, with the row named; or a row's indices are not
            consecutive.
    """
    shapes = []
    for row, index in enumerate(np.asarray(layout.retrieve_index)):
        size = int(np.count_nonzero(index != -1))
        if size and not np.array_equal(index[:size], index[0] + np.arange(size)):
            raise ValueError(
                f"row {row}: retrieve_index counts up and -1 only pads its end, got {index.tolist()}"
            )
        try:
            shapes.append(
                TreeShape.from_linked(
                    layout.retrieve_next_token[row][:size], layout.retrieve_next_sibling[row][:size]
                )
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"row {row}: {error}") from error
    return shapes
