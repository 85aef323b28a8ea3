"""Rooflines: the figures of the design, and the step cost against its definition."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedecode.cost import CostCurve
from treedecode.roofline import Roofline


@pytest.fixture
def h100() -> Roofline:
    return Roofline.of("h100")


def test_ridge_and_break_even_of_the_h100(h100: Roofline) -> None:
    assert h100.ridge_tokens == pytest.approx(295.2, abs=0.05)
    assert h100.break_even_batch(10) == 29
    assert h100.break_even_batch(5) == 59


def test_batch_64_is_past_the_ridge_with_the_wide_tree(h100: Roofline) -> None:
    assert h100.verified_tokens(64, 10) == 640
    assert h100.verified_tokens(64, 5) == 320
    assert h100.past_ridge(64, 10) == pytest.approx(2.2, abs=0.05)
    assert h100.past_ridge(64, 5) == pytest.approx(1.08, abs=0.005)


@pytest.mark.parametrize(
    ("name", "ridge"),
    [
        ("a100", 153.0),
        ("h200", 206.0),
        ("b200", 281.25),
        ("l40s", 419.0),
        ("rtx4090", 163.9),
        ("mi300x", 246.7),
    ],
)
def test_ridges_of_the_other_gpus(name: str, ridge: float) -> None:
    roofline = Roofline.of(name)
    assert roofline.ridge_tokens == pytest.approx(ridge, abs=0.05)
    assert roofline.name and roofline.source


def test_the_documented_table_is_the_code() -> None:
    text = (Path(__file__).parents[1] / "docs" / "planning.md").read_text(encoding="utf-8")
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]
    assert [row[0].strip("`") for row in rows] == list(Roofline.known())
    for key, part, tflops, tb_per_s, ridge, of_ten, of_five, source in rows:
        gpu = Roofline.of(key.strip("`"))
        assert part == gpu.name
        assert (float(tflops), float(tb_per_s)) == (gpu.flops_per_s / 1e12, gpu.bytes_per_s / 1e12)
        assert ridge == f"{gpu.ridge_tokens:.0f}"
        assert (int(of_ten), int(of_five)) == (gpu.break_even_batch(10), gpu.break_even_batch(5))
        assert source == gpu.source


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H100", "h100"),
        (" h-100 ", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("rtx-4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_names_are_taken_as_people_write_them(name: str, key: str) -> None:
    assert Roofline.of(name) == Roofline.of(key)


@pytest.mark.parametrize("name", ["", "h100 pcie", "NVIDIA H100 NVL", "tpu", "a100 40gb"])
def test_unknown_hardware_lists_the_known(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown hardware.*a100, h100, h200, b200, l40s, rtx4090, mi300x"):
        Roofline.of(name)


def test_smaller_weights_move_the_ridge(h100: Roofline) -> None:
    assert Roofline.of("h100", weight_bytes=1).ridge_tokens == pytest.approx(h100.ridge_tokens / 2)
    assert dataclasses.replace(h100, weight_bytes=4).ridge_tokens == pytest.approx(h100.ridge_tokens * 2)


def test_break_even_at_and_below_an_exact_ridge() -> None:
    roofline = Roofline(30e12, 1e12)
    assert roofline.ridge_tokens == 30.0
    assert [roofline.break_even_batch(n) for n in (1, 10, 11, 30, 31)] == [30, 3, 2, 1, 0]
    # the quotient is a little under 93 in binary
    assert Roofline(65.1 * 1e12, 0.7 * 1e12).break_even_batch(3) == 31


def test_step_is_the_longer_of_memory_and_compute(h100: Roofline) -> None:
    assert h100.step_ms(1, 8e9) == pytest.approx(16e9 / 3.35e12 * 1e3)
    assert h100.step_ms(295, 8e9) == h100.step_ms(1, 8e9)
    assert h100.step_ms(640, 8e9) == pytest.approx(2 * 8e9 * 640 / 989e12 * 1e3)
    assert h100.step_ms(1, 8e9, cache_bytes=16e9) == pytest.approx(2 * h100.step_ms(1, 8e9))
    # reading the cache as well leaves time for twice the rows
    assert h100.step_ms(590, 8e9, cache_bytes=16e9) == h100.step_ms(1, 8e9, cache_bytes=16e9)


@given(
    flops=st.floats(1e9, 1e16),
    bandwidth=st.floats(1e9, 1e13),
    params=st.floats(1e6, 1e12),
    cache=st.floats(1.0, 1e12) | st.just(0.0),
    rows=st.integers(1, 3000),
)
def test_the_curve_is_the_step_cost(
    flops: float, bandwidth: float, params: float, cache: float, rows: int
) -> None:
    roofline = Roofline(flops, bandwidth)
    curve = roofline.cost_curve(params, cache)
    assert isinstance(curve, CostCurve)
    assert curve.ms(rows) == pytest.approx(roofline.step_ms(rows, params, cache), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Roofline(0, 1e12), ValueError, "flops_per_s must be positive and finite, got 0"),
        (lambda: Roofline(1e12, float("nan")), ValueError, "bytes_per_s must be positive"),
        (lambda: Roofline(1e12, float("inf")), ValueError, "bytes_per_s must be positive"),
        (lambda: Roofline(1e12, 1e12, -2), ValueError, "weight_bytes must be positive"),
        (lambda: Roofline("1e12", 1e12), TypeError, "flops_per_s must be a number, got '1e12'"),  # pyright: ignore
        (lambda: Roofline.of("h100", weight_bytes=0), ValueError, "weight_bytes"),
        (lambda: Roofline.of("h100").break_even_batch(0), ValueError, "num_nodes must be at least 1"),
        (lambda: Roofline.of("h100").verified_tokens(0, 5), ValueError, "batch must be at least 1"),
        (lambda: Roofline.of("h100").verified_tokens(2.5, 5), TypeError, "batch must be an integer"),  # pyright: ignore
        (lambda: Roofline.of("h100").step_ms(0, 8e9), ValueError, "num_rows must be at least 1"),
        (lambda: Roofline.of("h100").step_ms(1, 0), ValueError, "num_params must be positive"),
        (lambda: Roofline.of("h100").step_ms(1, 8e9, -1), ValueError, "cache_bytes must be positive"),
        (lambda: Roofline.of(None), TypeError, "hardware must be one of a100, .*, got None"),
        (lambda: Roofline(1e300, 1e-300), ValueError, "the ridge.* must be positive and finite, got inf"),
        (
            lambda: Roofline(1e12, 1e12).step_ms(1, 1e308),
            ValueError,
            "milliseconds of a step must be .*, got inf",
        ),
    ],
)
def test_bad_input(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
