"""``treedecode plan``: which tree pays at which batch, before anything is run."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from treedecode.cli.numbers import integer, number
from treedecode.cli.outcome import bad_input, check_output
from treedecode.cli.output import print_json
from treedecode.cli.plan_cost import CostOptions, PlanCost
from treedecode.cli.tree_text import FORMS, MAX_DRAFTED, NamedTree, read_tree
from treedecode.expect import RankProbs
from treedecode.roofline import Roofline
from treedecode.sweep import Choice, Sweep, judge_tree, sweep_batches

# A sweep looks at every batch and size; more than this takes longer than a moment.
MAX_BATCH = 4096


@dataclass(frozen=True)
class Plan:
    """All that ``treedecode plan`` says.

    Attributes:
        tree: The given tree.
        rank_probs: Acceptance by depth and rank; one row holds at every depth.
        cost: Where the milliseconds come from.
        max_drafted: The largest tree looked at.
        judged: The given tree at the given batch.
        swept: The best trees and chains at batches 1, 2, 3, ...
        given: The given tree at the same batches.
    """

    tree: NamedTree
    rank_probs: list[list[float]]
    cost: PlanCost
    max_drafted: int
    judged: Choice
    swept: Sweep
    given: tuple[Choice, ...]

    @property
    def last_paying_batch(self) -> int:
        """The largest batch looked at where the given tree is faster than plain decoding; 0 for none."""
        return max((choice.batch for choice in self.given if choice.speedup > 1.0), default=0)


def positive(text: str) -> float:
    """A number above 0; K, M, B and T stand for thousands to trillions, as in 8B."""
    match = re.fullmatch(r"(.*?)([KMBT]?)", text.strip(), re.IGNORECASE | re.DOTALL)
    size = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2].upper() if match else ""]
    value = number(match[1] if match else text) * size
    if not 0.0 < value < float("inf"):
        raise typer.BadParameter(f"expected a number above 0, got {text!r}")
    return value


def plan(
    tree: Annotated[str, typer.Option(help=f"The tree to judge: {FORMS}.")] = "reference",
    rank_probs: Annotated[
        str,
        typer.Option(
            help="How often the drafter's first, second, ... candidate is right, as in 0.7,0.15. "
            "One list for every depth, or one per depth: 0.7,0.15/0.6,0.1."
        ),
    ] = "0.7,0.15",
    batch: Annotated[
        int, typer.Option(parser=integer, help="Requests per step at which the tree is judged.")
    ] = 1,
    hardware: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(Roofline.known())}; h100 if nothing else says what a step costs."),
    ] = None,
    tflops: Annotated[
        float | None, typer.Option(parser=positive, help="Other hardware: dense TFLOP/s, with --tb-per-s.")
    ] = None,
    tb_per_s: Annotated[
        float | None, typer.Option(parser=positive, help="Other hardware: memory bandwidth in TB/s.")
    ] = None,
    params: Annotated[
        float | None,
        typer.Option(parser=positive, help="Parameters of the model, as in 8e9 or 8B (default)."),
    ] = None,
    model_bytes: Annotated[
        float | None, typer.Option(parser=positive, help="Bytes of the model's weights, instead of --params.")
    ] = None,
    weight_bytes: Annotated[
        float | None,
        typer.Option(parser=positive, help="Bytes per parameter: 2 for bfloat16 (default), 0.5 for 4-bit."),
    ] = None,
    context: Annotated[
        int,
        typer.Option(parser=integer, help="Tokens of context per request, for its K/V cache to be read."),
    ] = 0,
    kv_bytes_per_token: Annotated[
        float | None,
        typer.Option(
            parser=positive, help="Bytes of K/V cache per token, with --context: 131072 for Llama 3 8B."
        ),
    ] = None,
    cost: Annotated[
        Path | None,
        typer.Option(help="Measured cost instead of a roofline: a file of calibrate, or of a CostCurve."),
    ] = None,
    max_drafted: Annotated[
        int, typer.Option(parser=integer, help=f"Largest tree to look at, at most {MAX_DRAFTED} nodes.")
    ] = 64,
    max_batch: Annotated[
        int, typer.Option(parser=integer, help=f"Last batch to look at, at most {MAX_BATCH}.")
    ] = 256,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it as well: FILE.png, .svg, .pdf, or .html with the table.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> int:
    """Show which tree pays at which batch, and where none does.

    A forward pass reads all weights whatever it computes, so its first rows are free: up to the ridge of the hardware.
    A tree uses them up: B requests with trees of N nodes make B x N rows, and past the ridge each one is paid for.
    So few requests want wide trees, more want chains, and the most want none. Nothing is run here.

    The reference tree is best on one request, and loses to a chain of 4 on 64 (H100):

    treedecode plan --tree reference --batch 64

    treedecode plan --tree chain:4 --batch 64 --plot plan.png
    """
    _check_range("--batch", batch, 1, MAX_BATCH)
    _check_range("--max-batch", max_batch, 1, MAX_BATCH)
    _check_range("--max-drafted", max_drafted, 0, MAX_DRAFTED)
    probs = _parse_rank_probs(rank_probs)
    named = read_tree(tree)
    options = CostOptions(
        hardware, tflops, tb_per_s, params, model_bytes, weight_bytes, context, kv_bytes_per_token, cost
    )
    check_output("--plot", plot, cost=cost, tree=tree)
    with bad_input():
        result = make_plan(named, probs, options.resolve(), batch, max_drafted, max_batch)

    from treedecode.cli.plan_report import to_json, to_text

    if plot is not None:
        _draw(result, plot)
    if as_json:
        print_json(to_json(result))
    else:
        print(to_text(result))
    return 0


def make_plan(
    tree: NamedTree, probs: list[list[float]], cost: PlanCost, batch: int, max_drafted: int, max_batch: int
) -> Plan:
    """Judges the tree at ``batch`` and looks at every batch up to ``max_batch``."""
    batches = range(1, max_batch + 1)
    rank_probs = probs[0] if len(probs) == 1 else probs
    return Plan(
        tree,
        probs,
        cost,
        max_drafted,
        judge_tree(tree.shape, rank_probs, cost.step_ms, batch),
        sweep_batches(rank_probs, cost.step_ms, batches, max_drafted),
        tuple(judge_tree(tree.shape, rank_probs, cost.step_ms, size) for size in batches),
    )


def _parse_rank_probs(text: str) -> list[list[float]]:
    try:
        rows = [[float(entry) for entry in row.split(",")] for row in text.split("/")]
    except ValueError:
        raise typer.TyperException(
            f"--rank-probs must be probabilities by rank, as in 0.7,0.15 or by depth 0.7,0.15/0.6,0.1, got {text!r}"
        ) from None
    try:
        RankProbs(rows)
    except ValueError as error:
        raise typer.TyperException(f"--rank-probs {text}: {error}") from error
    return rows


def _check_range(flag: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise typer.TyperException(f"{flag} must be {least} to {most}, got {value}")


def _draw(result: Plan, path: Path) -> None:
    try:
        from treedecode.cli.plan_plot import draw
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise typer.TyperException(
            "--plot needs matplotlib, which is not installed: pip install 'treedecode[plot]'"
        ) from error
    try:
        draw(result, path)
    except ValueError as error:
        raise typer.TyperException(f"--plot: {error}") from error
    except OSError as error:
        raise typer.TyperException(f"--plot: cannot write {path}: {error.strerror}") from error
    print(f"plot: {path}", file=sys.stderr)
