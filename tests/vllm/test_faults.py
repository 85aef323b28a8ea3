"""Planted faults, each of which must be seen in the output of the real engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.vllm.cases import GROUPS
from tests.vllm.drafters import drafting
from tests.vllm.running import run_cases
from tests.vllm.test_engine import MAX_LOGPROB_GAP

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]


def no_position_patch(patch):
    from treedecode.vllm.step import StepTrees

    patch.setattr(StepTrees, "position_shift", lambda step: torch.zeros_like(step.rows))


def causal_mask(patch):
    from treedecode.vllm import cpu_view

    patch.setattr(
        cpu_view, "tree_mask_tensor", lambda shape: torch.ones(shape.num_nodes, shape.num_nodes).tril().bool()
    )


def _change_views(patch, change):
    from treedecode.vllm import cpu_attention

    original = cpu_attention.padded_trees
    patch.setattr(cpu_attention, "padded_trees", lambda *args: [change(view) for view in original(*args)])


def prefix_not_visible(patch):
    def change(view):
        hidden = view.hidden.clone()
        hidden[..., : -view.places.shape[1]] = True
        return replace(view, hidden=hidden)

    _change_views(patch, change)


def stale_rows_read(patch):
    """The prefix is taken for two tokens longer: slots that this step's nodes, or rejected ones, lie in."""
    from treedecode.vllm import cpu_attention

    original = cpu_attention.padded_trees

    def change(step, *args):
        trees = [replace(rows, prefix_len=rows.prefix_len + 2) for rows in step.trees]
        return original(replace(step, trees=trees), *args)

    patch.setattr(cpu_attention, "padded_trees", change)


def no_compaction(patch):
    from treedecode.vllm import runner

    patch.setattr(runner, "commit_step", lambda step, walks: 0)


def window_by_slot(patch):
    from treedecode.vllm import cpu_view

    patch.setattr(cpu_view, "node_depths", lambda rows: np.arange(rows.tree.num_nodes))


def _broken(llm, reference, truth, fault):
    """How many tokens differ, and the largest gap of a logprob among those before them."""
    with pytest.MonkeyPatch.context() as patch, drafting("hidden", truth):
        fault(patch)
        # with blocks of an earlier, sound run some faults would not be seen
        llm.reset_prefix_cache()
        answers = run_cases(llm, GROUPS["kinds"])
        llm.reset_prefix_cache()
    different, gap = 0, 0.0
    for [answer], [stock] in zip(answers, reference["kinds"], strict=True):
        pairs = zip(answer.token_ids, stock.token_ids, strict=False)
        same = next((i for i, (mine, right) in enumerate(pairs) if mine != right), len(stock.token_ids))
        different += len(stock.token_ids) - same
        cut = slice(0, same)
        gap = max(
            gap,
            replace(answer, logprobs=answer.logprobs[cut]).logprob_gap(
                replace(stock, logprobs=stock.logprobs[cut])
            ),
        )
    return different, gap


@pytest.mark.parametrize("fault", [no_position_patch, causal_mask, prefix_not_visible, stale_rows_read])
def test_a_fault_in_the_forward_pass_changes_tokens_or_logprobs(llm, reference, truth, fault):
    different, gap = _broken(llm, reference, truth, fault)
    assert different or gap > 10 * MAX_LOGPROB_GAP


def test_without_compaction_tokens_or_logprobs_change(llm, reference, truth):
    different, gap = _broken(llm, reference, truth, no_compaction)
    assert different or gap > 10 * MAX_LOGPROB_GAP


def test_a_window_by_slot_shifts_logprobs(llm, reference, truth):
    """The tokens may survive it: only logprobs tell."""
    _, gap = _broken(llm, reference, truth, window_by_slot)
    assert gap > MAX_LOGPROB_GAP
