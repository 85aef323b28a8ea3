"""Stages and bars: shown on a terminal while they run, elsewhere written once they take long."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from treedecode.cli import progress
from treedecode.cli.progress import Bar, Stages


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


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_counts_what_is_done_and_makes_room(console, terminal):
    target = console(terminal)
    with Bar("Generating", 3, target) as bar:
        bar.refresh()
        with bar.out_of_the_way():
            assert target.file.getvalue() == ""  # too early
        time.sleep(0.1)
        bar.advance()
        bar.refresh()
        with bar.out_of_the_way():
            size = len(target.file.getvalue())
            time.sleep(0.4)
            assert len(target.file.getvalue()) == size
        bar.refresh()
    written = target.file.getvalue()
    if terminal:
        assert "Generating" in written and "1/3" in written
    else:
        assert written == "Generating: 3 in all ...\n"
