"""vLLM's scheduler with grammars that follow trees: ``--scheduler-cls treedecode.vllm.scheduler.TreeScheduler``.

vLLM's own one takes a request's drafts for a chain: it drops what follows the first token that the grammar does not
allow, and masks every position by the tokens before it. Here the illegal nodes alone are dropped, with what is below,
and every node is masked by its own path. Requests without a grammar are the stock scheduler's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds

from treedecode.vllm.grammar import KeptTree, best_chain, walk_grammar
from treedecode.vllm.notes import SchedulerNotes

_ALL_ALLOWED = -1


@dataclass
class TreeDraftTokenIds(DraftTokenIds):
    """vLLM's drafts with their topology.

    Attributes:
        parents: of the drafts that are no chains, by request id; by drafted node, 0 for the root.
    """

    parents: Mapping[str, list[int]] = dataclasses.field(default_factory=dict)


class TreeScheduler(Scheduler):
    """The stock scheduler, told of the trees by the worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: dict[str, KeptTree] = {}
        self._forgets = False

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """As the stock method, for drafts that are trees, too."""
        others = DraftTokenIds([], [])
        topology = draft_token_ids.parents if isinstance(draft_token_ids, TreeDraftTokenIds) else {}
        drafts = zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True)
        for request_id, token_ids in drafts:
            self._kept.pop(request_id, None)
            parents, request = topology.get(request_id), self.requests.get(request_id)
            if parents is not None and request is not None and request.use_structured_output:
                if self._is_constrained(request) and not (request.is_finished() or request.is_prefill_chunk):
                    nodes = walk_grammar(self._grammar(request), request_id, parents, token_ids)
                    kept = self._kept[request_id] = KeptTree.of(nodes, parents, token_ids)
                    request.spec_token_ids = list(kept.token_ids)
                    continue
                # the grammar begins somewhere among the drafts: vLLM knows where, in a chain
                token_ids = [token_ids[node - 1] for node in best_chain(parents)]
            others.req_ids.append(request_id)
            others.draft_token_ids.append(token_ids)
        super().update_draft_token_ids(others)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """As the stock method; the workers are told which nodes were kept."""
        output = super().schedule(*args, **kwargs)
        told = {}
        for request_id, token_ids in output.scheduled_spec_decode_tokens.items():
            kept = self._kept.get(request_id)
            if kept is not None and kept.token_ids[: len(token_ids)] == tuple(token_ids):
                told[request_id] = kept.prefix(len(token_ids))
        # those that were not scheduled wait; those that ended are gone
        self._kept = {
            request_id: kept
            for request_id, kept in self._kept.items()
            if request_id not in told and request_id in self.requests
        }
        SchedulerNotes(told, self._forgets).send_with(output)
        self._forgets = False
        return output

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """As the stock method; drafts of ended requests are forgotten, too, before the next step."""
        self._forgets = True
        return super().reset_prefix_cache(*args, **kwargs)

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """As the stock method, with a row for every node of a tree, by its own path."""
        trees = SchedulerNotes.of(scheduler_output).kept
        if not trees:
            return super().get_grammar_bitmask(scheduler_output)
        scheduled = scheduler_output.num_scheduled_tokens
        rest = {request_id: count for request_id, count in scheduled.items() if request_id not in trees}
        stock = super().get_grammar_bitmask(dataclasses.replace(scheduler_output, num_scheduled_tokens=rest))
        # a request may have been aborted since
        masks = {name: self._mask(name, tree) for name, tree in trees.items() if name in self.requests}
        ids, rows = list(masks), [mask.numpy() for mask in masks.values()]
        acceptable = [len(trees[request_id].nodes) for request_id in ids]
        if stock is not None:
            ids = [*stock.structured_output_request_ids, *ids]
            rows = [stock.grammar_bitmask, *rows]
            acceptable = [*(stock.num_acceptable_drafts or []), *acceptable]
        return GrammarOutput(ids, np.concatenate(rows), acceptable) if ids else None

    def _mask(self, request_id: str, tree: KeptTree) -> torch.Tensor:
        """Rows of the root and the nodes, int32 ``[1 + nodes, words]``."""
        backend = self.structured_output_manager.backend
        assert backend is not None  # a grammar was compiled by it
        grammar = self._grammar(self.requests[request_id])
        mask = backend.allocate_token_bitmask(1 + len(tree.nodes)).fill_(_ALL_ALLOWED)

        def fill(node: int) -> None:
            # as vLLM has it, nothing is forbidden after the end
            if not grammar.is_terminated():
                grammar.fill_bitmask(mask, node)

        walk_grammar(grammar, request_id, tree.parents, tree.token_ids, fill)
        return mask

    def _grammar(self, request: Any) -> Any:
        return request.structured_output_request.grammar

    def _is_constrained(self, request: Any) -> bool:
        """Whether the grammar holds from the next token on: a model that reasons first is free until it has."""
        return self.structured_output_manager._get_constraint_bounds(request, ()).constraint_start == 0
