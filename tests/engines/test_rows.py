"""Rows that wait for the drafter: nothing lost, nothing twice, and never without bound."""

from __future__ import annotations

import numpy as np
import pytest

from treedecode.drafters import make_drafter
from treedecode.drafters.base import DraftContext, VerifiedRows
from treedecode.engines.rows import MAX_PLAIN, RowQueue
from treedecode.tree import DraftTree, TreeShape


def plain(index: int) -> VerifiedRows:
    ids = np.arange(index, index + 4)[None]
    return VerifiedRows(DraftTree.root_only(index), index, (0,), ids, -np.arange(4, dtype=np.float32)[None])


def drafted(index: int) -> VerifiedRows:
    tree = DraftTree(TreeShape.star(2), [index, 1, 2])
    return VerifiedRows(tree, index, (0, 1), np.zeros((3, 4), np.int64), np.zeros((3, 4), np.float32))


def test_a_run_of_plain_steps_is_one_chain() -> None:
    queue = RowQueue()
    first, last = drafted(5), drafted(30)
    queue.add(first)
    for index in range(7, 30):
        queue.add_plain(plain(index))
    queue.add(last)
    queue.add_plain(plain(32))
    rows = queue.take()
    assert (rows[0], rows[2]) == (first, last)
    run = rows[1]
    assert run.tree.token_tuple == tuple(range(7, 30))
    assert run.tree.parents.tolist() == list(range(-1, 22))
    assert (run.root_index, run.path) == (7, tuple(range(23)))
    assert run.top_ids[:, 0].tolist() == list(range(7, 30))
    assert run.top_logits.shape == (23, 4)
    assert (rows[3].root_index, rows[3].tree.num_nodes) == (32, 1)
    assert queue.take() == ()


def test_a_long_run_keeps_its_end() -> None:
    queue = RowQueue()
    for index in range(5 * MAX_PLAIN + 3):
        queue.add_plain(plain(index))
        assert len(queue._plain) < 2 * MAX_PLAIN
    (run,) = queue.take()
    assert run.tree.num_nodes == MAX_PLAIN
    assert run.tree.token_tuple[-1] == 5 * MAX_PLAIN + 2
    assert run.root_index == run.tree.token_tuple[0]


@pytest.mark.parametrize("name", ["merged", "recycling", "suffix", "prompt-lookup"])
def test_a_drafter_learns_the_same_from_a_chain_as_from_single_steps(name: str) -> None:
    """The tree after a run without drafting is the one that it would propose had it seen every step."""
    text = [1, 2, 3, 4, 5, 2, 3, 9, 2, 3, 4, 7, 1, 2]
    rng = np.random.default_rng(0)
    proposed = []
    for joined in (False, True):
        drafter = make_drafter(name)
        drafter.begin(text[:4])
        queue, rows = RowQueue(), []
        for index in range(3, len(text) - 1):
            ids = np.array([[text[index + 1], *rng.permutation(40)[:3]]])
            rng = np.random.default_rng(index)
            row = VerifiedRows(
                DraftTree.root_only(text[index]),
                index,
                (0,),
                ids,
                np.array([[3.0, 1.0, 0.5, 0.0]], np.float32),
            )
            queue.add_plain(row)
            rows.append(row)
        rng = np.random.default_rng(0)
        given = queue.take() if joined else tuple(rows)
        assert len(given) == (1 if joined else len(text) - 4)
        proposed.append(drafter.propose(DraftContext(text, 4, 12, 6, given)))
    assert proposed[0] == proposed[1]
    assert proposed[0].num_drafted > 0
