"""The program: ``treedecode``, or ``python -m treedecode``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_INTERRUPTED = 130


def main() -> int:
    """Runs the command line of the process and returns its exit code, also for Ctrl-C while modules are imported."""
    # not KeyboardInterrupt: an extension module that is being imported may swallow it, and there is nothing to undo
    before: Any = signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    from treedecode.cli.app import main as run

    signal.signal(signal.SIGINT, before)
    try:
        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
