"""What must hold before trees may run: the vLLM version and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treedecode.vllm.config import (
    CPU_WORKER,
    GPU_WORKER,
    PROPOSER,
    SCHEDULER,
    TreeOptions,
    check_budget,
    is_tree_scheduler,
)
from treedecode.vllm.drafters.methods import (
    SPINE_METHODS,
    check_branches,
    check_method,
    check_spine_settings,
)
from treedecode.vllm.installed import SUPPORTED, vllm_version

if TYPE_CHECKING:
    from vllm.config import VllmConfig


_WORKER_OF = {"cpu": CPU_WORKER, "cuda": GPU_WORKER}
# Backends that the tree attention on GPUs takes the place of: itself, and the one it extends, which vLLM chooses by
# itself for some models.
_GPU_BACKENDS = {"CUSTOM", "TRITON_ATTN"}


def check_version() -> None:
    """Refuse other versions than those the overrides were written for.

    Raises:
        ValueError: vLLM is missing or of another minor version.
    """
    found = vllm_version()
    major, minor = map(int, SUPPORTED.split("."))
    fix = f"pip install 'vllm>={SUPPORTED},<{major}.{minor + 1}', or on a CPU scripts/install_vllm_cpu.sh"
    if found is None:
        raise ValueError(f"trees need vLLM {SUPPORTED}, which is not installed: {fix}")
    if found.split(".")[:2] != SUPPORTED.split("."):
        raise ValueError(f"trees need vLLM {SUPPORTED}, got {found}: {fix}")


def check_config(config: VllmConfig, device_type: str) -> None:
    """Refuse every combination that trees do not support, and name the flag that fixes it.

    Args:
        config: of the engine.
        device_type: as ``check_signatures``.

    Raises:
        ValueError: the first such combination.
    """
    speculative = config.speculative_config
    custom = speculative is not None and speculative.method == "custom_class"
    if speculative is None or (custom and speculative.model != PROPOSER):
        given = None if speculative is None else f"method {speculative.method!r}, model {speculative.model!r}"
        raise ValueError(
            f"--worker-cls {_WORKER_OF[device_type]} needs --speculative-config "
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
    elif options.shared_contexts and not is_tree_scheduler(config.scheduler_config.scheduler_cls):
        raise ValueError(
            "shared contexts are to be forgotten when the prefix cache is reset, which only treedecode's scheduler "
            f"tells the workers: use --scheduler-cls {SCHEDULER}, or leave out --shared-contexts; got "
            f"{config.scheduler_config.scheduler_cls!r}"
        )
    refusals = _refusals(config, device_type)
    if device_type == "cuda":
        refusals += _gpu_refusals(config)
    for found, what, fix in refusals:
        if found:
            raise ValueError(f"trees do not support {what}: {fix}")


def _refusals(config: VllmConfig, device_type: str) -> list[tuple[Any, str, str]]:
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    speculative: Any = config.speculative_config
    without = "run this model without treedecode's --worker-cls and --speculative-config"
    from vllm.platforms import current_platform

    found = "cpu" if current_platform.is_cpu() else "cuda" if current_platform.is_cuda() else None
    return [
        (
            found is None,
            f"vLLM's platform {current_platform.device_name!r}",
            "use NVIDIA GPUs or vLLM's CPU build",
        ),
        (
            found != device_type,
            f"{_WORKER_OF[device_type]} on vLLM's platform {found}",
            f"use --worker-cls {_WORKER_OF.get(found or '')}",
        ),
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


def _gpu_refusals(config: VllmConfig) -> list[tuple[Any, str, str]]:
    attention, mode = config.attention_config, config.compilation_config.cudagraph_mode
    speculative: Any = config.speculative_config
    chosen = {attention.backend, speculative.attention_backend, *attention.backend_per_kind.values()}
    others = sorted({backend.name for backend in chosen if backend} - _GPU_BACKENDS)
    piecewise = """use --compilation-config '{"cudagraph_mode": "PIECEWISE"}'"""
    return [
        (
            others,
            f"the attention backend {', '.join(others)}",
            'leave out --attention-backend, and "attention_backend" in --speculative-config',
        ),
        # FULL_AND_PIECEWISE, vLLM's default, becomes PIECEWISE, since the metadata builder supports no full graph
        (
            mode is not None and mode.name in ("FULL", "FULL_DECODE_ONLY"),
            f"CUDA graphs of the whole model ({mode and mode.name}): attention differs with every step's trees",
            piecewise,
        ),
        (
            config.model_config.rswa_window is not None,
            "reference sliding windows",
            "run this model without treedecode's --worker-cls and --speculative-config",
        ),
    ]
