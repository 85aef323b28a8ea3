"""How the target chooses a token, as checked values; ``processing`` and ``sampling`` do what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from treedecode.engines.tokens import in_order, plain

# Penalties on counts beyond these are refused, as in the OpenAI API and in vLLM: one of 100 for 1.00 is a slip.
_MAX_COUNT_PENALTY = 2.0
# Beyond any logit, and far from overflow in float32, also once divided by a small temperature.
_MAX_BIAS = 1e15


@dataclass(frozen=True)
class SamplingParams:
    """How the target chooses a token.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: Keep the k likeliest tokens, or None.
        top_p: Keep the smallest set whose probability reaches ``top_p`` (0 < top_p <= 1), or None.
        min_p: Drop tokens below ``min_p`` times the likeliest one's probability (0 <= min_p <= 1), or None.
        repetition_penalty: Divide positive and multiply negative logits of every token of prompt or output (Keskar et
            al. 2019, CTRL, section 4.1), or None.
        frequency_penalty: Subtract it from a token's logit once for every time the token is in the output (the
            OpenAI API's, -2 to 2), or None.
        presence_penalty: Subtract it once from the logits of all tokens of the output (the same API's), or None.
        logit_bias: Numbers to add to the logits of some tokens, a mapping by token id; -inf forbids a token. Kept as
            sorted pairs.
        bad_words_ids: Sequences of token ids; the last of one is forbidden where the others stand before it.
        min_tokens: Stop tokens are forbidden until so many tokens are emitted.
        seed: Key of the noise.

    Raises:
        TypeError: A value is not a number of the right kind.
        ValueError: A value is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None
    min_tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, low=0.0)
        if self.top_k is not None:
            object.__setattr__(self, "top_k", check_count("top_k", self.top_k, 1))
        if self.top_p is not None:
            _check_real("top_p", self.top_p, low=0.0, high=1.0, above=True)
        if self.min_p is not None:
            _check_real("min_p", self.min_p, low=0.0, high=1.0)
        if self.repetition_penalty is not None:
            _check_real("repetition_penalty", self.repetition_penalty, low=0.0, above=True)
        for name in ("frequency_penalty", "presence_penalty"):
            if getattr(self, name) is not None:
                _check_real(name, getattr(self, name), -_MAX_COUNT_PENALTY, _MAX_COUNT_PENALTY)
        object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))
        object.__setattr__(self, "bad_words_ids", _sequences(self.bad_words_ids))
        for name in ("min_tokens", "seed"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))

    @property
    def greedy(self) -> bool:
        """Whether the choice is the arg max."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether logits depend on which tokens came before, and how often."""
        return bool(
            self.repetition_penalty not in (None, 1) or self.frequency_penalty or self.presence_penalty
        )


def _bias_pairs(bias: object) -> tuple[tuple[int, float], ...] | None:
    if bias is None:
        return None
    kept = isinstance(bias, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in bias)
    if not isinstance(bias, Mapping) and not kept:
        raise TypeError(f"logit_bias must map token ids to numbers, got {bias!r}")
    pairs: dict[int, float] = {}
    for token, value in dict(bias).items():  # type: ignore[call-overload]
        number = check_count("logit_bias token ids", token)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"logit_bias of token {token} must be a number, got {value!r}")
        if math.isnan(float(value)) or float(value) == math.inf:
            raise ValueError(f"logit_bias of token {token} must be a finite number or -inf, got {value!r}")
        if _MAX_BIAS < abs(float(value)) < math.inf:
            raise ValueError(
                f"logit_bias of token {token} must be at most {_MAX_BIAS:g} in size or -inf, got {value!r}"
            )
        pairs[number] = float(value)
    return tuple(sorted(pairs.items())) or None


def _sequences(words: object) -> tuple[tuple[int, ...], ...] | None:
    if words is None:
        return None
    sequences = []
    for word in in_order("bad_words_ids", words, "sequences of token ids"):
        tokens = tuple(in_order("each of bad_words_ids", word, "a sequence of token ids"))
        if not tokens:
            raise ValueError("bad_words_ids must be sequences of at least one token id, got an empty one")
        sequences.append(tuple(check_count("bad_words_ids", token) for token in tokens))
    return tuple(dict.fromkeys(sequences)) or None


def _check_real(name: str, value: object, low: float, high: float = math.inf, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if (
        not (low < number if above else low <= number)
        or number > high
        or math.isinf(number)
        or math.isnan(number)
    ):
        bounds = f"{'above' if above else 'at least'} {low:g}" + (
            f" and at most {high:g}" if high < math.inf else ""
        )
        raise ValueError(f"{name} must be {bounds}, got {value!r}")


def check_count(name: str, value: object, low: int = 0, high: int | None = None, hint: str = "") -> int:
    """``value`` as an int within ``[low, high]``, else a ``TypeError`` or ``ValueError`` naming the rule."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}{hint}")
    number = int(value)
    if number < low:
        raise ValueError(f"{name} must be at least {low}, got {number}{hint}")
    if high is not None and number > high:
        raise ValueError(f"{name} must be at most {high}, got {number}{hint}")
    return number
