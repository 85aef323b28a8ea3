"""The methods of vLLM that are overridden or relied on: they must take the parameters that they took in 0.32."""

from __future__ import annotations

import inspect

from treedecode.vllm.installed import SUPPORTED, vllm_version

_FORWARD = [
    "self",
    "layer",
    "query",
    "key",
    "value",
    "kv_cache",
    "attn_metadata",
    "output",
    "output_scale",
    "output_block_scale",
]
_UPDATE = ["self", "layer", "key", "value", "kv_cache", "slot_mapping"]
_BUILD = ["self", "common_prefix_len", "common_attn_metadata", "fast_build"]
# The parameters that the overrides rely on, by class and method.
_COMMON = {
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner": {
        "_update_states": ["self", "scheduler_output"],
        "_prepare_inputs": ["self", "scheduler_output", "num_scheduled_tokens"],
        "_sample": ["self", "logits", "spec_decode_metadata"],
        "_input_fits_in_drafter": ["self", "common_attn_metadata"],
        "take_draft_token_ids": ["self"],
        "propose_draft_token_ids": [
            "self",
            "scheduler_output",
            "sampled_token_ids",
            "sampling_metadata",
            "hidden_states",
            "sample_hidden_states",
            "aux_hidden_states",
            "spec_decode_metadata",
            "common_attn_metadata",
            "slot_mappings",
        ],
    },
    "vllm.v1.core.sched.scheduler.Scheduler": {
        "update_draft_token_ids": ["self", "draft_token_ids"],
        "get_grammar_bitmask": ["self", "scheduler_output"],
        "reset_prefix_cache": ["self", "reset_running_requests", "reset_connector"],
    },
    "vllm.v1.worker.gpu_worker.Worker": {
        "sample_tokens": ["self", "grammar_output"],
        "take_draft_token_ids": ["self"],
    },
    "vllm.v1.executor.multiproc_executor.MultiprocExecutor": {
        "sample_tokens": ["self", "grammar_output", "non_block"],
        "take_draft_token_ids": ["self"],
    },
    "vllm.v1.structured_output.StructuredOutputManager": {
        "_get_constraint_bounds": ["self", "request", "spec_tokens", "spec_tokens_committed"],
    },
    "vllm.v1.spec_decode.llm_base_proposer.SpecDecodeBaseProposer": {
        "_greedy_sample": ["self", "hidden_states"],
        "initialize_attn_backend": ["self", "kv_cache_config", "kernel_block_sizes"],
        "load_model": ["self", "target_model"],
        "model_returns_tuple": ["self"],
        "build_per_group_and_layer_attn_metadata": ["self", "common_attn_metadata", "draft_index"],
        "_determine_batch_execution_and_padding": ["self", "num_tokens", "use_cudagraphs"],
    },
    "vllm.v1.spec_decode.medusa.MedusaProposer": {
        "propose": [
            "self",
            "num_speculative_tokens",
            "target_hidden_states",
            "sampling_metadata",
            "slot_mappings",
        ],
    },
    "vllm.v1.engine.detokenizer.IncrementalDetokenizer": {
        "update": ["self", "new_token_ids", "stop_terminated"],
        "from_new_request": ["tokenizer", "request"],
    },
    "vllm.v1.sample.sampler.Sampler": {
        "forward": [
            "self",
            "logits",
            "sampling_metadata",
            "predict_bonus_token",
            "logprobs_mode_override",
        ],
    },
}
# Those of one kind of device.
_BY_DEVICE = {
    "cpu": {
        "vllm.v1.attention.backends.cpu_attn.CPUAttentionMetadataBuilder": {
            "build": _BUILD,
            "_group_sliding_window": ["self"],
        },
        "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl": {
            "forward": _FORWARD,
            "do_kv_cache_update": _UPDATE,
        },
    },
    "cuda": {
        "vllm.v1.worker.gpu_worker.Worker": {"_make_model_runner": ["self"]},
        "vllm.v1.worker.gpu_model_runner.GPUModelRunner": {"__init__": ["self", "vllm_config", "device"]},
        "vllm.v1.attention.backends.triton_attn.TritonAttentionMetadataBuilder": {
            "build": _BUILD,
            "get_cudagraph_support": ["vllm_config", "kv_cache_spec"],
        },
        "vllm.v1.attention.backends.triton_attn.TritonAttentionImpl": {
            "forward": _FORWARD,
            "do_kv_cache_update": _UPDATE,
        },
    },
}


def check_signatures(device_type: str) -> None:
    """Refuse a vLLM whose overridden methods take other parameters.

    Args:
        device_type: ``"cpu"`` or ``"cuda"``, of the worker.

    Raises:
        ValueError: a method is gone or has changed.
    """
    from vllm.utils.import_utils import resolve_obj_by_qualname

    for path, methods in [*_COMMON.items(), *_BY_DEVICE[device_type].items()]:
        owner = resolve_obj_by_qualname(path)
        for name, expected in methods.items():
            method = getattr(owner, name, None)
            found = None if method is None else list(inspect.signature(method).parameters)
            if found != expected:
                raise ValueError(
                    f"{path}.{name} must take {expected}, this vLLM ({vllm_version()}) has {found}: "
                    f"use vLLM {SUPPORTED}"
                )
