"""Keyed numbers: a function of seed, position and purpose, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from treedecode.streams import drafting_uniforms, keyed_uniforms, verifying_uniforms

STREAMS = (drafting_uniforms, verifying_uniforms)


def test_one_draw_numbers_are_in_range_and_take_large_seeds():
    uniforms = keyed_uniforms(2**64 - 1, range(500))
    assert 0 <= uniforms.min() < uniforms.max() < 1
    assert len(set(uniforms.tolist())) == 500


def test_one_draw_numbers_depend_on_seed_and_position_only():
    first = keyed_uniforms(1, [4, 5, 5])
    assert first[1] == first[2] == keyed_uniforms(1, [5])[0] != first[0]
    assert keyed_uniforms(2, [4])[0] != first[0]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_is_a_function_of_its_key(stream):
    first = stream(3, 17, 9)
    np.random.default_rng(0).random(5)  # other generators are of no matter
    assert np.array_equal(first, stream(3, 17, 9))
    assert np.array_equal(first[:4], stream(3, 17, 4))  # a smaller tree has a prefix of the numbers
    assert len(stream(3, 17, 0)) == 0
    assert first.dtype == np.float64 and (first >= 0).all() and (first < 1).all()


def test_no_two_keys_share_a_number():
    """Seeds, positions and purposes, at more numbers than one Philox block: all are different."""
    numbers = [stream(seed, p, 33) for stream in STREAMS for seed in (0, 1, 2**64) for p in range(40)]
    numbers += [keyed_uniforms(seed, range(200)) for seed in (0, 1, 2**64)]
    together = np.concatenate(numbers)
    assert len(np.unique(together)) == len(together)


@pytest.mark.parametrize("other", [drafting_uniforms, lambda seed, p, n: keyed_uniforms(seed, [p] * n)])
def test_drafting_and_verification_are_not_correlated(other):
    pairs = np.array([[other(0, p, 1)[0], verifying_uniforms(0, p, 1)[0]] for p in range(4000)])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 5 / np.sqrt(4000)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 0, 1), ValueError, "seed must be at least 0, got -1"),
        ((0, -1, 1), ValueError, "position must be at least 0, got -1"),
        ((0, 0, -1), ValueError, "num_uniforms must be at least 0, got -1"),
        ((0.5, 0, 1), TypeError, "seed"),
    ],
)
def test_bad_keys_are_refused(stream, arguments, error, message):
    with pytest.raises(error, match=message):
        stream(*arguments)


def test_seeds_have_128_bits() -> None:
    drafting_uniforms(2**128 - 1, 0, 1)
    with pytest.raises(ValueError, match=r"seed must be below 2\*\*128 in size"):
        drafting_uniforms(2**128, 0, 1)
