from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.tiny import LONG, PROMPTS, drafters, reference, target_of
from treedecode.engines.cache import KVCache, LayerSpec
from treedecode.engines.loop import Decoder
from treedecode.engines.request import Request
from treedecode.testing.oracle import committed_rows
from treedecode.testing.strategies import accepted_paths

CPU = torch.device("cpu")
SPECS = [
    LayerSpec(1, 4, None),
    LayerSpec(2, 8, 16),
    LayerSpec(1, 4, None),
    LayerSpec(1, 4, None, value_dim=3),
]


def numbered(rows: int) -> KVCache:
    """A cache whose rows hold their own number, keys apart from values and layers apart from each other."""
    cache = KVCache(SPECS, rows, torch.float32, CPU)
    for index in range(len(SPECS)):
        for place, tensor in enumerate(cache.layer(index)):
            tensor.copy_(torch.arange(float(rows))[:, None].expand_as(tensor) + 100 * (2 * index + place))
    return cache


def test_commit_moves_rows_of_every_layer_in_place() -> None:
    """CASES 23, for layers of two shapes at once."""
    specs = [LayerSpec(1, 4, None), LayerSpec(2, 8, 16), LayerSpec(1, 4, None)]
    cache = KVCache(specs, 12, torch.float32, CPU)
    pointers = cache.data_ptrs()
    for index in range(3):
        for tensor in cache.layer(index):
            tensor.copy_(torch.arange(12.0)[:, None].expand_as(tensor))
    cache.length = 4
    cache.commit([0, 3, 4, 5])
    assert cache.length == 8
    assert cache.data_ptrs() == pointers
    for index in range(3):
        for tensor in cache.layer(index):
            assert tensor[0, :8, 0].tolist() == [0, 1, 2, 3, 4, 7, 8, 9]


@given(path=accepted_paths(), prefix_len=st.integers(0, 5))
def test_commit_equals_a_gather(path: list[int], prefix_len: int) -> None:
    """CASES 24, in every layer, keys and values apart."""
    cache = numbered(prefix_len + 24)
    before = [tensor.clone() for index in range(len(SPECS)) for tensor in cache.layer(index)]
    cache.length = prefix_len
    cache.commit(path)
    rows = committed_rows(prefix_len + 24, prefix_len, path)
    after = [tensor for index in range(len(SPECS)) for tensor in cache.layer(index)]
    assert cache.length == prefix_len + len(path)
    for got, old in zip(after, before, strict=True):
        assert got.equal(old[:, rows])


def test_layers_of_one_shape_share_storage_but_not_rows() -> None:
    cache = KVCache(SPECS, 5, torch.float32, CPU)
    assert len(cache) == len(SPECS)
    assert len(cache.data_ptrs()) == 6  # keys and values of three shapes
    shapes = [tuple(tensor.shape) for index in range(len(SPECS)) for tensor in cache.layer(index)]
    assert shapes == [(1, 5, 4), (1, 5, 4), (2, 5, 8), (2, 5, 8), (1, 5, 4), (1, 5, 4), (1, 5, 4), (1, 5, 3)]
    starts = {tensor.data_ptr() for index in range(len(SPECS)) for tensor in cache.layer(index)}
    assert len(starts) == 2 * len(SPECS)


@pytest.mark.parametrize("implementation", ["fused", "transformers"])
def test_allocated_once_for_a_whole_generation(implementation: str) -> None:
    prompt, count, budget = PROMPTS[LONG], 60, 12
    target = target_of("gemma3", implementation)
    drafter = drafters(prompt + reference("gemma3", LONG))["adversarial"]
    decoder = Decoder(target, Request(tuple(prompt), count, budget), drafter)
    seen = set()
    for _ in decoder.run():
        seen.add(tuple(decoder.cache.data_ptrs()))
        assert decoder.cache.length <= decoder.cache.capacity == len(prompt) + count + budget
    assert len(seen) == 1
    assert decoder.cache.length == len(prompt) + count - 1  # the last token is emitted, not cached


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_committed_rows_are_those_of_a_plain_forward(name: str) -> None:
    """CASES 23: after many trees the cache holds what one forward pass over the tokens would."""
    prompt, output = PROMPTS[LONG], reference(name, LONG)
    target = target_of(name, "fused")
    decoder = Decoder(target, Request(tuple(prompt), 50, 12), drafters(prompt + output)["adversarial"])
    list(decoder.run())
    plain = Decoder(target, Request((*prompt, *output[:49]), 1, 0))
    list(plain.run())
    length = plain.cache.length
    assert decoder.cache.length == length
    for index in range(len(plain.cache)):
        for got, expected in zip(decoder.cache.layer(index), plain.cache.layer(index), strict=True):
            torch.testing.assert_close(got[:, :length], expected[:, :length])
