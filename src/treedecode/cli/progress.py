"""Stages that take over two seconds, shown on standard error while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_NOTICEABLE_S = 2.0


class Stages:
    """A ``progress`` for ``treedecode.load``: called with the name of a stage, returns a context manager around it.

    On a terminal the running stages are shown with their time; elsewhere a stage is one line, once it has taken two
    seconds.

    Args:
        console: Where to; None for standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
        )
        self._depth = 0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        with self._shown(name) if self._console.is_terminal else self._written(name):
            yield

    @contextmanager
    def _shown(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        task = self._progress.add_task(name, total=None)
        self._depth += 1
        self._progress.start()
        try:
            yield
        finally:
            self._depth -= 1
            self._progress.remove_task(task)
            if not self._depth:
                self._progress.stop()
        if (took := time.monotonic() - began) >= _NOTICEABLE_S:
            self._console.print(f"{name}: {took:.1f} s", style="dim", markup=False)

    @contextmanager
    def _written(self, name: str) -> Iterator[None]:
        timer = threading.Timer(_NOTICEABLE_S, lambda: self._console.print(f"{name} ...", markup=False))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
