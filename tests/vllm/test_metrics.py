"""The trees' numbers in Prometheus and in the log, within a process and between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from treedecode.accept import accept_greedy
from treedecode.tree import DraftTree
from treedecode.vllm.counts import TreeCounts

pytestmark = pytest.mark.vllm


def counted():
    tree = DraftTree.build([-1, 0, 0, 2], [9, 1, 2, 3])[0]
    counts = TreeCounts(num_drafted=8, num_moved_bytes=640, num_failed_drafts=1)
    counts.add_step([(tree, accept_greedy(tree, choices)) for choices in ([2, 0, 3, 7], [8, 0, 0, 0])])
    return counts


def value(name, model, **labels):
    from prometheus_client import REGISTRY

    return REGISTRY.get_sample_value(f"vllm:tree_{name}", {"model_name": model, "engine": "0", **labels})


def test_every_step_adds_what_is_new():
    from treedecode.vllm.metrics import TreeMetrics

    metrics, counts = TreeMetrics("one", 0), TreeCounts()
    metrics.record(counts)
    assert value("emitted_tokens_total", "one") == 0
    counts = counted()
    metrics.record(counts)
    metrics.record(counts)
    expected = {
        "steps_total": 2,
        "steps_without_tree_total": 0,
        "emitted_tokens_total": 4,
        "drafted_nodes_total": 8,
        "verified_nodes_total": 6,
        "accepted_nodes_total": 2,
        "wasted_nodes_total": 4,
        "first_child_misses_total": 2,
        "sibling_rescues_total": 1,
        "failed_drafts_total": 1,
        "compaction_bytes_total": 640,
        "budget": 6,
        "emitted_tokens_per_step": 2.0,
        "sibling_rescue_rate": 0.5,
    }
    assert {name: value(name, "one") for name in expected} == expected
    assert value("tried_by_depth_total", "one", depth="1") == 2
    assert value("accepted_by_depth_total", "one", depth="2") == 1
    assert value("tried_by_rank_total", "one", rank="1") == 2
    assert value("accepted_by_rank_total", "one", rank="1") == 1


def test_nothing_is_passed_on_before_the_interval_and_nothing_is_lost(monkeypatch):
    from treedecode.vllm import metrics as module

    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    metrics, counts = module.TreeMetrics("three", 0), TreeCounts()
    metrics.record(counts)
    bare = DraftTree.root_only(1)
    for expected in (0, 0, 3):
        now[0] += 0.2
        counts.add_step([(bare, accept_greedy(bare, [2]))])
        metrics.record(counts, interval_s=0.5)
        assert value("steps_total", "three") == expected
    counts.add_step([(bare, accept_greedy(bare, [2]))])
    metrics.record(counts)
    assert value("steps_total", "three") == 4


def test_a_second_engine_of_the_process_and_new_counters_count_on():
    from vllm.v1.metrics.prometheus import unregister_vllm_metrics

    from treedecode.vllm.metrics import TreeMetrics

    counts = counted()
    TreeMetrics("two", 0).record(counts)
    unregister_vllm_metrics()
    assert value("steps_total", "two") is None
    metrics = TreeMetrics("two", 0)
    metrics.record(counts)
    assert value("steps_total", "two") == 4
    counts = TreeCounts()
    bare = DraftTree.root_only(1)
    counts.add_step([(bare, accept_greedy(bare, [2]))])
    metrics.record(counts)
    assert value("steps_total", "two") == 5 and value("steps_without_tree_total", "two") == 1


def test_the_log_line(monkeypatch):
    from treedecode.vllm import metrics as module

    monkeypatch.setenv("VLLM_LOG_STATS_INTERVAL", "0.000001")
    lines = []
    monkeypatch.setattr(module.logger, "info", lambda text, *args: lines.append(text % args))
    metrics = module.TreeMetrics("log", 0)
    counts = counted()
    metrics.record(counts)
    metrics.record(counts)
    assert lines == [
        "Tree metrics: E[L]: 2.00, drafted: 8, verified: 6, wasted: 4 nodes, acceptance by depth: 0.500, 1.000, "
        "by sibling rank: 0.333, 0.500, sibling rescue rate: 0.500, compaction: 640 bytes, budget: 6 nodes, "
        "steps without a tree: 0 of 2"
    ]


WORKER = """
from tests.vllm.test_metrics import counted
from treedecode.vllm.metrics import TreeMetrics
TreeMetrics("far", 1).record(counted())
"""
SERVER = """
from prometheus_client import generate_latest
from vllm.v1.metrics.prometheus import get_prometheus_registry
print(generate_latest(get_prometheus_registry()).decode())
"""


def test_another_process_sees_them(tmp_path):
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
        ).stdout
        for code in (WORKER, WORKER, SERVER)
    ][-1]
    assert 'vllm:tree_emitted_tokens_total{engine="1",model_name="far"} 8.0' in told
    assert 'vllm:tree_accepted_by_rank_total{engine="1",model_name="far",rank="1"} 2.0' in told
    assert 'vllm:tree_budget{engine="1",model_name="far"} 6.0' in told


@pytest.mark.parametrize("separator", [" ", "="])
@pytest.mark.parametrize("worker", ["treedecode.vllm.gpu_worker.TreeGPUWorker", "some.Worker"])
def test_metrics_are_shared_wherever_trees_are_on(monkeypatch, worker, separator):
    from treedecode.vllm import launch

    found = []
    module = SimpleNamespace(main=lambda: found.append(launch.METRICS_FOLDER in os.environ))
    monkeypatch.setenv(launch.METRICS_FOLDER, "")  # so that it is taken back
    monkeypatch.delenv(launch.METRICS_FOLDER)
    monkeypatch.setattr(launch, "name_of_the_cpu_build", lambda: None)
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.cli.main", module)
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "m", *f"--worker-cls{separator}{worker}".split()])
    launch.main()
    assert found == [worker.startswith("treedecode")]


def test_the_launcher_shares_a_folder_while_it_runs(monkeypatch, tmp_path):
    from treedecode.vllm.launch import METRICS_FOLDER, shared_metrics

    # restored after the test, whatever it leaves
    monkeypatch.setenv(METRICS_FOLDER, "")
    monkeypatch.delenv(METRICS_FOLDER)
    with shared_metrics():
        folder = os.environ[METRICS_FOLDER]
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path))
    with shared_metrics():
        assert os.environ[METRICS_FOLDER] == str(tmp_path)
    assert tmp_path.exists()
