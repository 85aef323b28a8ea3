"""The command line that ``treedecode serve`` runs: stock ``vllm serve`` with trees on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from treedecode.vllm.config import CONFIG_KEY, engine_args

# trees run on vLLM's V1 model runner
ENVIRONMENT = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
_LAUNCHER = "treedecode.vllm.launch"
_OURS = ("--worker-cls", "--speculative-config", "-sc")
_ADDITIONAL = "--additional-config"


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
) -> ServeCommand:
    """Add what turns trees on to ``vllm serve model flags``; with budget 0 nothing is added.

    Args:
        model: a folder or a name of the Hub.
        flags: of ``vllm serve``, passed on as they are. The entry of ``--additional-config`` for treedecode is set,
            its others are kept.
        budget: as ``engine_args``.
        drafter: as ``engine_args``.
        max_depth: as ``engine_args``.
        cost: as ``engine_args``.

    Raises:
        TypeError, ValueError: a value that cannot be meant, or a flag that trees set themselves.
    """
    base = [sys.executable, "-m", _LAUNCHER, "serve", model]
    arguments = engine_args(budget, drafter, max_depth, cost)
    if not arguments:
        return ServeCommand([*base, *flags], {})
    names = [flag.split("=")[0].split(".")[0].replace("_", "-") for flag in flags if flag.startswith("-")]
    if clash := [name for name in names if name in _OURS]:
        raise ValueError(
            f"{clash[0]} is set by treedecode serve: leave it out, or use vllm serve with --budget 0"
        )
    additional, rest = _take_additional(flags)
    additional.update(arguments["additional_config"])
    return ServeCommand(
        [
            *base,
            *rest,
            "--worker-cls",
            arguments["worker_cls"],
            "--speculative-config",
            json.dumps(arguments["speculative_config"]),
            _ADDITIONAL,
            json.dumps(additional),
        ],
        dict(ENVIRONMENT),
    )


def _take_additional(flags: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """The caller's own ``--additional-config``, and the flags without it."""
    rest = list(flags)
    for place, flag in enumerate(rest):
        name, equals, value = flag.partition("=")
        if name != _ADDITIONAL:
            continue
        if not equals and place + 1 < len(rest):
            value = rest[place + 1]
        del rest[place : place + (1 if equals else 2)]
        try:
            given = json.loads(value)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise ValueError(f"{_ADDITIONAL} must be a JSON object, got {value!r}")
        if CONFIG_KEY in given:
            raise ValueError(
                f"{_ADDITIONAL} must leave {CONFIG_KEY!r} to --budget, --drafter, --max-depth and --cost"
            )
        return given, rest
    return {}, rest
