"""Exact tree speculative decoding: draft a tree, verify it in one forward pass, keep the longest right path.

Names are loaded when they are first used, so importing the package costs less than importing numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treedecode.accept import Acceptance, accept_greedy, accept_sampled
    from treedecode.acceptance import EdgeEstimates
    from treedecode.allocate import Allocation, allocate_batch, cut_batch
    from treedecode.batch import pad_to_bucket
    from treedecode.buckets import BucketPlanner, Buckets
    from treedecode.cost import CostCurve
    from treedecode.drafters import make_drafter
    from treedecode.drafters.base import DraftContext, Drafter, VerifiedRows
    from treedecode.dynamic import DynamicPlan, plan_dynamic
    from treedecode.engines.guidance import Grammar
    from treedecode.engines.hf import Chunk, Generation, stream
    from treedecode.engines.hf_batch import BatchStream, generate, stream_batch
    from treedecode.engines.hook import custom_generate
    from treedecode.engines.load import LoadedModel, load
    from treedecode.engines.logprobs import TokenLogprobs
    from treedecode.engines.target import UnsupportedModelError
    from treedecode.expect import expected_tokens, node_reach
    from treedecode.families import plan_branches, plan_leaf_siblings
    from treedecode.kv import commit_path
    from treedecode.models import ModelNotFoundError
    from treedecode.planner import plan_tree
    from treedecode.reliability import Reliability
    from treedecode.roofline import Roofline
    from treedecode.surface import CostSurface
    from treedecode.trace import TraceWriter, read_trace
    from treedecode.tree import DraftTree, TreeShape

__version__ = "0.1.0"

_HOME = {
    "Acceptance": "accept",
    "Allocation": "allocate",
    "BatchStream": "engines.hf_batch",
    "BucketPlanner": "buckets",
    "Buckets": "buckets",
    "Chunk": "engines.hf",
    "CostCurve": "cost",
    "CostSurface": "surface",
    "DraftContext": "drafters.base",
    "DraftTree": "tree",
    "Drafter": "drafters.base",
    "DynamicPlan": "dynamic",
    "EdgeEstimates": "acceptance",
    "Generation": "engines.hf",
    "Grammar": "engines.guidance",
    "LoadedModel": "engines.load",
    "ModelNotFoundError": "models",
    "Reliability": "reliability",
    "Roofline": "roofline",
    "TokenLogprobs": "engines.logprobs",
    "TraceWriter": "trace",
    "TreeShape": "tree",
    "UnsupportedModelError": "engines.target",
    "VerifiedRows": "drafters.base",
    "accept_greedy": "accept",
    "accept_sampled": "accept",
    "allocate_batch": "allocate",
    "commit_path": "kv",
    "custom_generate": "engines.hook",
    "cut_batch": "allocate",
    "expected_tokens": "expect",
    "generate": "engines.hf_batch",
    "load": "engines.load",
    "make_drafter": "drafters",
    "node_reach": "expect",
    "pad_to_bucket": "batch",
    "plan_branches": "families",
    "plan_dynamic": "dynamic",
    "plan_leaf_siblings": "families",
    "plan_tree": "planner",
    "read_trace": "trace",
    "stream": "engines.hf",
    "stream_batch": "engines.hf_batch",
}

__all__ = [
    "Acceptance",
    "Allocation",
    "BatchStream",
    "BucketPlanner",
    "Buckets",
    "Chunk",
    "CostCurve",
    "CostSurface",
    "DraftContext",
    "DraftTree",
    "Drafter",
    "DynamicPlan",
    "EdgeEstimates",
    "Generation",
    "Grammar",
    "LoadedModel",
    "ModelNotFoundError",
    "Reliability",
    "Roofline",
    "TokenLogprobs",
    "TraceWriter",
    "TreeShape",
    "UnsupportedModelError",
    "VerifiedRows",
    "accept_greedy",
    "accept_sampled",
    "allocate_batch",
    "commit_path",
    "custom_generate",
    "cut_batch",
    "expected_tokens",
    "generate",
    "load",
    "make_drafter",
    "node_reach",
    "pad_to_bucket",
    "plan_branches",
    "plan_dynamic",
    "plan_leaf_siblings",
    "plan_tree",
    "read_trace",
    "stream",
    "stream_batch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'treedecode' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"treedecode.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
