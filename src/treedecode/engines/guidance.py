"""Grammars as users write them, compiled by llguidance (the extra ``grammar``)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np

from treedecode.engines.grammar import CompiledGrammar
from treedecode.json_text import parse_json

Kind = Literal["json", "regex", "ebnf", "choice", "llguidance"]


@dataclass(frozen=True)
class Grammar:
    """A grammar as text.

    Attributes:
        kind: "json" for a JSON schema, "regex" (of the whole output), "ebnf" (Lark's notation, or GBNF with ``::=``),
            "choice" for a JSON list of texts, "llguidance" for what ``llguidance.grammar_from`` returns.
        text: The grammar.

    Raises:
        TypeError, ValueError: Kind or text is not one of those.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(
                f"a grammar's kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}"
            )
        if not isinstance(self.text, str):
            raise TypeError(f"a grammar's text must be a string, got {self.text!r}")
        if self.kind == "choice" and not _is_choice(self.text):
            raise ValueError(
                f"a grammar of kind choice must be a JSON list of at least one text, got {self.text!r}"
            )

    @classmethod
    def of(cls, given: object) -> Grammar:
        """A grammar from a mapping (a JSON schema) or from text, whose kind is told by its form.

        Text that is a JSON object is a schema; with ``::=`` or a rule named ``start`` it is EBNF; else a regex.
        """
        if isinstance(given, Mapping):
            return cls("json", json.dumps(dict(given)))
        if isinstance(given, Grammar):
            return given
        if not isinstance(given, str):
            raise TypeError(
                "grammar must be a JSON schema, a text, a treedecode.Grammar or an object with matcher(), "
                f"got {given!r}"
            )
        if "::=" in given or re.search(r"^\s*start\s*:", given, re.MULTILINE):
            return cls("ebnf", given)
        try:
            return cls("json" if isinstance(parse_json(given), dict) else "regex", given)
        except ValueError:
            return cls("regex", given)


def _is_choice(text: str) -> bool:
    try:
        choices = parse_json(text)
    except ValueError:
        return False
    return isinstance(choices, list) and bool(choices) and all(isinstance(item, str) for item in choices)


def compile_grammar(given: object, tokenizer: Any, vocab_size: int) -> CompiledGrammar:
    """A grammar that is compiled already as it is, any other by llguidance.

    Args:
        given: See :meth:`Grammar.of`, or a :class:`CompiledGrammar` of any engine.
        tokenizer: A fast transformers tokenizer; prepared once, which takes seconds for a large vocabulary.
        vocab_size: Columns of the logits.

    Raises:
        TypeError: It is no grammar.
        ValueError: It is not a valid one, or llguidance is not installed.
    """
    if isinstance(given, CompiledGrammar):
        return given
    grammar = Grammar.of(given)
    try:
        import llguidance
    except ImportError as error:
        raise ValueError(
            "a grammar needs llguidance, which is not installed: pip install 'treedecode[grammar]'"
        ) from error
    try:
        text = llguidance.grammar_from(grammar.kind, grammar.text)
    except ValueError as error:
        raise ValueError(f"the grammar is not valid ({grammar.kind}): {error}") from error
    known = _prepared(tokenizer, vocab_size)
    wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(text, known)
    if wrong:
        raise ValueError(f"the grammar is not valid ({grammar.kind}): {messages[0].strip()}")
    return LLGuidanceGrammar(llguidance.LLMatcher(known, text, log_level=0), known)


_PREPARED: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()


def _prepared(tokenizer: Any, vocab_size: int) -> Any:
    """The tokenizer as llguidance has it."""
    from llguidance.hf import from_tokenizer

    kept = _PREPARED.setdefault(tokenizer, {})
    if vocab_size not in kept:
        try:
            kept[vocab_size] = from_tokenizer(tokenizer, n_vocab=vocab_size)
        except ValueError as error:
            raise ValueError(f"llguidance cannot use this tokenizer for a grammar: {error}") from error
    return kept[vocab_size]


class LLGuidanceGrammar:
    """A :class:`CompiledGrammar` of llguidance.

    Args:
        matcher: An ``LLMatcher`` at the start, which is copied for every request.
        tokenizer: Its ``LLTokenizer``.
    """

    def __init__(self, matcher: Any, tokenizer: Any) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._matcher.deep_copy(), self._tokenizer)


class LLGuidanceMatcher:
    """A :class:`~treedecode.engines.grammar.GrammarMatcher` over an ``LLMatcher``."""

    def __init__(self, matcher: Any, tokenizer: Any) -> None:
        self._matcher = matcher
        self._ends = frozenset(tokenizer.eos_tokens)
        self._words = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)

    def consume(self, token_id: int) -> bool:
        # an end token of the tokenizer that is no stop token of the request has no place in any text
        return token_id not in self._ends and self._matcher.try_consume_tokens([token_id]) == 1

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        self._check()

    def is_complete(self) -> bool:
        return self._matcher.is_accepting()

    def allowed(self) -> np.ndarray:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        words = self._words.view(np.uint32).copy()
        for token in self._ends:
            words[token // 32] &= ~np.uint32(1 << token % 32)
        return words

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RuntimeError(f"llguidance gave up: {self._matcher.get_error()}")
