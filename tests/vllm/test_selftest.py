"""The start-up self-test: it compares every kind of layer, and sees a wrong layout or a wrong backend."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.vllm.conftest import runner_of

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]


def test_sliding_and_full_layers_are_compared(llm):
    from treedecode.vllm.selftest import self_test

    assert self_test(runner_of(llm)) >= 2


def test_a_wrong_layout_is_seen(llm, monkeypatch):
    from treedecode.vllm import cpu_attention, selftest

    original = cpu_attention.block_layout

    def rows_swapped(*args):
        layout = original(*args)
        order = torch.arange(layout.block_size * layout.head_size)
        return replace(layout, value_order=order.view(layout.block_size, -1).flip(0).flatten())

    monkeypatch.setattr(cpu_attention, "block_layout", rows_swapped)
    with pytest.raises(RuntimeError, match=r"self-test failed on layer .* differs from vLLM's attention"):
        selftest.self_test(runner_of(llm))


def test_another_backend_is_seen(llm, monkeypatch):
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl

    from treedecode.vllm import selftest

    runner = runner_of(llm)
    name = runner.attn_groups[0][0].layer_names[0]
    layer = runner.compilation_config.static_forward_context[name]
    monkeypatch.setattr(layer, "impl", object.__new__(CPUAttentionBackendImpl))
    with pytest.raises(RuntimeError, match="must run treedecode's attention, got CPUAttentionBackendImpl"):
        selftest.self_test(runner)


def test_the_cache_is_left_alone(llm):
    from treedecode.vllm.selftest import self_test

    runner = runner_of(llm)
    before = [cache.sum().item() for cache in runner.kv_caches]
    self_test(runner)
    assert [cache.sum().item() for cache in runner.kv_caches] == before
