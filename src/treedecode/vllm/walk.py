"""From sampled rows to what vLLM expects of a step: the walk of every request, and the output it leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput

from treedecode.accept import Acceptance, accept_greedy
from treedecode.tree import DraftTree

# vLLM's mark of "no token".
_NO_TOKEN = -1


def walk_rows(trees: Sequence[DraftTree], sampled_ids: Sequence[int]) -> list[Acceptance]:
    """Walk each request's tree along the tokens sampled in its rows.

    Args:
        trees: one per request, in batch order.
        sampled_ids: ``[sum(num_nodes)]``.
    """
    walks, first = [], 0
    for tree in trees:
        end = first + tree.num_nodes
        if tree.num_nodes == 1:
            walks.append(Acceptance([0], [sampled_ids[first]], 0))
        else:
            walks.append(accept_greedy(tree, sampled_ids[first:end]))
        first = end
    return walks


def walked_output(
    output: SamplerOutput, trees: Sequence[DraftTree], walks: Sequence[Acceptance]
) -> SamplerOutput:
    """The sampler's output of all rows, reduced to the walked paths, ``[B, most emitted]`` padded with -1.

    Args:
        output: one token per row, and the rows' logprobs if asked for.
        trees: one per request.
        walks: one per request.
    """
    num_emitted = max(len(walk.token_ids) for walk in walks)
    tokens, rows, first = [], [], 0
    for tree, walk in zip(trees, walks, strict=True):
        padding = num_emitted - len(walk.token_ids)
        tokens.append(walk.token_ids + [_NO_TOKEN] * padding)
        rows += [first + node for node in walk.path[: len(walk.token_ids)]] + [first] * padding
        first += tree.num_nodes
    device = output.sampled_token_ids.device
    logprobs = output.logprobs_tensors
    if logprobs is not None:
        index = torch.tensor(rows, device=device)
        logprobs = LogprobsTensors(
            logprobs.logprob_token_ids[index], logprobs.logprobs[index], logprobs.selected_token_ranks[index]
        )
    return SamplerOutput(torch.tensor(tokens, dtype=torch.int32, device=device), logprobs)
