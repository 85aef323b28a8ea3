"""The command line that ``treedecode serve`` runs: stock ``vllm serve`` with trees on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treedecode.json_text import parse_json
from treedecode.vllm.config import CONFIG_KEY, CPU_WORKER, DEFAULT_WIDTH, EXECUTOR, engine_args

# trees run on vLLM's V1 model runner
ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
_LAUNCHER = "treedecode.vllm.launch"
_OURS = ("--worker-cls", "--async-scheduling")
_SCHEDULER = "--scheduler-cls"
_EXECUTOR = "--distributed-executor-backend"
# vLLM chooses an executor by these
_DISTRIBUTION = {_EXECUTOR, "--nnodes", "-n", "--data-parallel-size", "-dp"}
_ADDITIONAL = ("--additional-config",)
_SPECULATIVE = ("--speculative-config", "-sc")


@dataclass(frozen=True)
class ServeCommand:
    """What is run.

    Attributes:
        argv: ``vllm serve`` by this Python, with all flags.
        environment: variables set on top of the caller's.
    """

    argv: list[str]
    environment: dict[str, str]

    @property
    def plain(self) -> list[str]:
        """The same for those who write their own command line."""
        return [*(f"{name}={value}" for name, value in self.environment.items()), "vllm", *self.argv[3:]]


def serve_command(
    model: str,
    flags: Sequence[str],
    budget: int,
    drafter: str = "merged",
    max_depth: int = 32,
    cost: str = "auto",
    width: int = DEFAULT_WIDTH,
    branches: int = 1,
    shared_contexts: int = 0,
) -> ServeCommand:
    """Add what turns trees on to ``vllm serve model flags``; with budget 0 nothing is added.

    Args:
        model: a folder or a name of the Hub.
        flags: of ``vllm serve``, passed on as they are. The entry of ``--additional-config`` for treedecode is set,
            its others are kept; ``--speculative-config`` is read as by ``engine_args``.
        budget: as ``engine_args``.
        drafter: as ``engine_args``.
        max_depth: as ``engine_args``.
        cost: as ``engine_args``.
        width: as ``engine_args``.
        branches: as ``engine_args``.
        shared_contexts: as ``engine_args``.

    Raises:
        TypeError, ValueError: a value that cannot be meant, or a flag that trees set themselves.
    """
    base = [sys.executable, "-m", _LAUNCHER, "serve", model]
    options: dict[str, Any] = {
        "drafter": drafter,
        "max_depth": max_depth,
        "cost": cost,
        "width": width,
        "branches": branches,
        "shared_contexts": shared_contexts,
    }
    if not engine_args(budget, **options):
        return ServeCommand([*base, *flags], {})
    speculative, rest = _take_object(flags, _SPECULATIVE)
    additional, rest = _take_object(rest, _ADDITIONAL)
    if speculative is None:
        for flag, value, default in (("--width", width, DEFAULT_WIDTH), ("--branches", branches, 1)):
            if value != default:
                raise ValueError(
                    f"{flag} is for drafters of vLLM's: expected --speculative-config, or no {flag}, got {value}"
                )
    if additional and CONFIG_KEY in additional:
        raise ValueError(
            f"--additional-config must leave {CONFIG_KEY!r} to --budget, --drafter, --max-depth, --cost, "
            "--width, --branches and --shared-contexts"
        )
    arguments = engine_args(budget, **options, speculative_config=speculative)
    names = [_name(flag) for flag in rest]
    if clash := [name for name in names if any(_means(name, flag) for flag in (*_OURS, *_SPECULATIVE))]:
        raise ValueError(
            f"{clash[0]} is set by treedecode serve: leave it out, or use vllm serve with --budget 0"
        )
    # vLLM takes one of several: the other's entries, or those for trees, would be lost
    if clash := [name for name in names if any(_means(name, flag) for flag in _ADDITIONAL)]:
        raise ValueError(
            f"{clash[0]} must be given once, as one JSON object: {_ADDITIONAL[0]} '{{\"key\": value, ...}}'"
        )
    # on a CPU vLLM runs its workers in processes of their own, by this executor's base
    has_executor = arguments["worker_cls"] == CPU_WORKER and _DISTRIBUTION.isdisjoint(names)
    return ServeCommand(
        [
            *base,
            *rest,
            "--worker-cls",
            arguments["worker_cls"],
            # a scheduler of the user's own takes drafts under a grammar for chains
            *([] if _SCHEDULER in names else [_SCHEDULER, arguments["scheduler_cls"]]),
            *([_EXECUTOR, EXECUTOR] if has_executor else []),
            "--speculative-config",
            json.dumps(arguments["speculative_config"]),
            *(["--no-async-scheduling"] if arguments.get("async_scheduling") is False else []),
            "--additional-config",
            json.dumps({**(additional or {}), **arguments["additional_config"]}),
        ],
        dict(ENVIRONMENT),
    )


def _name(flag: str) -> str:
    """The flag that an argument names, as vLLM reads it: without a value, and with hyphens."""
    return flag.split("=")[0].split(".")[0].replace("_", "-") if flag.startswith("-") else flag


def _means(name: str, flag: str) -> bool:
    """Whether vLLM would read an argument's ``name`` as ``flag``, which it may shorten."""
    return name == flag or (len(name) > 3 and name.startswith("--") and flag.startswith(name))


def _take_object(flags: Sequence[str], names: Sequence[str]) -> tuple[dict[str, object] | None, list[str]]:
    """The JSON object that the caller gave for one of ``names`` (None: not given), and the flags without it."""
    rest = list(flags)
    for place, flag in enumerate(rest):
        name, equals, value = flag.partition("=")
        if name.replace("_", "-") not in names:
            continue
        if not equals and place + 1 < len(rest):
            value = rest[place + 1]
        del rest[place : place + (1 if equals else 2)]
        try:
            given = parse_json(value)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise ValueError(f"{names[0]} must be a JSON object, got {value!r}")
        return given, rest
    return None, rest
