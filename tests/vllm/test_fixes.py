"""Each worked-around bug is still there: a test that fails here says that its fix can go."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.vllm


def test_the_cpu_build_is_found_under_vllms_name(monkeypatch):
    from treedecode.vllm.compat import vllm_version
    from treedecode.vllm.fixes import name_of_the_cpu_build

    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")
    monkeypatch.setattr(importlib.metadata, "version", importlib.metadata.version)
    name_of_the_cpu_build()
    assert importlib.metadata.version("vllm") == f"{vllm_version()}+cpu"
    assert importlib.metadata.version("torch") == importlib.metadata.distribution("torch").version


def test_the_launcher_runs_vllms_command():
    command = [sys.executable, "-m", "treedecode.vllm.launch", "--version"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.strip().startswith("0.32.")


def test_a_drafters_builder_knows_the_windows_of_all_its_layers(monkeypatch):
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder
    from vllm.v1.spec_decode import llm_base_proposer
    from vllm.v1.spec_decode.eagle import EagleProposer

    from treedecode.vllm.fixes import windows_of_a_drafters_layers

    windows = {"draft.0": 512, "draft.1": -1}

    class Builder(CPUAttentionMetadataBuilder):
        def __init__(self, spec, layer_names, *others):
            self.layer_names = layer_names
            self.window_size = self._group_sliding_window()

        def _group_sliding_window(self):
            found = {windows[name] for name in self.layer_names}
            return found.pop() if len(found) == 1 else -1

    backend = SimpleNamespace(full_cls_name=lambda: "Backend", get_builder_cls=lambda: Builder)
    layer = SimpleNamespace(get_attn_backend=lambda: backend)
    monkeypatch.setattr(
        llm_base_proposer, "get_layers_from_vllm_config", lambda *_: dict.fromkeys(windows, layer)
    )
    drafter = object.__new__(EagleProposer)
    drafter.vllm_config = drafter.device = None
    drafter._draft_attn_layer_names = set(windows)
    spec = SimpleNamespace(block_size=32)
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=list(windows), kv_cache_spec=spec)])
    drafter.initialize_attn_backend(cache)
    [[builder]] = [group.metadata_builders for group in drafter.draft_attn_groups]
    assert builder.layer_names == list(windows) and builder.window_size == 512
    windows_of_a_drafters_layers(drafter.draft_attn_groups)
    assert builder.window_size == -1


def test_builders_of_other_devices_are_left_alone():
    from treedecode.vllm.fixes import windows_of_a_drafters_layers

    builder = SimpleNamespace(window_size=512)
    windows_of_a_drafters_layers([SimpleNamespace(metadata_builders=[builder])])
    assert builder.window_size == 512
