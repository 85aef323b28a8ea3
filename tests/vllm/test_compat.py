"""What is refused at start, and how it is said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from treedecode.cost import CostCurve
from treedecode.vllm import compat
from treedecode.vllm.config import PROPOSER, SCHEDULER
from treedecode.vllm.signatures import check_signatures

pytestmark = pytest.mark.vllm


def config(**changes):
    """A configuration that trees support, as far as it is looked at."""
    parts = {
        "speculative_config": SimpleNamespace(
            method="custom_class",
            model=PROPOSER,
            num_speculative_tokens=8,
            rejection_sample_method="standard",
        ),
        "additional_config": {},
        "use_v2_model_runner": False,
        "scheduler_config": SimpleNamespace(async_scheduling=False, scheduler_cls=SCHEDULER),
        "parallel_config": SimpleNamespace(
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_dbo=False,
        ),
        "model_config": SimpleNamespace(
            use_mla=False,
            is_hybrid=False,
            is_attention_free=False,
            is_encoder_decoder=False,
            runner_type="generate",
            use_fp64_gumbel=False,
            is_multimodal_model=False,
        ),
        "cache_config": SimpleNamespace(kv_sharing_fast_prefill=False, cache_dtype="auto"),
        "kv_transfer_config": None,
        "reasoning_config": None,
    }
    for path, value in changes.items():
        owner, _, name = path.partition("__")
        if name:
            setattr(parts[owner], name, value)
        else:
            parts[owner] = value
    return SimpleNamespace(**parts)


def test_a_supported_configuration_passes():
    compat.check_config(config(), "cpu")


@pytest.mark.parametrize(
    ("change", "value", "what", "fix"),
    [
        ("use_v2_model_runner", True, "V2 model runner", "VLLM_USE_V2_MODEL_RUNNER=0"),
        ("scheduler_config__async_scheduling", True, "async scheduling", "--no-async-scheduling"),
        ("parallel_config__pipeline_parallel_size", 2, "pipeline", "--pipeline-parallel-size 1"),
        (
            "parallel_config__decode_context_parallel_size",
            2,
            "decode context",
            "--decode-context-parallel-size 1",
        ),
        (
            "parallel_config__prefill_context_parallel_size",
            2,
            "prefill context",
            "--prefill-context-parallel",
        ),
        ("parallel_config__enable_dbo", True, "dual batch", "--enable-dbo"),
        ("model_config__use_mla", True, "latent attention", "without treedecode's --worker-cls"),
        ("model_config__is_hybrid", True, "Mamba", "without treedecode's --worker-cls"),
        ("model_config__is_encoder_decoder", True, "encoder-decoder", "without treedecode's --worker-cls"),
        ("model_config__runner_type", "pooling", "pooling models", "without treedecode's --worker-cls"),
        ("model_config__use_fp64_gumbel", True, "noise in float64", "--use-fp64-gumbel"),
        ("cache_config__kv_sharing_fast_prefill", True, "fast prefill", "--kv-sharing-fast-prefill"),
        ("cache_config__cache_dtype", "fp8_e4m3", "quantised KV cache", "--kv-cache-dtype auto"),
        ("kv_transfer_config", object(), "KV connectors", "--kv-transfer-config"),
        ("reasoning_config", object(), "thinking budgets", "--reasoning-config"),
        ("speculative_config__rejection_sample_method", "synthetic", "synthetic", "rejection_sample_method"),
        ("speculative_config__num_speculative_tokens", 200, "budget must be at most 128", "200"),
        ("speculative_config__method", "ngram", "method 'ngram'", "--drafter prompt-lookup"),
        ("speculative_config__method", "dspark", "method 'dspark'", "use method eagle3 or mtp"),
        ("speculative_config__model", "a.b", "--speculative-config", "custom_class"),
        ("speculative_config", None, "--speculative-config", "custom_class"),
        ("additional_config", {"treedecode": {"drafter": "none"}}, "drafter must be one of", "none"),
    ],
)
def test_refusals_name_the_flag_that_fixes_them(change, value, what, fix):
    with pytest.raises(ValueError, match=r"trees|budget|drafter|--worker-cls") as refusal:
        compat.check_config(config(**{change: value}), "cpu")
    assert what in str(refusal.value) and fix in str(refusal.value)


def spine_config(**changes):
    given = {
        "method": "draft_model",
        "model": "some/model",
        "num_speculative_tokens": 8,
        "rejection_sample_method": "standard",
        "use_local_argmax_reduction": False,
        "draft_sample_method": "greedy",
        "parallel_drafting": False,
        "disable_padded_drafter_batch": False,
        "num_speculative_tokens_per_batch_size": None,
        "draft_model_config": SimpleNamespace(
            hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]),
            hf_text_config=SimpleNamespace(layer_types=["full_attention"] * 2),
        ),
    }
    return config(
        speculative_config=SimpleNamespace(**{**given, **changes}),
        scheduler_config=SimpleNamespace(async_scheduling=False, disable_hybrid_kv_cache_manager=False),
    )


def test_a_drafter_of_vllm_passes():
    compat.check_config(spine_config(), "cpu")


def test_a_saved_cost_is_taken_for_all_drafters(tmp_path):
    file = tmp_path / "cost.json"
    file.write_text(CostCurve([1, 8], [1.0, 2.0]).to_json())
    options = {"treedecode": {"cost": str(file)}}
    compat.check_config(config(additional_config=options), "cpu")
    spines = spine_config()
    spines.additional_config = options
    compat.check_config(spines, "cpu")
    file.write_text("{}")
    with pytest.raises(ValueError, match="cost must be auto, off or a file"):
        compat.check_config(spines, "cpu")


def test_what_is_shared_can_be_forgotten_when_the_prefix_cache_is_reset():
    shares = config(additional_config={"treedecode": {"shared_contexts": 10}})
    compat.check_config(shares, "cpu")
    for other in (None, "some.other.Scheduler"):
        shares.scheduler_config.scheduler_cls = other
        with pytest.raises(ValueError, match=f"use --scheduler-cls {SCHEDULER}, or .*; got {other!r}"):
            compat.check_config(shares, "cpu")
        compat.check_config(config(scheduler_config__scheduler_cls=other), "cpu")


def test_nothing_is_shared_by_vllms_drafters():
    spines = spine_config()
    spines.additional_config = {"treedecode": {"shared_contexts": 10}}
    with pytest.raises(ValueError, match="leave out --shared-contexts, got 10"):
        compat.check_config(spines, "cpu")


def draft_model_of(architecture="LlamaForCausalLM", layer_types=("full_attention",)):
    return SimpleNamespace(
        hf_config=SimpleNamespace(architectures=[architecture]),
        hf_text_config=SimpleNamespace(layer_types=list(layer_types)),
    )


@pytest.mark.parametrize(
    ("change", "value", "fix"),
    [
        ("use_local_argmax_reduction", True, 'leave "use_local_argmax_reduction" out'),
        ("draft_sample_method", "probabilistic", 'leave "draft_sample_method" out'),
        ("parallel_drafting", True, 'leave "parallel_drafting" out'),
        ("disable_padded_drafter_batch", True, 'leave "disable_padded_drafter_batch" out'),
        ("num_speculative_tokens_per_batch_size", [(1, 8, 4)], "num_speculative_tokens_per_batch_size"),
        ("draft_model_config", draft_model_of("Gemma4MTPModel"), "--drafter merged"),
        ("draft_model_config", draft_model_of("Step3p5MTP"), "--drafter merged"),
        (
            "draft_model_config",
            draft_model_of(layer_types=("sliding_attention", "full_attention")),
            "--disable-hybrid-kv-cache-manager",
        ),
    ],
)
def test_settings_under_which_a_drafter_shows_no_candidates_are_refused(change, value, fix):
    with pytest.raises(ValueError, match="trees do not support") as refusal:
        compat.check_config(spine_config(**{change: value}), "cpu")
    assert fix in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "value", "what"),
    [
        ("speculative_config__method", "medusa", "Medusa heads"),
        ("speculative_config__use_heterogeneous_vocab", True, "vocabulary of its own"),
        ("model_config__is_multimodal_model", True, "multimodal models"),
    ],
)
def test_branches_that_no_drafter_can_draft_are_refused(change, value, what):
    checked = spine_config()
    checked.additional_config = {"treedecode": {"branches": 2}}
    compat.check_config(checked, "cpu")
    owner, _, name = change.partition("__")
    setattr(getattr(checked, owner), name, value)
    with pytest.raises(ValueError, match=f"branches must be 1 with .*{what}.*, got 2: leave out --branches"):
        compat.check_config(checked, "cpu")
    checked.additional_config = {}
    compat.check_config(checked, "cpu")


def on_a_gpu(monkeypatch):
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: False)
    monkeypatch.setattr(type(current_platform), "is_cuda", lambda _: True)


def gpu_config(**changes):
    """A configuration that trees support on a GPU, as far as it is looked at."""
    from vllm.config import CUDAGraphMode

    supported = config(
        attention_config=SimpleNamespace(backend=None, backend_per_kind={}),
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE),
        model_config__rswa_window=None,
        speculative_config__attention_backend=None,
    )
    for path, value in changes.items():
        owner, _, name = path.partition("__")
        setattr(getattr(supported, owner), name, value)
    return supported


@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "PIECEWISE", "NONE"])
@pytest.mark.parametrize("backend", [None, "TRITON_ATTN", "CUSTOM"])
def test_a_supported_configuration_passes_on_a_gpu(monkeypatch, backend, mode):
    from vllm.config import CUDAGraphMode
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    on_a_gpu(monkeypatch)
    chosen = backend and AttentionBackendEnum[backend]
    graphs = CUDAGraphMode[mode]
    supported = gpu_config(attention_config__backend=chosen, compilation_config__cudagraph_mode=graphs)
    compat.check_config(supported, "cuda")


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY"])
def test_graphs_of_the_whole_model_are_refused(monkeypatch, mode):
    from vllm.config import CUDAGraphMode

    on_a_gpu(monkeypatch)
    full = gpu_config(compilation_config__cudagraph_mode=CUDAGraphMode[mode])
    with pytest.raises(ValueError, match=rf"CUDA graphs of the whole model \({mode}\).*PIECEWISE"):
        compat.check_config(full, "cuda")


@pytest.mark.parametrize(
    "where", ["attention_config__backend", "speculative_config__attention_backend", "by kind"]
)
def test_other_backends_are_refused(monkeypatch, where):
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    on_a_gpu(monkeypatch)
    other = AttentionBackendEnum.FLASH_ATTN
    change = {"attention_config__backend_per_kind": {"x": other}} if where == "by kind" else {where: other}
    with pytest.raises(ValueError, match="backend FLASH_ATTN: leave out --attention-backend"):
        compat.check_config(gpu_config(**change), "cuda")


@pytest.mark.parametrize(
    ("change", "value", "what", "fix"),
    [
        ("cache_config__cache_dtype", "fp8", "quantised KV cache", "--kv-cache-dtype auto"),
        ("model_config__rswa_window", 512, "reference sliding windows", "without treedecode's --worker-cls"),
        ("parallel_config__enable_dbo", True, "dual batch", "--enable-dbo"),
    ],
)
def test_gpu_refusals_name_the_flag_that_fixes_them(monkeypatch, change, value, what, fix):
    on_a_gpu(monkeypatch)
    with pytest.raises(ValueError, match="trees do not support") as refusal:
        compat.check_config(gpu_config(**{change: value}), "cuda")
    assert what in str(refusal.value) and fix in str(refusal.value)


def test_the_v2_runner_is_refused_on_a_gpu(monkeypatch):
    on_a_gpu(monkeypatch)
    checked = gpu_config()
    checked.use_v2_model_runner = True
    with pytest.raises(ValueError, match="V2 model runner: set VLLM_USE_V2_MODEL_RUNNER=0"):
        compat.check_config(checked, "cuda")


def test_a_worker_of_another_device_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"TreeGPUWorker on vLLM's platform cpu: use .*TreeCPUWorker"):
        compat.check_config(gpu_config(), "cuda")
    on_a_gpu(monkeypatch)
    with pytest.raises(ValueError, match=r"TreeCPUWorker on vLLM's platform cuda: use .*TreeGPUWorker"):
        compat.check_config(config(), "cpu")


def test_other_platforms_are_refused(monkeypatch):
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: False)
    with pytest.raises(ValueError, match="use NVIDIA GPUs or vLLM's CPU build"):
        compat.check_config(config(), "cpu")


@pytest.mark.parametrize("found", ["0.31.9", "0.33.0", "1.32.0"])
def test_other_versions_are_refused(monkeypatch, found):
    monkeypatch.setattr(compat, "vllm_version", lambda: found)
    with pytest.raises(ValueError, match=f"need vLLM 0.32, got {found}: pip install"):
        compat.check_version()


def test_a_missing_vllm_is_named(monkeypatch):
    monkeypatch.setattr(compat, "vllm_version", lambda: None)
    with pytest.raises(ValueError, match="is not installed"):
        compat.check_version()


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_signatures_of_this_vllm_are_those_the_overrides_rely_on(monkeypatch, device_type):
    from vllm.v1.sample.sampler import Sampler

    compat.check_version()
    check_signatures(device_type)
    monkeypatch.setattr(Sampler, "forward", lambda self, logits: None)
    with pytest.raises(ValueError, match=r"Sampler\.forward must take"):
        check_signatures(device_type)


def test_signatures_for_gpus_are_checked(monkeypatch):
    from vllm.v1.worker.gpu_worker import Worker

    monkeypatch.setattr(Worker, "_make_model_runner", lambda self, device: None)
    check_signatures("cpu")
    with pytest.raises(ValueError, match=r"Worker\._make_model_runner must take \['self'\]"):
        check_signatures("cuda")
