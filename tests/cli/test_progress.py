"""Stages: shown on a terminal while they run, elsewhere written once they take long."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from treedecode.cli import progress
from treedecode.cli.progress import Stages


@pytest.fixture
def console(monkeypatch):
    monkeypatch.setattr(progress, "_NOTICEABLE_S", 0.05)

    def console(terminal):
        return Console(file=io.StringIO(), force_terminal=terminal, width=200, highlight=False)

    return console


@pytest.mark.parametrize("terminal", [True, False])
def test_long_stages_leave_a_line(console, terminal):
    target = console(terminal)
    stages = Stages(target)
    with stages("outer [not markup]"), stages("inner"):
        time.sleep(0.2)
    with stages("short"):
        pass
    written = target.file.getvalue()
    assert "outer [not markup]" in written
    assert "inner" in written
    if terminal:
        assert "inner: 0.2 s" in written
    else:
        assert written.splitlines() == ["outer [not markup] ...", "inner ..."]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_stage_that_fails_ends(console, terminal):
    target = console(terminal)
    stages = Stages(target)
    with pytest.raises(KeyError), stages("outer"), stages("inner"):
        raise KeyError
    time.sleep(0.1)
    assert "..." not in target.file.getvalue()
    with stages("next"):
        pass
