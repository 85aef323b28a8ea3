"""Trees of Medusa heads: every head names the candidates of one position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from treedecode.vllm.config import TreeOptions
from treedecode.vllm.drafters.spine import SpineTrees

if TYPE_CHECKING:
    from vllm.v1.spec_decode.medusa import MedusaProposer as _Base
else:
    _Base = object


class MedusaTrees(SpineTrees, _Base):
    """To stand before vLLM's ``MedusaProposer``."""

    def start_trees(self, options: TreeOptions) -> None:
        super().start_trees(options)
        # vLLM builds as many heads as nodes are drafted; a tree needs one per position
        config: Any = self.spec_config.draft_model_config.hf_config
        config.num_lookahead_tokens = self.spine_depth(self.spec_config.num_speculative_tokens)

    def propose(
        self,
        num_speculative_tokens: int,
        target_hidden_states: Tensor,
        sampling_metadata: Any,
        slot_mappings: Any = None,
    ) -> Any:
        """vLLM's call; returns every request's drafted tokens."""
        # not the stock method, whose argmax would drop the runners-up that the same logits name
        if self.begin(num_speculative_tokens):  # heads keep nothing between steps: none need run in vain
            self._depth = self.shape(num_speculative_tokens).max_depth
            model: Any = self.model
            for logits in model.compute_logits(model(target_hidden_states)):
                self.keep(logits)
        return self.grow([limits.last_token for limits in self._limits], num_speculative_tokens)
