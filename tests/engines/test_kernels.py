from __future__ import annotations

import pytest
import torch

from treedecode.engines.kernels import TORCH, choose_kernels, numba_kernels


@pytest.mark.parametrize("weighted", [True, False])
def test_compiled_kernels_equal_tensor_operations(weighted: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outcomes = []
    heads = torch.randn(5, 8, 16, generator=generator)
    weight = torch.rand(6, 16, generator=generator) if weighted else None
    cos, sin = (torch.randn(5, 1, 16, generator=generator) for _ in range(2))
    hidden, mixed = (torch.randn(5, 48, generator=generator) for _ in range(2))
    post, pre = (torch.rand(48, generator=generator) for _ in range(2))
    for kernels in (TORCH, numba_kernels()):
        keys, values, total = torch.zeros(2, 9, 16), torch.zeros(2, 9, 16), hidden.clone()
        query = kernels.rotate_and_store(heads, weight, cos, sin, 1e-6, 4, keys, values, 3)
        normed = kernels.add_norm(total, mixed, post if weighted else None, pre, 1e-6)
        outcomes.append((query, keys, values, total, normed))
    for got, expected in zip(*reversed(outcomes), strict=True):
        torch.testing.assert_close(got, expected)


def test_compiled_kernels_serve_float32_on_cpu_alone() -> None:
    cpu = torch.device("cpu")
    assert choose_kernels(cpu, torch.float32).name == "numba"
    assert choose_kernels(cpu, torch.float64) is choose_kernels(cpu, torch.bfloat16) is TORCH
    assert choose_kernels(torch.device("meta"), torch.float32) is TORCH


def test_a_default_dtype_of_the_caller_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    heads, keys, values = (
        torch.randn(5, 8, 16, generator=generator),
        torch.zeros(2, 9, 16),
        torch.zeros(2, 9, 16),
    )
    cos, sin = (torch.randn(5, 1, 16, generator=generator) for _ in range(2))
    torch.set_default_dtype(torch.float64)
    try:
        query = numba_kernels().rotate_and_store(heads, None, cos, sin, 1e-6, 4, keys, values, 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert query.dtype == torch.float32
