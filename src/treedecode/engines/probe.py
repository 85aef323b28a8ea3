"""Start-up checks of a target: same numbers as the model it came from, and trees that behave like chains."""

from __future__ import annotations

from typing import Any

import torch

from treedecode.engines.step import StepInput
from treedecode.engines.target import Target, UnsupportedModelError
from treedecode.tree import DraftTree, TreeShape

# float32 rounding over a deep model stays below this; a wrong norm, rotation or mask is far above.
_RELATIVE_TOLERANCE = {torch.float64: 1e-4, torch.float32: 2e-3}
_HALF_TOLERANCE = 0.1
# Best logits compared per row.
_NUM_COMPARED = 8


def worst_difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference as a share of the largest expected magnitude."""
    scale = expected.abs().max().clamp_min(1e-6)
    return ((got - expected).abs().max() / scale).item()


def _tolerance(target: Target) -> float:
    return _RELATIVE_TOLERANCE.get(target.dtype, _HALF_TOLERANCE)


def _probe_tokens(vocab_size: int, count: int) -> list[int]:
    return [(37 * i + 11) % vocab_size for i in range(1, count + 1)]


@torch.no_grad()
def reference_logits(model: Any, count: int = 6) -> torch.Tensor:
    """What a transformers model itself says about the probe tokens; ``[count, vocab]``."""
    tokens = _probe_tokens(model.get_input_embeddings().num_embeddings, count)
    return model(torch.tensor([tokens], device=model.device)).logits[0]


@torch.no_grad()
def check_against(target: Target, expected: torch.Tensor) -> str:
    """Compares a target with :func:`reference_logits`; returns the reason it differs, or an empty string."""
    tokens = _probe_tokens(target.vocab_size, expected.shape[0])
    step = StepInput.of_chain(tokens, 0, target.device, target.dtype)
    features = target.forward(step, target.new_cache(len(tokens)))
    values, ids = target.top(features, min(_NUM_COMPARED, target.vocab_size))
    worst = worst_difference(values, expected.gather(1, ids))
    worst = max(worst, worst_difference(values[:, 0], expected.amax(-1)))
    if not worst <= _tolerance(target):
        return f"its logits differ from the model's own by {worst:.1e} of their size"
    return ""


@torch.no_grad()
def check_trees(target: Target, model_type: str) -> None:
    """Runs one small tree and the chain it contains; both must give the same best logits.

    Raises:
        UnsupportedModelError: The model ignores position ids or the mask (ALiBi, fixed causal masks and the like).
    """
    first, second, root, decoy, good, better = _probe_tokens(target.vocab_size, 6)
    count = min(_NUM_COMPARED, target.vocab_size)
    cache = target.new_cache(8)
    target.forward(StepInput.of_chain([first, second], 0, target.device, target.dtype), cache)
    cache.length = 2
    chain = StepInput.of_chain([root, good, better], 2, target.device, target.dtype)
    expected, _ = target.top(target.forward(chain, cache), count)
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 1, 2]), [root, decoy, good, good, better])
    step = StepInput.of_tree(tree, 2, target.device, target.dtype)
    got, _ = target.top(target.forward(step, cache)[[0, 2, 4]], count)
    worst = worst_difference(got, expected)
    if not worst <= _tolerance(target):
        raise UnsupportedModelError(
            f"model type {model_type!r} does not verify trees: logits of a branch differ from the same tokens in a "
            f"chain by {worst:.1e} of their size; it ignores position ids or the 4-D mask"
        )
