"""A plan as a picture: speed-up and tree size against batch, as an image or a web page."""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from treedecode.cli.plan_report import (
    KIND_NAMES,
    acceptance_line,
    decision_line,
    to_text,
    tree_line,
)
from treedecode.sweep import Choice, Kind, Span

if TYPE_CHECKING:
    from treedecode.cli.plan import Plan

SUFFIXES = (".png", ".svg", ".pdf", ".html")

# Okabe and Ito's colours, which people with any colour vision tell apart
_TREE, _CHAIN, _GIVEN, _PLAIN, _DEPTH = "#0072B2", "#E69F00", "#009E73", "#555555", "#CC79A7"
_SHADES: dict[Kind, str] = {"tree": _TREE, "chain": "#B87700", "nothing": _PLAIN}
# a band of batches from a to b has room for its name where b / a is above this
_WIDE_ENOUGH = 1.7


def draw(plan: Plan, path: Path) -> None:
    """Write the picture to ``path``.

    Raises:
        ValueError: The suffix is none of ``SUFFIXES``.
        OSError: The file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"expected a file that ends in {', '.join(SUFFIXES)}, got {path.name}")
    figure = make_figure(plan)
    if suffix == ".html":
        path.write_text(_page(plan, figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=150)


def make_figure(plan: Plan) -> Figure:
    """Two panels over the batch: what each tree gains, and how large the best ones are."""
    figure = Figure(figsize=(9.0, 6.6), layout="constrained")
    gains, sizes = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1.0))
    figure.suptitle(decision_line(plan), x=0.01, ha="left", fontsize=12, fontweight="bold", wrap=True)
    batches = [choice.batch for choice in plan.swept.best]

    gains.plot(batches, _speedups(plan.swept.best), color=_TREE, lw=2.4, label="best tree", zorder=4)
    gains.plot(
        batches, _speedups(plan.swept.chains), color=_CHAIN, lw=2.0, ls="--", label="best chain", zorder=5
    )
    gains.plot(batches, _speedups(plan.given), color=_GIVEN, lw=2.0, label=_given_label(plan), zorder=3)
    gains.axhline(1.0, color=_PLAIN, lw=1.2, label="plain decoding", zorder=2)
    gains.set_ylim(0.0, 1.16 * max(_speedups((*plan.swept.best, *plan.given))))
    gains.set_ylabel("speed-up over plain decoding")
    gains.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    gains.set_title(
        f"candidates accepted: {acceptance_line(plan)}\n{plan.cost.description}",
        loc="left",
        fontsize=9,
        color=_PLAIN,
    )
    _mark_rows(gains, plan)
    gains.legend(loc="lower left", bbox_to_anchor=(0.0, 0.25), frameon=True, framealpha=0.9, fontsize=9)

    depths = [plan.swept.shape_of(choice).max_depth for choice in plan.swept.best]
    sizes.step(batches, _sizes(plan.swept.best), where="mid", color=_TREE, lw=2.4, label="drafted nodes")
    sizes.step(
        batches, depths, where="mid", color=_DEPTH, lw=1.6, ls="--", label="depth (a chain where they meet)"
    )
    sizes.legend(loc="lower left", frameon=True, framealpha=0.9, fontsize=9)
    sizes.set_yscale("symlog", base=2, linthresh=1)
    sizes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    sizes.yaxis.set_minor_locator(NullLocator())
    sizes.set_ylim(-0.15, 1.4 * max(1, *_sizes(plan.swept.best)))
    sizes.set_ylabel("size of the\nbest tree")
    sizes.set_xscale("log", base=2)
    sizes.xaxis.set_major_locator(LogLocator(base=2, numticks=20))
    sizes.xaxis.set_minor_locator(NullLocator())
    sizes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    sizes.set_xlabel("batch: requests in one forward pass")
    sizes.set_xlim(1, _right_end(plan))
    for axes in (gains, sizes):
        _shade(axes, plan)
        axes.grid(axis="y", color="#DDDDDD", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for span in plan.swept.spans:
        left, right = _edges(span)
        gains.annotate(
            KIND_NAMES[span.kind],
            ((left * right) ** 0.5, 0.985),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            rotation=0 if right / left > _WIDE_ENOUGH else 90,
            color=_SHADES[span.kind],
            fontweight="bold",
        )
    return figure


def _mark_rows(axes: Axes, plan: Plan) -> None:
    """Where rows stop being free: for the given tree, and for plain decoding."""
    roofline = plan.cost.roofline
    if roofline is None:
        return
    num_nodes = plan.tree.shape.num_nodes
    marks = [
        (
            roofline.ridge_tokens / num_nodes,
            f"break-even: {roofline.break_even_batch(num_nodes)}",
        ),
        (roofline.ridge_tokens, f"ridge: {roofline.ridge_tokens:.0f} rows"),
    ]
    for batch, words in marks if num_nodes > 1 else marks[1:]:
        if 1.0 <= batch <= _right_end(plan):
            axes.axvline(batch, color=_PLAIN, lw=1.0, ls=":", zorder=1)
            axes.annotate(
                words,
                (batch, 1.1),
                xytext=(-4, 0),
                textcoords="offset points",
                rotation=90,
                ha="right",
                fontsize=8,
                color=_PLAIN,
            )


def _shade(axes: Axes, plan: Plan) -> None:
    for span in plan.swept.spans:
        axes.axvspan(*_edges(span), color=_SHADES[span.kind], alpha=0.07, lw=0)


def _edges(span: Span) -> tuple[float, float]:
    """A batch reaches half way to its neighbours, as the steps of the sizes do."""
    return max(1.0, span.first_batch - 0.5), span.last_batch + 0.5


def _right_end(plan: Plan) -> float:
    """The last batch, or the ridge where it is not far beyond: the picture ends with what it explains."""
    last = max(2, plan.swept.best[-1].batch)
    ridge = plan.cost.roofline.ridge_tokens if plan.cost.roofline else 0.0
    return 1.05 * ridge if last < ridge <= 2 * last else float(last)


def _given_label(plan: Plan) -> str:
    return f"{plan.tree.name} ({plan.tree.shape.num_nodes} nodes)"


def _speedups(choices: tuple[Choice, ...]) -> list[float]:
    return [choice.speedup for choice in choices]


def _sizes(choices: tuple[Choice, ...]) -> list[int]:
    return [choice.num_drafted for choice in choices]


def _page(plan: Plan, figure: Figure) -> str:
    """One file that needs nothing else: the picture as SVG, and the tables."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    picture = drawn.getvalue()
    picture = picture[picture.index("<svg") :]
    title = html.escape(f"Plan: {tree_line(plan)}")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        "<style>body { font-family: sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }\n"
        "svg { width: 100%; height: auto } pre { overflow-x: auto }</style>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n{picture}\n<pre>{html.escape(to_text(plan))}</pre>\n</body>\n</html>\n"
    )
