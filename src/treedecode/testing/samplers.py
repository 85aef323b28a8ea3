"""The samplers to check: the plain reference, the public function, and the batched tensors, under one signature."""

from __future__ import annotations

import torch

from treedecode.accept import Acceptance, accept_sampled
from treedecode.accept_sampling import accept_sampled_batch
from treedecode.testing.enumeration import Case
from treedecode.testing.reference import Drafted, Row, UniformChance, walk
from treedecode.tree import DraftTree


def reference(
    tree: DraftTree, target_probs: list[Row], draft_probs: list[Row], method: str, uniforms: list[float]
) -> Acceptance:
    """``treedecode.testing.reference``, driven by numbers."""
    drafted = Drafted(tree.shape.parent_tuple, tree.token_tuple, target_probs, draft_probs)
    path, emitted = walk(drafted, method, UniformChance(uniforms))
    return Acceptance(path, emitted, len(path) - 1)


def public(
    tree: DraftTree, target_probs: list[Row], draft_probs: list[Row], method: str, uniforms: list[float]
) -> Acceptance:
    """``treedecode.accept_sampled``."""
    return accept_sampled(tree, target_probs, draft_probs, method, uniforms=uniforms)


def batched(
    batch: list[Case], method: str, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> list[Acceptance]:
    """``accept_sampled_batch`` on all cases at once; trees may differ in size."""
    width = max(case.tree.num_nodes for case in batch)
    vocab_size = len(batch[0].drafted.target_probs[0])

    def padded(rows: list[list], filler: object) -> list[list]:
        return [row + [filler] * (width - len(row)) for row in rows]

    blank = [1.0] + [0.0] * (vocab_size - 1)
    target = padded([list(case.drafted.target_probs) for case in batch], blank)
    draft = padded([list(case.drafted.draft_probs) for case in batch], blank)
    longest = max(width, *(len(case.uniforms) for case in batch))
    uniforms = [case.uniforms + [0.5] * (longest - len(case.uniforms)) for case in batch]
    result = accept_sampled_batch(
        torch.tensor(padded([list(case.tree.shape.parent_tuple) for case in batch], 0), device=device),
        torch.tensor(padded([list(case.tree.token_tuple) for case in batch], 0), device=device),
        torch.tensor(target, dtype=dtype, device=device),
        torch.tensor(uniforms, dtype=torch.float64, device=device),
        torch.tensor(draft, dtype=dtype, device=device),
        method,
        torch.tensor([case.tree.num_nodes for case in batch], device=device),
    )
    return [
        Acceptance(
            [node for node in path if node >= 0], [token for token in tokens if token >= 0], int(accepted)
        )
        for path, tokens, accepted in zip(
            result.path.tolist(), result.token_ids.tolist(), result.num_accepted.tolist(), strict=True
        )
    ]
