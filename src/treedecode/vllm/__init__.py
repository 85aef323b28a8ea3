"""Draft trees in stock vLLM 0.32: nothing of vLLM is edited, a worker class and a speculative config turn them on.

``engine_args`` gives both for ``vllm.LLM``; ``treedecode serve`` starts ``vllm serve`` with them. Only modules below
this package import vLLM, and this one does not.
"""

from __future__ import annotations

from treedecode.vllm.config import TreeOptions, engine_args

__all__ = ["TreeOptions", "engine_args"]
