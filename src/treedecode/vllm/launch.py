"""``python -m treedecode.vllm.launch``: vLLM's own command, after the fixes that it needs to start."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from treedecode.vllm.config import WORKERS
from treedecode.vllm.fixes import name_of_the_cpu_build

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@contextmanager
def shared_metrics() -> Iterator[None]:
    """A folder for the metrics of all processes, for as long as the command runs; one that the user has set is kept.

    It must be there before Prometheus' client is imported.
    """
    if METRICS_FOLDER in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="treedecode-metrics-") as folder:
        os.environ[METRICS_FOLDER] = folder
        yield


def main() -> None:
    """Run vLLM's command on this process's arguments."""
    name_of_the_cpu_build()
    trees_are_on = any(argument.endswith(WORKERS) for argument in sys.argv)
    with shared_metrics() if trees_are_on else nullcontext():
        from vllm.entrypoints.cli.main import main as vllm_main

        vllm_main()


if __name__ == "__main__":
    main()
