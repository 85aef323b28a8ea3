"""Trees in vLLM's V1 model runner: a mixin of overrides, each of which calls the stock method and adds a few lines."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from vllm.logger import init_logger
from vllm.v1.outputs import DraftTokenIds

from treedecode.accept import Acceptance
from treedecode.batch_budget import BatchPlanner
from treedecode.drafters.base import NUM_CANDIDATES, VerifiedRows
from treedecode.engines.candidates import top_candidates
from treedecode.guard import ModeChange
from treedecode.surface import Cost
from treedecode.tree import DraftTree
from treedecode.vllm.config import TreeOptions, is_tree_scheduler
from treedecode.vllm.counts import TreeCounts
from treedecode.vllm.drafters.grow import grow_trees
from treedecode.vllm.drafters.source import TreeSource
from treedecode.vllm.ends import RequestEnds
from treedecode.vllm.grammar import KeptTree, kept_tree
from treedecode.vllm.launch import METRICS_FOLDER
from treedecode.vllm.measure import agreed
from treedecode.vllm.metrics import TreeMetrics
from treedecode.vllm.notes import SchedulerNotes
from treedecode.vllm.proposer import RequestLimits
from treedecode.vllm.sampling import RequestRows, expand_metadata
from treedecode.vllm.scheduler import TreeDraftTokenIds
from treedecode.vllm.step import StepTrees, TreeRows, commit_step, metadata_with
from treedecode.vllm.walk import walk_rows, walked_output

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as _Base
else:
    _Base = object

# vLLM shows the messages of loggers below its own
logger = init_logger(f"vllm.{__name__}")

# Seconds after which counters are passed on while no request ends.
_METRICS_S = 0.5


class TreeRunnerMixin(_Base):
    """To stand before a V1 runner in a class's bases; ``start_trees`` must be called once, before models are loaded.

    A step goes: ``_prepare_inputs`` recognises the trees among the scheduled drafts and sets positions by depth,
    ``_build_attention_metadata`` hands the trees to the attention, ``_sample`` walks and moves the accepted K/V, and
    ``propose_draft_token_ids`` drafts the next trees.
    """

    def start_trees(self) -> None:
        """Set up what the overrides keep between calls."""
        self._drafted: list[DraftTree] = []
        self._first_rows: list[int] = []
        self._step: StepTrees | None = None
        self._moves: tuple[StepTrees, list[Acceptance]] | None = None
        grow_trees(self.drafter, TreeOptions.of(self.vllm_config.additional_config))
        self._walks_grammars = is_tree_scheduler(self.vllm_config.scheduler_config.scheduler_cls)
        self._ends = RequestEnds(self.model_config)
        self._walked: dict[str, tuple[DraftTree, Acceptance]] = {}
        self._num_rows = 0
        self._began = self._draft_ms = self._kept_ms = 0.0
        self._metrics: TreeMetrics | None = None
        self.reset_counts()

    def plan_by(self, cost: Cost) -> None:
        """Size trees by what steps cost from now on."""
        self._proposer.planner = BatchPlanner(
            cost,
            self.max_num_tokens,
            told=_log_mode,
            # the confidence of a model that was trained for something else
            calibrates=self._proposer.reads_target,
            max_per_request=self.num_spec_tokens,
        )

    def start_metrics(self) -> None:
        """Pass the counters on to Prometheus and the log from now on, on one rank."""
        if self.parallel_config.rank == 0:
            engine = self.parallel_config.data_parallel_index
            self._metrics = TreeMetrics(str(self.model_config.served_model_name), engine)
            if METRICS_FOLDER in os.environ:
                self._metrics.record(self.counts)

    def reset_counts(self) -> TreeCounts:
        """Count from zero, and return the new counters."""
        self.counts = self._proposer.counts = TreeCounts()
        return self.counts

    @property
    def _proposer(self) -> TreeSource:
        drafter: Any = self.drafter
        return drafter

    def _update_states(self, scheduler_output: Any) -> Any:
        self._began = time.perf_counter()
        # a set, which every rank would go through in an order of its own
        for request_id in sorted(scheduler_output.finished_req_ids):
            self._proposer.forget(request_id)
            self._ends.forget(request_id)
        if SchedulerNotes.of(scheduler_output).forgets:
            self._proposer.clear_shared()
        for started in scheduler_output.scheduled_new_reqs:
            self._ends.forget(started.req_id)
        if scheduler_output.finished_req_ids and self._metrics is not None:
            self._metrics.record(self.counts)
        return super()._update_states(scheduler_output)

    def _prepare_inputs(self, scheduler_output: Any, num_scheduled_tokens: np.ndarray) -> Any:
        inputs = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        self._num_rows = num_rows = int(num_scheduled_tokens.sum())
        # The scheduler pads some requests with drafts of -1, which must not reach the embedding.
        self.input_ids.gpu[:num_rows].clamp_(min=0)
        self._read_drafts(
            scheduler_output.scheduled_spec_decode_tokens, SchedulerNotes.of(scheduler_output).kept
        )
        trees = [
            TreeRows(request, first_row, self._prefix_len(request, first_row), tree)
            for request, (first_row, tree) in enumerate(zip(self._first_rows, self._drafted, strict=True))
            if not tree.shape.is_chain
        ]
        self._step = StepTrees.of(trees, num_rows, self.device) if trees else None
        self._moves = None  # of a step after which nothing was drafted
        if self._step is not None:
            # Slots were counted from the stock positions and stay in node order.
            shift = self._step.position_shift()
            self._shift_positions(self._step, shift)
        return inputs

    def _shift_positions(self, step: StepTrees, shift: Tensor) -> None:
        self.positions[step.rows] += shift
        if self.uses_mrope:
            self.mrope_positions.gpu[:, step.rows] += shift

    def _read_drafts(self, scheduled: dict[str, list[int]], kept: Mapping[str, KeptTree]) -> None:
        """Recognise each request's tree in the tokens that were scheduled.

        They may be a prefix of those proposed, or, under a grammar, what the scheduler kept of them.
        """
        self._drafted, self._first_rows = [], []
        for request, request_id in enumerate(self.input_batch.req_ids):
            token_ids = tuple(scheduled.get(request_id, ()))
            first_row = int(self.query_start_loc.np[request + 1]) - 1 - len(token_ids)
            root = int(self.input_ids.cpu[first_row])
            tree = self._proposer.proposed.get(request_id)
            if request_id in kept:
                tree = kept_tree(root, kept[request_id], tree)
            elif (
                tree is not None
                and tree.token_tuple[1 : len(token_ids) + 1] == token_ids
                and not self._is_pruned(request_id)
            ):
                tree = tree.prefix(len(token_ids))
            else:
                # drafts that the scheduler made up: as a chain they are at worst rejected
                tree = DraftTree.trusted(range(-1, len(token_ids)), (root, *token_ids))
            if token_ids:
                self._proposer.proposed.pop(request_id, None)
            self._drafted.append(tree)
            self._first_rows.append(first_row)

    def _is_pruned(self, request_id: str) -> bool:
        """Whether the scheduler takes nodes out of the request's trees, by a grammar."""
        return self._walks_grammars and self._params(request_id).structured_outputs is not None

    def take_draft_token_ids(self) -> Any:
        drafts = super().take_draft_token_ids()
        if drafts is not None and isinstance(self._draft_token_ids, Tensor):
            # zeros, by which vLLM replaces drafts near the model's limit: no row is spent on them
            return DraftTokenIds(drafts.req_ids, [[] for _ in drafts.req_ids])
        if drafts is None or not self._walks_grammars:
            return drafts
        parents = {
            request_id: list(tree.shape.parent_tuple[1:])
            for request_id, token_ids in zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
            if (tree := self._proposer.proposed.get(request_id)) is not None
            and tree.token_tuple[1:] == tuple(token_ids)
            and self._is_pruned(request_id)
        }
        return TreeDraftTokenIds(drafts.req_ids, drafts.draft_token_ids, parents)

    def _params(self, request_id: str) -> SamplingParams:
        params = self.requests[request_id].sampling_params
        assert params is not None  # pooling models are refused
        return params

    def _prefix_len(self, request: int, first_row: int) -> int:
        computed = int(self.input_batch.num_computed_tokens_cpu[request])
        return computed + first_row - int(self.query_start_loc.np[request])

    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        builders = [group.get_metadata_builder(0) for groups in self.attn_groups for group in groups]
        with metadata_with(self._step, builders):
            return super()._build_attention_metadata(*args, **kwargs)

    def _sample(self, logits: Tensor | None, spec_decode_metadata: Any) -> Any:
        if logits is None:
            return super()._sample(logits, spec_decode_metadata)
        # before the sampler, which changes the logits in place; while nothing is drafted, nobody looks at them, and a
        # drafter with a model never does
        wanted = self._proposer.drafts and not self._proposer.reads_target
        top = top_candidates(logits, min(NUM_CANDIDATES, logits.shape[1])) if wanted else None
        if spec_decode_metadata is None:
            output = super()._sample(logits, spec_decode_metadata)
            walks = self._end_walks(output.sampled_token_ids[:, 0].tolist())
        else:
            requests = [
                RequestRows(tree, self._params(request_id), self.requests[request_id].output_token_ids)
                for request_id, tree in zip(self.input_batch.req_ids, self._drafted, strict=True)
            ]
            metadata, draws = expand_metadata(
                self.input_batch.sampling_metadata, requests, self.vllm_config, logits.shape[1]
            )
            output = self.sampler(logits=logits, sampling_metadata=metadata)
            walks = self._end_walks(output.sampled_token_ids[:, 0].tolist())
            for request, walk in enumerate(walks):
                thrown_away = self.discard_request_mask.np[request]
                draws.set_emitted(request, 0 if thrown_away else len(walk.token_ids))
            if self._step is not None:
                self.counts.num_moved_bytes += commit_step(self._step, walks)
                self._moves = self._step, walks
                self._step = None
            output = walked_output(output, self._drafted, walks)
        if top is not None:
            self._observe(walks, top[1].cpu().numpy(), top[0].float().cpu().numpy())
        return output

    def _end_walks(self, sampled_ids: list[int]) -> list[Acceptance]:
        """Walk along what was sampled in every row, as far as each request goes on, and count it."""
        walks = walk_rows(self._drafted, sampled_ids)
        self._walked = {}
        for request, request_id in enumerate(self.input_batch.req_ids):
            # a request that is still in its prompt is sampled, too, and its token thrown away
            if not self.discard_request_mask.np[request] and not self._ends.has_ended(request_id):
                walks[request] = self._ends.cut(request_id, self.requests[request_id], walks[request])
                self._walked[request_id] = self._drafted[request], walks[request]
        self.counts.add_step(list(self._walked.values()))
        return walks

    def _stand_in_path_order(self, target_rows: list[Tensor]) -> None:
        """Make the step's rows those of the accepted paths, as if chains had been verified: a drafter reads them so."""
        if self._moves is None:
            return
        step, walks = self._moves
        self._shift_positions(step, -step.position_shift())
        source, target = (step.rows[places] for places in step.accepted_moves(walks))
        for rows in (self.input_ids.gpu, *target_rows):
            rows[target] = rows[source]

    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        # The stock method takes back the draw of requests that are still in their prompt, which ends vLLM 0.32's engine
        # on a CPU: its generators have no offset. Here those draws were never made. Remove when the stock method can.
        generators = self.input_batch.generators
        discarded = np.flatnonzero(self.discard_request_mask.np[: self.input_batch.num_reqs]).tolist()
        hidden = {request: generators.pop(request) for request in discarded if request in generators}
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            generators.update(hidden)

    def _record_step(self) -> None:
        """Tell the planner what the step took, if all of it was decoding."""
        if (planner := self._proposer.planner) is None:
            return
        step_ms = 1e3 * (time.perf_counter() - self._began) + self._kept_ms
        forward_ms, draft_ms = agreed((step_ms, self._draft_ms))
        num_decoding = sum(tree.num_nodes for tree, _ in self._walked.values())
        planner.record(self._walked, forward_ms if num_decoding == self._num_rows else None, draft_ms)

    def _observe(self, walks: list[Acceptance], top_ids: np.ndarray, top_logits: np.ndarray) -> None:
        rows, first = {}, 0
        for request, request_id in enumerate(self.input_batch.req_ids):
            tree, end = self._drafted[request], first + self._drafted[request].num_nodes
            # VerifiedRows of made-up drafts would teach the drafter tokens that do not exist
            if min(tree.token_tuple) >= 0:
                root_index = self._prefix_len(request, self._first_rows[request])
                path = tuple(walks[request].path)
                rows[request_id] = VerifiedRows(
                    tree, root_index, path, top_ids[first:end], top_logits[first:end]
                )
            first = end
        self._proposer.observe(rows)

    def propose_draft_token_ids(
        self,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Tensor,
        sample_hidden_states: Tensor,
        aux_hidden_states: list[Tensor] | None,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> Any:
        if self._proposer.reads_target:
            self._stand_in_path_order([hidden_states, *(aux_hidden_states or ())])
            if spec_decode_metadata is not None:
                sample_hidden_states = hidden_states[spec_decode_metadata.logits_indices]
        self._moves = None
        limits = self._request_limits(sampled_token_ids)
        self._record_step()
        began = time.perf_counter()
        self._proposer.prepare(limits)
        drafts = super().propose_draft_token_ids(
            scheduler_output,
            sampled_token_ids,
            sampling_metadata,
            hidden_states,
            sample_hidden_states,
            aux_hidden_states,
            spec_decode_metadata,
            common_attn_metadata,
            slot_mappings,
        )
        self._kept_ms = self._proposer.kept_ms
        self._draft_ms = 1e3 * (time.perf_counter() - began) - self._kept_ms
        if self._metrics is not None:
            ends = any(self._ends.has_ended(limit.request_id) for limit in limits)
            self._metrics.record(self.counts, 0.0 if ends else _METRICS_S)
        return drafts

    def _request_limits(self, sampled: Any) -> list[RequestLimits]:
        limits = []
        for request, request_id in enumerate(self.input_batch.req_ids):
            params = self._params(request_id)
            num_tokens = int(self.input_batch.num_tokens_no_spec[request])
            prompt_len = int(self.input_batch.num_prompt_tokens[request])
            room = self.max_model_len - num_tokens
            if params.max_tokens is not None:
                room = min(room, prompt_len + params.max_tokens - num_tokens)
            last = sampled[request][-1] if isinstance(sampled, list) and sampled[request] else -1
            if self._ends.has_ended(request_id) or self.discard_request_mask.np[request]:
                room = 0
            chain = params.structured_outputs is not None and not self._walks_grammars
            limits.append(RequestLimits(request_id, prompt_len, room - 1, chain, last, num_tokens))
        return limits

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        if self._proposer.reads_target:
            fits = super()._input_fits_in_drafter(common_attn_metadata)
            if not fits and self._proposer.planner is not None:
                self._proposer.planner.skip()
            return fits
        # The stock rule stops drafting for the whole batch as soon as one request is within a budget of its end; these
        # drafters have no model with a limit of its own, and each request's room is in its limits.
        return common_attn_metadata is not None


def _log_mode(num_requests: int, change: ModeChange) -> None:
    logger.debug("Batches like one of %d: %s (%s).", num_requests, change.mode, change.reason)
