"""Our drafters as vLLM's ``custom_class`` proposer: one drafter per request, fed by what the target said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.logger import init_logger

from treedecode.batch_budget import BatchPlanner
from treedecode.drafters import MergedDrafter, SharedStore
from treedecode.drafters.base import DraftContext, Drafter, VerifiedRows, check_draft, check_is_tree
from treedecode.tree import DraftTree
from treedecode.vllm.config import TreeOptions
from treedecode.vllm.counts import TreeCounts

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# vLLM shows the messages of loggers below its own
logger = init_logger(f"vllm.{__name__}")

_ROUNDING = 1e-6


@dataclass
class RequestState:
    """What is kept of a running request.

    Attributes:
        drafter: its own drafter.
        prompt_len: number of prompt tokens.
        token_ids: prompt and output; grows as the request does.
        rows: what the target said since the last proposal.
    """

    drafter: Drafter
    prompt_len: int
    token_ids: list[int]
    rows: list[VerifiedRows] = field(default_factory=list)


@dataclass(frozen=True)
class RequestLimits:
    """What a tree of this step must keep to.

    Attributes:
        request_id: vLLM's.
        prompt_len: number of prompt tokens.
        max_depth: tokens that can still be emitted after the next one; 0 asks for no draft, and less means that the
            request has ended.
        chain: a grammar walks the drafts one after the other, so they must be a chain.
        last_token: the root of the tree; -1 if it has not reached the host yet.
        num_tokens: tokens of prompt and output; a step's own may be missing.
    """

    request_id: str
    prompt_len: int
    max_depth: int
    chain: bool
    last_token: int = -1
    num_tokens: int = 0


class TreeProposer:
    """Proposes a tree per request; a drafter that fails costs its request this step's tree and nothing else.

    Args:
        vllm_config: of the engine; the options are in its ``additional_config``.
    """

    reads_target = False
    kept_ms = 0.0

    def __init__(self, vllm_config: VllmConfig) -> None:
        speculative = vllm_config.speculative_config
        assert speculative is not None
        options = TreeOptions.of(vllm_config.additional_config)
        self._budget = speculative.num_speculative_tokens
        self._max_depth = options.max_depth
        self._shared = SharedStore(options.shared_contexts) if options.shared_contexts else None
        self._make_drafter = options.drafter_factory(self._shared)
        self._vocab_size = vllm_config.model_config.get_vocab_size()
        self._states: dict[str, RequestState] = {}
        self._early_rows: dict[str, list[VerifiedRows]] = {}
        self._limits: Sequence[RequestLimits] = ()
        self.proposed: dict[str, DraftTree] = {}
        self.counts = TreeCounts()
        self.planner: BatchPlanner | None = None
        self._min_reach = 0.0
        # whether the last ``propose`` asked the drafters
        self.drafts = True
        self._reported: set[str] = set()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to load: these drafters have no model."""

    def observe(self, rows: Mapping[str, VerifiedRows]) -> None:
        """Keep what the target said, by request, for the next proposal."""
        for request_id, verified in rows.items():
            state = self._states.get(request_id)
            # a request that is still in its prompt has no drafter yet
            kept = self._early_rows.setdefault(request_id, []) if state is None else state.rows
            kept.append(verified)

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        state = self._states.pop(request_id, None)
        if state is not None and isinstance(state.drafter, MergedDrafter):
            state.drafter.leave(state.token_ids, state.prompt_len)
        self._early_rows.pop(request_id, None)
        self.proposed.pop(request_id, None)

    def clear_shared(self) -> None:
        """Forget what ended requests have left."""
        if self._shared is not None:
            self._shared.clear()

    def prepare(self, limits: Sequence[RequestLimits]) -> None:
        """Say what the next ``propose`` must keep to, in batch order."""
        self._limits = limits

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """vLLM's call: the drafted tokens of every request in node order; ``proposed`` holds their trees."""
        ids = [limits.request_id for limits in self._limits]
        for request_id in ids:
            self.proposed.pop(request_id, None)
        going_on = [
            row
            for row, (limits, sampled) in enumerate(zip(self._limits, sampled_token_ids, strict=True))
            if sampled and limits.max_depth >= 0
        ]
        self.drafts = self.planner is None or not going_on or self.planner.drafts(len(going_on))
        prefix_lens = [int(num_tokens_no_spec[row]) - 1 for row in going_on]
        if self.planner is not None and not self.drafts:
            self.planner.plan_plain(prefix_lens)
            return [[] for _ in ids]
        if self.planner is not None:
            self._min_reach = self.planner.min_reach(len(going_on))
        trees = {}
        for row, prefix_len in zip(going_on, prefix_lens, strict=True):
            token_ids = token_ids_cpu[row, : prefix_len + 1]
            tree = self._draft(self._limits[row], token_ids)
            trees[ids[row]] = DraftTree.root_only(int(token_ids[-1])) if tree is None else tree
        if self.planner is not None:
            trees = self.planner.cut(trees, prefix_lens)
        self.proposed |= {request_id: tree for request_id, tree in trees.items() if tree.num_drafted}
        return [list(trees[request_id].token_tuple[1:]) if request_id in trees else [] for request_id in ids]

    def _draft(self, limits: RequestLimits, token_ids: np.ndarray) -> DraftTree | None:
        state = self._state(limits, token_ids)
        max_depth = min(self._max_depth, limits.max_depth)
        if max_depth < 1:
            return None
        rows, state.rows = tuple(state.rows), []
        context = DraftContext(
            state.token_ids, state.prompt_len, self._budget, max_depth, rows, self._min_reach
        )
        try:
            name = type(state.drafter).__name__
            tree = check_is_tree(state.drafter.propose(context), name)
            check_draft(tree, state.token_ids[-1], self._vocab_size, name)
            if self.planner is not None:
                check_scores(tree, name)
            tree = tree.prefix(self._budget).within_depth(max_depth)
        except Exception as error:
            self._report(state.drafter, error)
            return None
        self.counts.num_drafted += tree.num_drafted
        return best_chain(tree) if limits.chain else tree

    def _state(self, limits: RequestLimits, token_ids: np.ndarray) -> RequestState:
        state = self._states.get(limits.request_id)
        if state is not None and len(state.token_ids) <= len(token_ids):
            state.token_ids.extend(token_ids[len(state.token_ids) :].tolist())
            return state
        ids = token_ids.tolist()
        state = RequestState(self._make_drafter(), limits.prompt_len, ids)
        state.rows = self._early_rows.pop(limits.request_id, [])
        state.drafter.begin(ids[: limits.prompt_len])
        self._states[limits.request_id] = state
        return state

    def _report(self, drafter: Drafter, error: Exception) -> None:
        self.counts.num_failed_drafts += 1
        kind = f"{type(error).__name__}: {error}"
        if type(error).__name__ not in self._reported:
            self._reported.add(type(error).__name__)
            logger.warning(
                "Drafter %s failed (%s); the step goes on without its tree. Further failures of this kind are "
                "counted, not logged.",
                type(drafter).__name__,
                kind,
            )


def check_scores(tree: DraftTree, drafter: str) -> None:
    """Refuses scores by which no tree can be sized.

    Raises:
        ValueError: A score is above 0, so it is no log reach.
    """
    if tree.score_tuple is not None and (highest := max(tree.score_tuple)) > _ROUNDING:
        raise ValueError(f"drafter {drafter!r} must score nodes by log reach, at most 0, got {highest:g}")


def best_chain(tree: DraftTree) -> DraftTree:
    """The first child of the first child, and so on: the chain inside ``tree`` that its drafter thinks best."""
    nodes = [0]
    while children := tree.shape.children(nodes[-1]):
        nodes.append(children[0])
    return tree.along(nodes)
