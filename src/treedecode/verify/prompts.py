"""Prompts to verify on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """A prompt with a name for the report.

    Attributes:
        name: Short.
        content: Text (special tokens are added as the tokenizer does) or token ids (taken as they are).
    """

    name: str
    content: str | tuple[int, ...]


DEFAULT_PROMPTS = (
    Prompt(
        "prose", "The ferry to the island was late again, and the two women on the pier began to talk about"
    ),
    Prompt(
        "code",
        'import csv\n\n\ndef read_prices(path):\n    """Return a dict of item names and prices."""\n    prices = {}\n',
    ),
    Prompt(
        "list", "Chemical elements and their symbols:\n1. Hydrogen - H\n2. Helium - He\n3. Lithium - Li\n4."
    ),
    Prompt(
        "copy",
        "Repeat the sentence.\nA small green frog sat on a wet leaf.\nA small green frog sat on a wet leaf.\nA",
    ),
    Prompt(
        "dialogue", "Waiter: Good evening. Do you have a reservation?\nGuest: Yes, for two, under the name"
    ),
    Prompt("noise", "qz 17 %% vorp 0x3e ;; lkm ~~ 882 trz"),
)
"""Short prompts of several kinds: text that repeats itself, where trees accept much, and text where they do not."""
