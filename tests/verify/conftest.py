"""Servers that can lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.verify.server import LyingServer


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def serve() -> Iterator[Callable[..., LyingServer]]:
    """Starts servers; all are stopped after the test."""
    running: list[LyingServer] = []

    def start(**lies: object) -> LyingServer:
        running.append(LyingServer(**lies))
        return running[-1]

    yield start
    for server in running:
        server.stop()
