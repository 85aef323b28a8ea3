"""Servers that can lie."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.conftest import one_thread  # noqa: F401 (a fixture of this package too)
from tests.verify.server import LyingServer, Serve


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers; all are stopped after the test."""
    running: list[LyingServer] = []

    def start(**lies: object) -> LyingServer:
        running.append(LyingServer(**lies))
        return running[-1]

    yield start
    for server in running:
        server.stop()
