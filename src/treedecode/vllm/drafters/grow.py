"""Turns a proposer that vLLM has built into one that proposes trees."""

from __future__ import annotations

from typing import Any

from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.spec_decode.medusa import MedusaProposer

from treedecode.vllm.config import TreeOptions
from treedecode.vllm.drafters.branches import BranchTrees
from treedecode.vllm.drafters.medusa import MedusaTrees
from treedecode.vllm.drafters.model import ModelTrees
from treedecode.vllm.drafters.spine import SpineTrees


def grow_trees(drafter: Any, options: TreeOptions) -> None:
    """Let ``drafter`` propose trees; one that does already is left alone.

    Args:
        drafter: vLLM's proposer, before its model is loaded. Its class is changed.
        options: width, depth and branches of the trees.
    """
    mixins: list[tuple[type, type[SpineTrees]]] = [
        (SpecDecodeBaseProposer, ModelTrees if options.branches == 1 else BranchTrees),
        (MedusaProposer, MedusaTrees),
    ]
    for base, mixin in mixins:
        if isinstance(drafter, base) and not isinstance(drafter, SpineTrees):
            drafter.__class__ = type(f"Tree{type(drafter).__name__}", (mixin, type(drafter)), {})
            drafter.start_trees(options)
