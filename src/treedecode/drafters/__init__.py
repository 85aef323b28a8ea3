"""Drafters that need no model, and the seam for your own: see ``base``."""

from __future__ import annotations

from collections.abc import Callable

from treedecode.drafters.base import DraftContext, Drafter, VerifiedRows
from treedecode.drafters.merged import MergedDrafter
from treedecode.drafters.prompt_lookup import PromptLookupDrafter
from treedecode.drafters.shared import SharedStore

__all__ = [
    "DRAFTERS",
    "SHARING_DRAFTERS",
    "DraftContext",
    "Drafter",
    "MergedDrafter",
    "PromptLookupDrafter",
    "SharedStore",
    "VerifiedRows",
    "check_drafter",
    "make_drafter",
]

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "merged": MergedDrafter,
    "recycling": lambda: MergedDrafter("recycling", suffix=False),
    "suffix": lambda: MergedDrafter("suffix", recycling=False),
    "prompt-lookup": PromptLookupDrafter,
}

# Those that can draft from what ended requests have left.
SHARING_DRAFTERS: dict[str, Callable[[SharedStore], MergedDrafter]] = {
    "merged": lambda store: MergedDrafter(shared=store),
    "recycling": lambda store: MergedDrafter("recycling", suffix=False, shared=store),
    "suffix": lambda store: MergedDrafter("suffix", recycling=False, shared=store),
}


def check_drafter(drafter: object) -> None:
    """Refuses what :func:`make_drafter` would, with its errors, and makes nothing."""
    if isinstance(drafter, str):
        if drafter not in DRAFTERS:
            raise ValueError(f"drafter must be one of {', '.join(DRAFTERS)}, got {drafter!r}")
    elif not isinstance(drafter, Drafter):
        raise TypeError(
            f"a drafter must have name, begin(prompt_ids) and propose(context), got {type(drafter).__name__}"
        )


def make_drafter(drafter: str | Drafter = "merged") -> Drafter:
    """A fresh drafter by name; an object with the ``Drafter`` methods is returned as it is.

    Raises:
        ValueError: no drafter has this name; the message lists those that do.
        TypeError: the object is no drafter.
    """
    check_drafter(drafter)
    return DRAFTERS[drafter]() if isinstance(drafter, str) else drafter
