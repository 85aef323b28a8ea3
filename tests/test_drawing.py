"""Drawing siblings: the drafter's distribution in draw order, and places for which no token is left."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from treedecode.accept_sampling import accept_sampled_batch
from treedecode.drawing import draw, draw_siblings

ROW = [0.1, 0.0, 0.6, 0.3]


def grid(size, columns):
    """Midpoints of a grid over [0, 1)^columns: as good as an integral for rows in tenths."""
    points = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    return torch.cartesian_prod(*[points] * columns).view(-1, columns)


@pytest.mark.parametrize("replacement", [False, True])
def test_siblings_follow_the_drafter(replacement):
    uniforms = grid(420, 2)  # every threshold (tenths, thirds, quarters, sevenths) falls between two points
    probs = torch.tensor([ROW], dtype=torch.float64).expand(len(uniforms), -1)
    tokens = draw_siblings(probs, uniforms, replacement)
    counts = torch.bincount(tokens[:, 0] * 4 + tokens[:, 1], minlength=16).double() / len(uniforms)
    for first in range(4):
        for second in range(4):
            left = 1.0 if replacement else 1 - ROW[first]
            same = first == second and not replacement
            expected = 0.0 if same or not ROW[first] else ROW[first] * ROW[second] / left
            assert float(counts[4 * first + second]) == pytest.approx(expected, abs=1e-9)


def test_without_replacement_siblings_differ_until_none_is_left():
    probs = torch.tensor([ROW], dtype=torch.float64).expand(50, -1)
    uniforms = torch.rand(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens = draw_siblings(probs, uniforms, replacement=False)
    assert all(tuple(row[:3]) in set(permutations((0, 2, 3))) for row in tokens.tolist())
    assert tokens[:, 3].tolist() == [0] * 50
    assert draw_siblings(probs, uniforms[:, :0], replacement=False).shape == (50, 0)


@pytest.mark.parametrize("method", ["without_replacement", "traversal"])
def test_a_place_for_which_no_token_was_left_is_never_accepted(method):
    """The drafter has token 2 alone, which the target never says; the second sibling, token 0, is no draw."""
    draft = torch.tensor([[[0.0, 0.0, 1.0]] * 3])
    target = torch.tensor([[[0.5, 0.5, 0.0]] * 3])
    tokens = torch.tensor([[0, 2, 0]])
    for uniform in (0.0, 0.4, 0.6):
        numbers = torch.full((1, 3), uniform, dtype=torch.float64)
        result = accept_sampled_batch(torch.tensor([[-1, 0, 0]]), tokens, target, numbers, draft, method)
        assert result.num_accepted.tolist() == [0]
        assert result.token_ids[0, 0].item() == int(uniform > 0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_dtype_draws_a_token_without_mass(dtype):
    row = torch.tensor([ROW[::-1]]).to(dtype)
    for uniform in (0.0, 0.5, 1 - 2**-53):
        numbers = torch.full((1, 3), uniform, dtype=torch.float64)
        assert draw(row, numbers[:, 0]).item() != 2
        for replacement in (False, True):
            assert 2 not in draw_siblings(row, numbers, replacement).tolist()[0]
    assert torch.equal(row, torch.tensor([ROW[::-1]]).to(dtype))  # not modified


def test_drawing_does_not_synchronise():
    with FakeTensorMode():
        probs, numbers = torch.zeros(4, 11), torch.zeros(4, 3, dtype=torch.float64)
        assert draw_siblings(probs, numbers, replacement=False).shape == (4, 3)
