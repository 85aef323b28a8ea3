"""vLLM's own sampler on all rows of a step: each node is sampled as if its path had been emitted.

The walk then follows what was sampled, one draw per visited node. That is exact for every sampling feature that vLLM
applies row by row, and it accepts a node with the target's own probability of its token. Checking a sampled path again
with a rejection sampler would stay exact, too, but accept only with the square of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata

from treedecode.tree import DraftTree

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams


@dataclass(frozen=True)
class RequestRows:
    """One request's rows of the logits.

    Attributes:
        tree: its nodes, one row each; a chain of drafts is a tree, a request without drafts has the root alone.
        params: its sampling parameters.
        output_ids: the tokens emitted so far, root last.
    """

    tree: DraftTree
    params: SamplingParams
    output_ids: Sequence[int]


def expand_metadata(
    metadata: SamplingMetadata, requests: Sequence[RequestRows], vllm_config: VllmConfig, vocab_size: int
) -> tuple[SamplingMetadata, SeededDraws]:
    """Sampling metadata with one row per node instead of one per request.

    Args:
        metadata: of the batch. Not modified.
        requests: in batch order.
        vllm_config: of the engine.
        vocab_size: numbers per row of the logits.

    Returns:
        The metadata for ``sum(num_nodes)`` rows, and the seeded generators, to be set after the walk.
    """
    sizes = torch.tensor([request.tree.num_nodes for request in requests])
    owner = torch.repeat_interleave(torch.arange(len(requests)), sizes)
    first_row = (sizes.cumsum(0) - sizes).tolist()
    needs_history = bool(metadata.output_token_ids) or _min_tokens(metadata) is not None
    histories: list[list[int]] = []
    if needs_history:
        for request in requests:
            histories += path_histories(request.tree, request.output_ids)
    draws = SeededDraws(metadata.generators, vocab_size)
    generators = {}
    for request, generator in metadata.generators.items():
        for node, depth in enumerate(requests[request].tree.shape.depth_tuple):
            generators[first_row[request] + node] = draws.at(request, generator, depth)

    def rows_of(by_request: dict[int, list[Any]]) -> dict[int, list[Any]]:
        return {
            first_row[request] + node: value
            for request, value in by_request.items()
            for node in range(requests[request].tree.num_nodes)
        }

    def expand(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[owner.to(tensor.device)]

    expanded = dataclasses.replace(
        metadata,
        temperature=expand(metadata.temperature),
        top_p=expand(metadata.top_p),
        top_k=expand(metadata.top_k),
        generators=generators,
        prompt_token_ids=expand(metadata.prompt_token_ids),
        output_token_ids=histories if metadata.output_token_ids else [],
        allowed_token_ids_mask=expand(metadata.allowed_token_ids_mask),
        bad_words_token_ids=rows_of(metadata.bad_words_token_ids),
        logitsprocs=_expand_min_tokens(metadata, requests, histories, vllm_config),
        logprob_token_ids=None if metadata.logprob_token_ids is None else rows_of(metadata.logprob_token_ids),
        spec_token_ids=None,
    )
    if not metadata.no_penalties:
        expanded = dataclasses.replace(
            expanded,
            frequency_penalties=expand(metadata.frequency_penalties),
            presence_penalties=expand(metadata.presence_penalties),
            repetition_penalties=expand(metadata.repetition_penalties),
        )
    return expanded, draws


def path_histories(tree: DraftTree, output_ids: Sequence[int]) -> list[list[int]]:
    """What would have been emitted at each node: the output, then the tokens on the node's path."""
    histories = [list(output_ids)]
    parents, tokens = tree.shape.parent_tuple, tree.token_tuple
    for node in range(1, tree.num_nodes):
        above = histories[parents[node]]
        # a padding draft (-1) is never accepted: nothing below it is ever emitted
        histories.append([*above, tokens[node]] if tokens[node] >= 0 else above)
    return histories


class SeededDraws:
    """The random streams of seeded requests, by depth.

    A plain run draws once per emitted token, so a node at depth d gets the stream as it is d draws later, and the same
    seed gives the same tokens with trees and without.

    Args:
        generators: by row of the request; advanced by ``set_emitted`` alone.
        vocab_size: numbers per row of the logits.
    """

    def __init__(self, generators: dict[int, torch.Generator], vocab_size: int) -> None:
        self._generators = generators
        self._vocab_size = vocab_size
        self._states: dict[int, list[Tensor]] = {
            request: [generator.get_state()] for request, generator in generators.items()
        }

    def at(self, request: int, generator: torch.Generator, depth: int) -> torch.Generator:
        """A copy of the request's generator, ``depth`` draws later."""
        copy = torch.Generator(device=generator.device)
        copy.set_state(self._state(request, depth))
        return copy

    def set_emitted(self, request: int, num_tokens: int) -> None:
        """Advance the request's own generator by the tokens that it emitted."""
        if request in self._generators:
            self._generators[request].set_state(self._state(request, num_tokens))

    def _state(self, request: int, num_draws: int) -> Tensor:
        states = self._states[request]
        while len(states) <= num_draws:
            copy = torch.Generator(device=self._generators[request].device)
            copy.set_state(states[-1])
            draw_once(copy, self._vocab_size)
            states.append(copy.get_state())
        return states[num_draws]


def draw_once(generator: torch.Generator, vocab_size: int) -> None:
    """Advance ``generator`` as vLLM's sampler does for one row: one seed on a CPU, one row of noise elsewhere."""
    if generator.device.type == "cpu":
        torch.randint(0, 2**31, (1,), generator=generator, dtype=torch.long)
    else:
        torch.empty(vocab_size, device=generator.device).exponential_(generator=generator)


def _min_tokens(metadata: SamplingMetadata) -> MinTokensLogitsProcessor | None:
    """The min_tokens processor if any request of the batch is held back by it."""
    for processor in metadata.logitsprocs.non_argmax_invariant:
        if isinstance(processor, MinTokensLogitsProcessor) and processor.min_toks:
            return processor
    return None


def _expand_min_tokens(
    metadata: SamplingMetadata,
    requests: Sequence[RequestRows],
    histories: Sequence[list[int]],
    vllm_config: VllmConfig,
) -> LogitsProcessors:
    """vLLM's min_tokens processor with every node added as a request; with speculation it is the only processor."""
    processor = _min_tokens(metadata)
    if processor is None:
        return LogitsProcessors([])
    expanded = MinTokensLogitsProcessor(vllm_config, processor.device, False)
    params = [request.params for request in requests for _ in range(request.tree.num_nodes)]
    added = [(row, params[row], None, history) for row, history in enumerate(histories)]
    expanded.update_state(BatchUpdate(batch_size=len(added), removed=[], added=added, moved=[]))
    return LogitsProcessors([expanded])
