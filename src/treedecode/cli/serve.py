"""``treedecode serve``: stock ``vllm serve`` with trees on."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

import typer

from treedecode.cli.outcome import bad_input
from treedecode.cli.output import print_json
from treedecode.vllm.command import serve_command
from treedecode.vllm.compat import check_version
from treedecode.vllm.config import DEFAULT_BUDGET, DEFAULT_WIDTH, TreeOptions


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model folder or a name of the Hub, as for vllm serve.")],
    budget: Annotated[
        int, typer.Option(help="Most drafted nodes per request and step; 0 is plain vllm serve.")
    ] = DEFAULT_BUDGET,
    drafter: Annotated[
        str, typer.Option(help="merged, recycling, suffix, prompt-lookup, or package.module:factory.")
    ] = "merged",
    max_depth: Annotated[int, typer.Option(help="Deepest drafted node.")] = 32,
    cost: Annotated[
        str,
        typer.Option(
            help="What steps cost, by which trees are sized: auto (measured at start-up), off, or a JSON file."
        ),
    ] = "auto",
    width: Annotated[
        int, typer.Option(help="With --speculative-config: candidates per position of vLLM's own drafter.")
    ] = DEFAULT_WIDTH,
    branches: Annotated[
        int,
        typer.Option(help="With --speculative-config: nodes of one depth that are drafted on, in one pass."),
    ] = 1,
    shared_contexts: Annotated[
        int,
        typer.Option(
            help="Most contexts of ended requests' outputs to draft from, half a kilobyte each; 0 for none. Requests "
            "that say what others said before are then faster, which their senders can tell."
        ),
    ] = 0,
    show: Annotated[bool, typer.Option("--show", help="Print the command instead of running it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --show: as a JSON object.")] = False,
) -> None:
    """Serves MODEL with vLLM's OpenAI-compatible server, trees on. Every other flag is passed on to vllm serve."""
    if as_json and not show:
        raise typer.TyperException("--json prints the command: expected --show with it")
    with bad_input():
        command = serve_command(
            model,
            context.args,
            budget,
            drafter=drafter,
            max_depth=max_depth,
            cost=cost,
            width=width,
            branches=branches,
            shared_contexts=shared_contexts,
        )
        if not show:
            check_version()
            if budget:
                TreeOptions(cost=cost).saved_cost()
    if show:
        plain = shlex.join(command.plain)
        if as_json:
            print_json({"argv": command.argv, "environment": command.environment})
        else:
            print(plain)
        return
    for name, value in command.environment.items():
        print(f"treedecode: {name}={value} is set: trees run on that model runner", file=sys.stderr)
    sys.stdout.flush()
    os.execve(command.argv[0], command.argv, {**os.environ, **command.environment})
