"""JSON from files, servers and command lines, which may hold anything."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str) -> Any:
    """The value that ``text`` is.

    Raises:
        ValueError: It is no JSON, or lists and objects in it are nested deeper than Python recurses.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists and objects are nested too deeply") from None
