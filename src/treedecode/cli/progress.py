"""Work that takes over two seconds, shown on standard error while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

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


class Bar:
    """Work of many equal parts: a context manager that shows how many are done, once it has taken two seconds.

    On a terminal it is a bar; elsewhere one line that says what is being done.

    Args:
        name: What is done.
        total: How many parts there are.
        console: Where to; None for standard error.
    """

    def __init__(self, name: str, total: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            redirect_stdout=False,  # results go to standard output, not here
            refresh_per_second=4,
        )
        self._task = self._progress.add_task(name, total=total)
        self._line = f"{name}: {total} in all ..."
        self._shown = False

    def __enter__(self) -> Bar:
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    def advance(self) -> None:
        """One part more is done."""
        self._progress.advance(self._task)

    def refresh(self) -> None:
        """Shows the bar if it is time; to be called often."""
        if self._shown or time.monotonic() - self._began < _NOTICEABLE_S:
            return
        self._shown = True
        if self._console.is_terminal:
            self._progress.start()
        else:
            self._console.print(self._line, markup=False)

    @contextmanager
    def out_of_the_way(self) -> Iterator[None]:
        """Hides the bar while something else is printed, perhaps to the same terminal."""
        was_there = self._progress.live.is_started
        self._hide()
        yield
        if was_there:
            self._progress.start()

    def _hide(self) -> None:
        if self._progress.live.is_started:  # elsewhere stopping prints an empty line
            self._progress.stop()
