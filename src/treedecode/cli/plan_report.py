"""A plan as tables for people and as plain data for machines."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from treedecode import __version__
from treedecode.sweep import Choice, Kind

if TYPE_CHECKING:
    from treedecode.cli.plan import Plan

KIND_NAMES: dict[Kind, str] = {"tree": "wide tree", "chain": "chain", "nothing": "nothing"}


def to_text(plan: Plan) -> str:
    """Everything in words and tables."""
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False, markup=False, soft_wrap=True)
    console.print(f"tree        {tree_line(plan)}")
    console.print(f"acceptance  {acceptance_line(plan)}")
    console.print(f"cost        {plan.cost.description}")
    console.print(f"source      {plan.cost.source}")
    console.print(f"\nThis tree at batch {plan.judged.batch}:")
    console.print(_facts(plan))
    console.print(
        f"\nBest by batch, of up to {plan.max_drafted} drafted nodes per request; beside it the speed-ups of the best "
        "chain and of this tree:"
    )
    console.print(_by_batch(plan))
    console.print(f"\n{decision_line(plan)}")
    if 0 < plan.max_drafted == max(choice.num_drafted for choice in plan.swept.best):
        console.print(
            f"Trees of {plan.max_drafted} nodes are the largest looked at: --max-drafted allows more."
        )
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def tree_line(plan: Plan) -> str:
    """The given tree in a few words."""
    shape = plan.tree.shape
    kind = KIND_NAMES[plan.judged.kind]
    return f"{plan.tree.name}: {shape.num_nodes} nodes with the root, depth {shape.max_depth} ({kind})"


def acceptance_line(plan: Plan) -> str:
    """The acceptance numbers in words."""
    rows = [", ".join(f"{prob:g}" for prob in row) for row in plan.rank_probs]
    return f"{rows[0]} by rank" if len(rows) == 1 else f"{' / '.join(rows)} by rank / depth"


def decision_line(plan: Plan) -> str:
    """Where the best kind changes, in one sentence."""
    words = []
    for span in plan.swept.spans:
        single = span.first_batch == span.last_batch
        where = f"{span.first_batch}" if single else f"{span.first_batch}-{span.last_batch}"
        words.append(f"{KIND_NAMES[span.kind]} at batch {where}")
    return f"Best: {', '.join(words)}."


def shown_batches(plan: Plan) -> list[int]:
    """Powers of two, the last batch, and the batches on both sides of every reversal."""
    last = plan.swept.best[-1].batch
    wanted = {1 << power for power in range(last.bit_length())} | {last}
    spans = plan.swept.spans
    wanted |= {span.last_batch for span in spans[:-1]} | {span.first_batch for span in spans[1:]}
    return sorted(wanted)


def to_json(plan: Plan) -> dict[str, Any]:
    """All of it as plain data, at every batch. Best trees are the first nodes of ``planned``."""
    roofline = plan.cost.roofline
    judged = plan.judged
    num_nodes = plan.tree.shape.num_nodes
    planned = plan.swept.planned
    return {
        "treedecode_version": __version__,
        "cost": plan.cost.details,
        "rank_probs": plan.rank_probs,
        "max_drafted": plan.max_drafted,
        "ridge_tokens": roofline and roofline.ridge_tokens,
        "tree": {
            "name": plan.tree.name,
            "parents": list(plan.tree.shape.parent_tuple),
            "num_nodes": num_nodes,
            "max_depth": plan.tree.shape.max_depth,
            **_choice_json(plan, judged),
            "plain_ms": plan.cost.step_ms(judged.batch, judged.batch),
            "break_even_batch": roofline and roofline.break_even_batch(num_nodes),
            "last_paying_batch": plan.last_paying_batch,
        },
        "planned": {"parents": list(planned.parent_tuple), "ranks": list(planned.rank_tuple)},
        "batches": [
            {
                "batch": best.batch,
                "best": _choice_json(plan, best) | {"max_depth": plan.swept.shape_of(best).max_depth},
                "chain": _choice_json(plan, chain),
                "tree": _choice_json(plan, given),
            }
            for best, chain, given in zip(plan.swept.best, plan.swept.chains, plan.given, strict=True)
        ],
        "decision": [asdict(span) for span in plan.swept.spans],
    }


def _choice_json(plan: Plan, choice: Choice) -> dict[str, Any]:
    return asdict(choice) | {
        "verified_tokens": choice.verified_tokens,
        "past_ridge": _past_ridge(plan, choice),
    }


def _past_ridge(plan: Plan, choice: Choice) -> float | None:
    roofline = plan.cost.roofline
    return roofline and roofline.past_ridge(choice.batch, 1 + choice.num_drafted)


def _facts(plan: Plan) -> Table:
    judged, roofline = plan.judged, plan.cost.roofline
    num_nodes = plan.tree.shape.num_nodes
    facts = [
        ("expected tokens", f"{judged.expected_tokens:.2f}", "E[L], per request and forward pass"),
        ("verified tokens", f"{judged.verified_tokens}", f"{judged.batch} x {num_nodes} nodes"),
    ]
    if roofline:
        past = roofline.past_ridge(judged.batch, num_nodes)
        side = "past the ridge" if past > 1.0 else "of the ridge: these rows are free"
        break_even = roofline.break_even_batch(num_nodes)
        free = f"batch {break_even}" if break_even else "none"
        facts += [
            ("ridge", f"{roofline.ridge_tokens:.0f}", "tokens; rows are free up to it"),
            ("", f"{past:.2g}x" if past >= 0.1 else f"{past:.1g}x", side),
            ("break-even", free, "the largest batch with all rows of this tree free"),
        ]
    plain_ms = plan.cost.step_ms(judged.batch, judged.batch)
    last = plan.last_paying_batch
    until = f"batch {last}" if last else "none"
    at_least = " or beyond" if last == plan.given[-1].batch else ""
    facts += [
        ("step", f"{judged.step_ms:.3g} ms", f"plain decoding {plain_ms:.3g} ms"),
        ("speed-up", f"{judged.speedup:.2f}x", "over plain decoding at this batch"),
        ("pays up to", until, f"the last batch with a speed-up above 1{at_least}"),
    ]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for fact in facts:
        table.add_row(*fact)
    return table


def _by_batch(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("best", no_wrap=True)
    names = ["drafted", "depth", "E[L]", "verified", "x ridge", "speed-up", "chain", "this tree"]
    for name in names if plan.cost.roofline else [name for name in names if name != "x ridge"]:
        table.add_column(name, justify="right", no_wrap=True)
    for batch in shown_batches(plan):
        best, chain, given = plan.swept.best[batch - 1], plan.swept.chains[batch - 1], plan.given[batch - 1]
        past = _past_ridge(plan, best)
        table.add_row(
            str(batch),
            KIND_NAMES[best.kind],
            str(best.num_drafted),
            str(plan.swept.shape_of(best).max_depth),
            f"{best.expected_tokens:.2f}",
            str(best.verified_tokens),
            *([] if past is None else [f"{past:.2f}"]),
            f"{best.speedup:.2f}x",
            f"{chain.speedup:.2f}x",
            f"{given.speedup:.2f}x",
        )
    return table
