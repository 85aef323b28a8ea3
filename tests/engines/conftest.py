"""Tiny models, each made once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines.tiny import make_tiny


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Any]:
    """``tiny(name)`` is the model of that family, made at the first call."""
    return functools.cache(make_tiny)
