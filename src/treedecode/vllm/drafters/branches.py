"""Trees with continuation branches: several nodes of one depth are drafted on, in one forward pass per depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import set_forward_context
from vllm.v1.spec_decode.utils import PADDING_SLOT_ID

from treedecode.acceptance import PRIOR
from treedecode.families import plan_branches
from treedecode.shape import TreeShape
from treedecode.tree import DraftTree
from treedecode.vllm.config import TreeOptions
from treedecode.vllm.drafters.model import ModelTrees
from treedecode.vllm.step import StepTrees, TreeRows, metadata_with


@dataclass(frozen=True)
class _Roots:
    """Every request's last token, as the drafter's rows have it.

    Attributes:
        ids: ``[B]``.
        positions: int64 ``[B]``; as many rows are in the drafter's cache before it.
        rows: int64 ``[B]``, its row in the first pass.
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor


class BranchTrees(ModelTrees):
    """To stand before a subclass of vLLM's ``SpecDecodeBaseProposer``.

    All trees have one shape, planned for the acceptance rates that the library assumes. The first pass is vLLM's. The
    pass of depth d runs all nodes with children down to that depth, and the last token again, as the rows of trees:
    they attend to the cache and to their ancestors, and leave nothing in the cache. So a pass has up to ``1 + branches
    * d`` rows per request, where one that kept the keys of its ancestors would have ``branches``.
    """

    def start_trees(self, options: TreeOptions) -> None:
        super().start_trees(options)
        self._shapes: dict[int, TreeShape] = {}
        self._hidden: Tensor | None = None

    def load_model(self, target_model: Any) -> None:
        super().load_model(target_model)
        if self.pass_hidden_states_to_model:
            model: Any = self.model
            model.register_forward_hook(self._note_hidden)

    def _note_hidden(self, model: Any, inputs: Any, output: Any) -> None:
        """What the first pass says of its rows, of which vLLM hands on the logits alone."""
        self._hidden = output[1] if self.model_returns_tuple() else output

    def shape(self, budget: int) -> TreeShape:
        """The trees of up to ``budget`` drafted nodes."""
        if budget not in self._shapes:
            options = self._options
            self._shapes[budget] = plan_branches(
                PRIOR, budget, options.branches, options.max_depth, options.width
            )
        return self._shapes[budget]

    def propose(self, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """vLLM's call; returns every request's drafted tokens."""
        max_depth = self.begin(num_speculative_tokens)
        if not max_depth:
            super(ModelTrees, self).propose(0, *args, **kwargs)
            self.first_pass_ends()
            return self.grow(kwargs["next_token_ids"].tolist(), num_speculative_tokens)
        shape, common = _upper(self.shape(num_speculative_tokens), max_depth), kwargs["common_attn_metadata"]
        roots = self._roots(common, **kwargs)
        super(ModelTrees, self).propose(1, *args, **kwargs)
        num_requests, candidates = len(roots.ids), self._candidates(1)
        tokens = torch.zeros(num_requests, shape.num_nodes, dtype=torch.int64, device=roots.ids.device)
        reach = torch.zeros(num_requests, shape.num_nodes, device=roots.ids.device)
        tokens[:, 0] = roots.ids
        inner = [node for node in range(shape.num_nodes) if shape.children(node)]
        hidden = self._first_hidden(roots, shape.num_nodes)
        self._place(shape, [0], candidates, tokens, reach)
        for depth in range(1, shape.max_depth):
            rows = [node for node in inner if shape.depth_tuple[node] <= depth]
            last, out = self._pass(common, roots, shape, rows, tokens, hidden)
            new = [place for place, node in enumerate(rows) if shape.depth_tuple[node] == depth]
            nodes = [rows[place] for place in new]
            self._greedy_sample(last[:, new].flatten(0, 1))
            self._place(shape, nodes, self._candidates(len(new)), tokens, reach)
            if hidden is not None:
                for place, node in zip(new, nodes, strict=True):
                    hidden[:, shape.children(node)] = out[:, place, None]
        trees = map(branch_tree, [shape] * num_requests, tokens.tolist(), reach.tolist())
        return self.offer(trees, num_speculative_tokens)

    def _roots(self, common: Any, **kwargs: Any) -> _Roots:
        rejected, rows = kwargs["num_rejected_tokens_gpu"], kwargs["token_indices_to_sample"]
        num_rows = common.seq_lens - (0 if rejected is None else rejected)
        # a draft model computes the last token in a row of its own, others in that of the token before
        positions = num_rows if self.needs_extra_input_slots else num_rows - 1
        rows = common.query_start_loc[1:] - 1 if rows is None else rows
        return _Roots(kwargs["next_token_ids"], positions.to(torch.int64), rows.to(torch.int64))

    def _candidates(self, num_nodes: int) -> tuple[Tensor, Tensor]:
        """Ids and log probabilities of what was kept last, ``[B, num_nodes, width]``."""
        ids, scores = self._levels.pop()
        return ids.unflatten(0, (-1, num_nodes)), scores.unflatten(0, (-1, num_nodes))

    def _place(
        self,
        shape: TreeShape,
        nodes: Sequence[int],
        candidates: tuple[Tensor, Tensor],
        tokens: Tensor,
        reach: Tensor,
    ) -> None:
        """Give the children of ``nodes`` their tokens and log reach."""
        ids, log_probs = candidates
        for place, node in enumerate(nodes):
            children = list(shape.children(node))
            ranks = [shape.rank_tuple[child] for child in children]
            tokens[:, children] = ids[:, place, ranks]
            reach[:, children] = reach[:, node, None] + log_probs[:, place, ranks]

    def _first_hidden(self, roots: _Roots, num_nodes: int) -> Tensor | None:
        """Hidden states that nodes are fed with, ``[B, N, hidden]``: the root's and its children's, so far."""
        if self._hidden is None:
            return None
        root = self.hidden_states[roots.rows]
        hidden = self._hidden[roots.rows][:, None].repeat(1, num_nodes, 1)
        hidden[:, 0] = root
        return hidden

    def _pass(
        self,
        common: Any,
        roots: _Roots,
        shape: TreeShape,
        nodes: Sequence[int],
        tokens: Tensor,
        hidden: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Run the drafter on ``nodes`` of all trees.

        Returns:
            What its logits are computed from, and what children are fed with: ``[B, len(nodes), hidden]``.
        """
        num_requests, width = len(roots.ids), len(nodes)
        num_rows = num_requests * width
        place = {node: row for row, node in enumerate(nodes)}
        parents = [-1, *(place[shape.parent_tuple[node]] for node in nodes[1:])]
        # attention looks at the topology alone
        tree = DraftTree.trusted(parents, [0] * width)
        prefix_lens = roots.positions.tolist()
        trees = [TreeRows(row, row * width, prefix, tree) for row, prefix in enumerate(prefix_lens)]
        starts = torch.arange(num_requests + 1, dtype=torch.int32) * width
        device = roots.positions.device
        slots = torch.full((num_rows,), PADDING_SLOT_ID, device=device)
        metadata = common.replace(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=(roots.positions + width).to(common.seq_lens.dtype),
            num_actual_tokens=num_rows,
            max_query_len=width,
            max_seq_len=max(prefix_lens) + width,
            slot_mapping=slots,
            positions=None,
            is_prefilling=None,
            seq_lens_cpu_upper_bound=None,
            _num_computed_tokens_cache=None,
            _token_to_req_indices_cache=None,
        )
        positions = roots.positions[:, None] + torch.from_numpy(tree.depths).to(device)
        inputs = {"input_ids": tokens[:, nodes].flatten().int(), "positions": positions.flatten()}
        if hidden is not None:
            inputs["hidden_states"] = hidden[:, nodes].flatten(0, 1)
        _, _, across = self._determine_batch_execution_and_padding(num_rows)
        with set_forward_context(
            self._tree_metadata(StepTrees.of(trees, num_rows, device), metadata),
            self.vllm_config,
            num_tokens=num_rows,
            num_tokens_across_dp=across,
            slot_mapping=dict.fromkeys(self._draft_attn_layer_names, slots),
        ):
            output = self.model(**inputs, inputs_embeds=None)
        last, out = output if self.model_returns_tuple() else (output, output)
        return last.unflatten(0, (num_requests, width)), out.unflatten(0, (num_requests, width))

    def _tree_metadata(self, step: StepTrees, common: Any) -> dict[str, Any]:
        builders = [group.get_metadata_builder() for group in self.draft_attn_groups]
        with metadata_with(step, builders):
            return self.build_per_group_and_layer_attn_metadata(common)[1]


def _upper(shape: TreeShape, max_depth: int) -> TreeShape:
    """The nodes down to ``max_depth``."""
    return DraftTree.trusted(shape.parent_tuple, range(shape.num_nodes)).within_depth(max_depth).shape


def branch_tree(shape: TreeShape, token_ids: Sequence[int], reach: Sequence[float]) -> DraftTree:
    """The tree of this shape; nodes that cannot be reached, for their drafter cannot say them, are left out.

    Args:
        shape: topology.
        token_ids: by node.
        reach: log reach by node; minus infinity for what the drafter cannot say, and below.
    """
    tree = DraftTree.trusted(shape.parent_tuple, token_ids, reach)
    return tree.only([node for node, log_reach in enumerate(reach) if log_reach > -math.inf])
