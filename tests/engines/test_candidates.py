from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treedecode.engines.candidates import top_candidates
from treedecode.engines.head import Head, Int8Weight, ScreenedHead, probe_int8
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


def test_screened_head_sees_winners_that_int8_hides() -> None:
    """Rows that differ by less than int8 can tell: the bound must keep them all, or fall back."""
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(1, 64, generator=generator)
    weight = base + 1e-4 * torch.randn(4096, 64, generator=generator)
    hidden = torch.randn(5, 64, generator=generator)
    screened = ScreenedHead(weight)
    assert torch.equal(screened.top(hidden, 1)[1][:, 0], (hidden.double() @ weight.double().T).argmax(-1))
    assert screened.num_fallbacks > 0


@settings(max_examples=30)
@given(
    vocab=st.integers(1100, 40000), outlier=st.sampled_from([1.0, 1e3, 1e-2, 0.0]), rows=st.integers(1, 9),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_stated_error_covers_every_rough_logit(vocab: int, outlier: float, rows: int, seed: int) -> None:
    """Against float64, with one column far larger or smaller than the rest, and hidden rows of all magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(vocab, 64, generator=generator)
    weight[:, 3] *= outlier
    if outlier == 1.0:  # int8 holds these exactly: what is left is the rounding of the hidden rows
        weight = torch.randint(-127, 128, (vocab, 64), generator=generator).float()
        weight[0], weight[:, 0] = 127, 127
    hidden = torch.randn(rows, 64, generator=generator) * torch.logspace(-3, 3, rows)[:, None]
    exact = hidden.double() @ weight.double().T
    rough, unit, error = ScreenedHead(weight).screen(hidden)
    assert ((rough.double() * unit[:, None] - exact).abs().amax(1) <= error * unit).all()


def test_rows_of_zeros_and_of_no_numbers_fall_back() -> None:
    """No id stands out of a zero row, and nothing can be said of one with a NaN: both get full logits."""
    weight = torch.randn(4096, 64, generator=torch.Generator().manual_seed(3))
    hidden = torch.zeros(2, 64)
    hidden[1, 5] = float("nan")
    screened = ScreenedHead(weight)
    values, ids = screened.top(hidden, 1)
    assert ids[0, 0] == 0 and values[0, 0] == 0 and values[1, 0].isnan()
    assert screened.num_fallbacks == 2


def test_int8_probe_finds_a_product_that_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors that add pairs of products in 16 bits."""
    assert probe_int8() == ""
    exact = Int8Weight.product
    monkeypatch.setattr(Int8Weight, "product", lambda self, rows: exact(self, rows).clamp(-32768, 32767))
    assert "off by" in probe_int8()


@pytest.mark.parametrize(("isa", "flag"), [("AVX512_CORE_VNNI", "avx512_vnni"), ("AVX2_VNNI", "avx_vnni")])
def test_processors_without_amx_have_a_kernel_too(isa: str, flag: str) -> None:
    """Signed rows are multiplied there by a reference code, in seconds instead of a millisecond."""
    if flag not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this processor has no {flag}")
    script = """
import time, torch
from treedecode.engines.head import Int8Weight, as_bytes, probe_int8
assert probe_int8() == "", probe_int8()
weight = Int8Weight(torch.randn(4096, 640))
rows = as_bytes(torch.randint(-127, 128, (8, 640)).float())
weight.product(rows)
began = time.perf_counter()
weight.product(rows)
print(time.perf_counter() - began)
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": isa, "OMP_NUM_THREADS": "1"},
    )
    assert float(run.stdout) < 0.1


def test_threads_share_a_screened_head() -> None:
    """Tensor operations let other threads run between two lines of Python."""
    generator = torch.Generator().manual_seed(3)
    head = ScreenedHead(torch.randn(20_000, 64, generator=generator))
    batches = [torch.randn(4, 64, generator=generator) for _ in range(3)]
    expected = [head.top(hidden, 4) for hidden in batches]
    wrong = []

    def work(hidden: torch.Tensor, values: torch.Tensor, ids: torch.Tensor) -> None:
        for _ in range(100):
            got_values, got_ids = head.top(hidden, 4)
            if not torch.equal(got_values, values) or not torch.equal(got_ids, ids):
                wrong.append(got_ids)

    threads = [
        threading.Thread(target=work, args=(hidden, *best))
        for hidden, best in zip(batches, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
