"""Trees of the drafters that run a model of their own: draft model, EAGLE, EAGLE-3 and MTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from treedecode.vllm.drafters.spine import SpineTrees
from treedecode.vllm.fixes import windows_of_a_drafters_layers

if TYPE_CHECKING:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer as _Base
else:
    _Base = object


class ModelTrees(SpineTrees, _Base):
    """To stand before a subclass of vLLM's ``SpecDecodeBaseProposer``."""

    def initialize_attn_backend(
        self, kv_cache_config: Any, kernel_block_sizes: list[int] | None = None
    ) -> None:
        super().initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        windows_of_a_drafters_layers(self.draft_attn_groups)

    def _greedy_sample(self, hidden_states: Tensor) -> Tensor:
        # not the stock method, whose argmax would drop the runners-up that the same logits name
        self.first_pass_ends()
        model: Any = self.model
        logits = model.compute_logits(hidden_states)
        if self.vocab_mapping is None:
            return self.keep(logits)[:, 0]
        ids = self.keep(self.vocab_mapping.constrain_draft_logits(logits))
        return ids.copy_(self.vocab_mapping.map_draft_to_target_ids(ids))[:, 0]

    def propose(self, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """vLLM's call, with a spine's length for the number of nodes; returns every request's drafted tokens.

        Where nothing is drafted the first pass runs all the same: it writes this step's keys and values of the drafter,
        and for most drafters nobody could compute them later, as they are made of the target's hidden states.
        """
        depth = self.begin(num_speculative_tokens)
        super().propose(depth, *args, **kwargs)
        if not depth:
            self.first_pass_ends()
        return self.grow(kwargs["next_token_ids"].tolist(), num_speculative_tokens)
