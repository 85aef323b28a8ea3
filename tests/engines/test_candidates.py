from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treedecode.engines.candidates import top_candidates
from treedecode.engines.head import Head, ScreenedHead
from treedecode.engines.linear import Linear


@given(
    vocab=st.integers(8, 3000), count=st.integers(1, 8), levels=st.integers(1, 400), seed=st.integers(0, 99)
)
def test_equals_a_full_sort(vocab: int, count: int, levels: int, seed: int) -> None:
    """Few levels make many ties: values are exact, and the first id is the lowest of the largest."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (3, vocab), generator=generator).float()
    values, ids = top_candidates(logits, count)
    assert torch.equal(values, logits.sort(dim=-1, descending=True).values[:, :count])
    best = [int((row == row.max()).nonzero()[0]) for row in logits]
    assert ids[:, 0].tolist() == best
    assert torch.equal(logits.gather(1, ids), values)


@pytest.mark.parametrize("spread", [3.0, 0.05, 0.0])
def test_screened_head_is_exact(spread: float) -> None:
    """From clear winners to exact ties of the whole vocabulary: the choice is the float32 arg max."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(4096, 64, generator=generator) * spread
    hidden = torch.randn(9, 64, generator=generator)
    plain = Head(Linear([weight], [None], pack=False), None)
    screened = ScreenedHead(weight)
    values, ids = screened.top(hidden, 8)
    expected_values, expected_ids = plain.top(hidden, 8)
    assert torch.equal(ids[:, 0], expected_ids[:, 0])
    torch.testing.assert_close(values, expected_values, rtol=1e-4, atol=1e-5)


def test_screened_head_sees_winners_that_bfloat16_hides() -> None:
    """Rows that differ by less than bfloat16 can tell: the bound must keep them all, or fall back."""
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(1, 64, generator=generator)
    weight = base + 1e-4 * torch.randn(4096, 64, generator=generator)
    hidden = torch.randn(5, 64, generator=generator)
    screened = ScreenedHead(weight)
    assert torch.equal(screened.top(hidden, 1)[1][:, 0], (hidden.double() @ weight.double().T).argmax(-1))
    assert screened.num_fallbacks > 0
