"""Random numbers of a request, keyed by its seed and the output position: no state, no batch mates.

A number is a pure function of (seed, position, purpose, index), so a request gives the same tokens whatever else is in
its batch, and a step without drafts uses up nothing. Drafting and verification never share a number: a walk that
reads the numbers which drew its drafts is biased (``treedecode.testing.mutations``, "shared random stream").

The generator is Philox 4x64 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), keyed by the seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treedecode.topology import count

_DRAFTING, _VERIFYING = 1, 2


def keyed_uniforms(seed: int, positions: Sequence[int]) -> np.ndarray:
    """The numbers of ``"one_draw"``: one in [0, 1) per output position, float64 ``[len(positions)]``."""
    values = {
        p: np.random.Generator(np.random.Philox(key=seed, counter=[p, 0, 0, 0])).random()
        for p in set(positions)
    }
    return np.array([values[p] for p in positions])


def drafting_uniforms(seed: int, position: int, num_uniforms: int) -> np.ndarray:
    """Numbers to draw the drafts of one step with.

    Args:
        seed: of the request, at least 0 and below 2**128.
        position: output position of the first token that the step emits, at least 0.
        num_uniforms: how many, such as one per drafted node.

    Returns:
        float64 ``[num_uniforms]`` in [0, 1). Fewer numbers of the same step are a prefix of more.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: an argument is negative or too large.
    """
    return _numbers(seed, position, _DRAFTING, num_uniforms)


def verifying_uniforms(seed: int, position: int, num_uniforms: int) -> np.ndarray:
    """Numbers to walk the drafted tree of one step with (methods other than ``"one_draw"``).

    Arguments, result and errors as of ``drafting_uniforms``; ``num_nodes`` numbers are enough for every walk.
    """
    return _numbers(seed, position, _VERIFYING, num_uniforms)


def _numbers(seed: int, position: int, purpose: int, num_uniforms: int) -> np.ndarray:
    counter = [0, count(position, "position"), purpose, 0]  # word 0 counts up as numbers are taken
    bits = np.random.Philox(key=count(seed, "seed", limit_power=128), counter=counter)
    return np.random.Generator(bits).random(count(num_uniforms, "num_uniforms"))
