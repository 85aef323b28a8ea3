"""A validated request: everything the decode loop needs to know, checked before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from treedecode.budget import AUTO_MAX_DRAFTED
from treedecode.engines.grammar import CompiledGrammar
from treedecode.engines.params import SamplingParams, check_count
from treedecode.engines.tokens import in_order, plain

# More drafted nodes than this never paid on any measured machine, and the cache is sized by the budget.
MAX_BUDGET = 1024


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it.

    Attributes:
        prompt_ids: At least one token id.
        max_new_tokens: At most this many tokens are emitted; 0 emits none.
        budget: Drafted nodes per step, or None for as many as pay ("auto"). 0 is plain decoding.
        sampling: How the target chooses.
        stop_ids: Token ids that end the output; the stop token itself is emitted.
        prompt_rows: The target's candidates after this many of the last prompt tokens are shown to the drafter.
        processors: transformers' ``LogitsProcessor`` objects or other functions of ``input_ids`` and scores.
        grammar: What the output must be.
        padding: Tokens that the processors see before the prompt, as a padded batch of transformers has them.
        num_logprobs: Log probabilities of the emitted tokens are wanted, and of so many of the likeliest at their
            places; None for none.
        dense: Verify the whole tree, but commit one token, so that every output position has a tree: for traces. The
            output is the same.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    budget: int | None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: frozenset[int] = frozenset()
    prompt_rows: int = 0
    processors: tuple[Callable[[Any, Any], Any], ...] = ()
    grammar: CompiledGrammar | None = None
    padding: tuple[int, ...] = ()
    num_logprobs: int | None = None
    dense: bool = False

    @property
    def max_drafted(self) -> int:
        """The widest tree any step may have."""
        return AUTO_MAX_DRAFTED if self.budget is None else self.budget


def check_budget(budget: object) -> int | None:
    """``"auto"`` gives None, a number of drafted nodes gives itself."""
    if isinstance(budget, str) and budget == "auto":
        return None
    return check_count("budget", budget, 0, MAX_BUDGET, hint='; or "auto" for as many nodes as pay')


def check_stop_ids(eos_token_id: object) -> frozenset[int]:
    """The set of stop tokens from none, one id or several."""
    if eos_token_id is None:
        return frozenset()
    values = plain(eos_token_id)
    if isinstance(values, bytes | bytearray | memoryview | Mapping):
        raise TypeError(f"eos_token_id must be one or more integers, got {values!r}")
    if not isinstance(values, Iterable):
        values = [values]
    return frozenset(check_count("eos_token_id", value) for value in values)


def check_prompt(prompt_ids: object, vocab_size: int, max_positions: int | None) -> tuple[int, ...]:
    """Prompt token ids, checked against the vocabulary and the longest sequence the model allows."""
    ids = tuple(
        check_count(
            "prompt token ids", token, 0, vocab_size - 1, hint=f" (the vocabulary has {vocab_size} tokens)"
        )
        for token in in_order("a prompt", prompt_ids)
    )
    if not ids:
        raise ValueError("the prompt is empty: expected at least one token")
    if max_positions is not None and len(ids) > max_positions:
        raise ValueError(f"the prompt has {len(ids)} tokens, the model allows at most {max_positions}")
    return ids
