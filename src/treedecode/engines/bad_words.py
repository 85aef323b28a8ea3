"""Bad words as text: which token sequences they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treedecode.engines.tokens import check_text


def check_texts(name: str, texts: object) -> list[str]:
    """``texts``, one string or several, as a list; a ``TypeError`` or ``ValueError`` naming the rule otherwise."""
    items: Any = [texts] if isinstance(texts, str) else texts
    if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
        raise TypeError(f"{name} must be one or more non-empty strings, got {texts!r}")
    if not all(items):
        raise ValueError(f"{name} must be one or more non-empty strings, got {texts!r}")
    return [check_text(name, item) for item in items]


def bad_word_ids(
    tokenizer: Any, texts: Sequence[str] | None, token_ids: Sequence[Sequence[int]] | None
) -> Sequence[Sequence[int]] | None:
    """Both kinds of bad words as token ids: every text as it is tokenised at the start of a text and after a space.

    Raises:
        TypeError, ValueError: The texts are not non-empty strings.
    """
    if texts is None:
        return token_ids
    found: list[Sequence[int]] = list(token_ids or ())
    for text in check_texts("bad_words", texts):
        for form in (text, " " + text.lstrip()):
            found.append(tokenizer(form, add_special_tokens=False)["input_ids"])
    return [ids for ids in found if len(ids)]
