"""Settings that all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may need the network
os.environ["TRITON_INTERPRET"] = "1"  # before anything loads Triton: no test may need a GPU
settings.register_profile("treedecode", max_examples=200, deadline=None)
settings.load_profile("treedecode")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A skip without a stated reason fails the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for report in reporter.stats.get("skipped", []) if reporter else []:
        reason = report.longrepr[2].removeprefix("Skipped").removeprefix(": ")
        if reason in ("", "unconditional skip"):
            reporter.write_line(f"\nskipped without a reason: {report.nodeid}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
