"""What a replay found, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from treedecode.replay.ranks import Rescue
from treedecode.replay.results import Budget, Replay, Result, Verdict

_WIDTHS = (2, 3, 4, 8)
# Below this share of known rows a drafter that is run again is said to miss some.
_FEW_ROWS = 0.9


def print_replay(found: Replay) -> None:
    """Prints tables, notes and the verdict to standard output."""
    console = Console(highlight=False, markup=False)
    kind = ("dense recording" if found.dense else "recording") + ("" if found.num_recordings == 1 else "s")
    drafter = f" of drafter {found.drafter}" if found.drafter else ""
    lines = [
        f"{found.num_recordings} {kind}{drafter}, n = {found.num_positions} output tokens after the first",
        f"cost of a step: {found.cost}; drafting {found.draft_ms:.1f} ms",
    ]
    _print_lines(console, lines)
    _print_grid(
        console, found, "Tokens per step, E[L]", lambda result: f"{result.mean_emitted:.2f}", _E_L_COLUMNS
    )
    _print_lines(console, _explained(found))
    _print_grid(console, found, "Tokens per second", lambda result: f"{result.tokens_per_s:.1f}", {})
    if found.rescue is not None:
        _print_rescue(console, found.rescue)
    _print_lines(console, found.notes)
    console.print(_verdict(found.verdict), soft_wrap=True)


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    """Lines, and an empty one; wide ones are left to the terminal."""
    for line in lines:
        console.print(line, soft_wrap=True)
    if lines:
        console.print()


def _print_grid(
    console: Console,
    found: Replay,
    title: str,
    cell: Callable[[Result], str],
    columns: dict[str, Callable[[Sequence[Result]], str]],
) -> None:
    """One row per strategy, one column per budget; after them ``columns`` made of all results of a strategy."""
    budgets: list[Budget] = list(
        dict.fromkeys(result.budget for result in found.results if result.kind != "plain")
    )
    budgets.sort(key=lambda budget: budget if isinstance(budget, int) else 1 << 30)
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    table.add_column("drafted nodes", no_wrap=True)
    for budget in [*budgets, *columns]:
        table.add_column(str(budget), justify="right", no_wrap=True)
    for name in dict.fromkeys(result.strategy for result in found.results):
        row = {result.budget: result for result in found.results if result.strategy == name}
        plain = row.get(0)
        cells = [cell(row[budget]) if budget in row else cell(plain) if plain else "" for budget in budgets]
        table.add_row(name, *cells, *(make(list(row.values())) for make in columns.values()))
    console.print(table)
    console.print()


def _reach(results: Sequence[Result]) -> str:
    """The worst calibration error of a strategy."""
    errors = [result.reach_error for result in results if result.reach_error is not None]
    return f"{max(errors):.2f}" if errors else ""


def _against_live(results: Sequence[Result]) -> str:
    """Exact, or what is known of the error of an estimate."""
    estimates = [result for result in results if result.basis == "estimate"]
    if all(result.budget == "auto" for result in estimates):
        return "exact"
    errors = [result.error for result in estimates if result.error is not None]
    if not errors:
        return "unknown"
    low, high = (f"{edge(error.difference for error in errors):+.2f}" for edge in (min, max))
    return low if low == high else f"{low} to {high}"


_E_L_COLUMNS = {"reach error": _reach, "off live by": _against_live}


def _explained(found: Replay) -> list[str]:
    """What the last columns say."""
    setups = dict.fromkeys(result.error.setup for result in found.results if result.error is not None)
    measured = f"from {' and '.join(setups)}" if setups else "not known here"
    lines = [
        '"off live by" is E[L] of replay less that of live runs: 0 by construction where it says "exact", '
        f"for estimates {measured}.",
    ]
    if any(result.budget == "auto" for result in found.results):
        lines.append('"auto" is an estimate in every row: live, the cost of the machine chooses.')
    known = {}
    for result in found.results:
        if result.rows_known is not None and result.rows_known < _FEW_ROWS:
            known[result.strategy] = min(result.rows_known, known.get(result.strategy, 1.0))
    if known:
        shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in known.items())
        lines.append(
            f"Drafters run again saw only part of the rows that they would see live: {shares} or more."
        )
    return lines


def _print_rescue(console: Console, rescue: Rescue) -> None:
    widths = [width for width in _WIDTHS if width <= len(rescue.in_drafter_top)]
    title = f"First rejected spine token, n = {rescue.num_rejected} in {rescue.num_steps} steps of the chain"
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for width in widths:
        table.add_column(f"top {width}", justify="right", no_wrap=True)
    rows = (
        ("rescued: the right token was in the drafter's", rescue.in_drafter_top),
        ("near miss: the rejected token was in the target's", rescue.in_target_top),
    )
    for name, shares in rows:
        table.add_row(name, *(f"{100 * shares[width - 1]:.0f}%" for width in widths))
    console.print(table)
    console.print()


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return "NO-GO: no tree could be replayed from these recordings."
    tree, chain, other = verdict.tree, verdict.chain, verdict.fastest_other
    gain = f"{verdict.gain:+.2f}"
    if verdict.interval is not None:
        gain += f" [{verdict.interval[0]:+.2f}, {verdict.interval[1]:+.2f}]"
    against = _named(chain) if chain is not None else "plain decoding"
    enough = verdict.margin >= 0
    lines = [
        f"{'GO' if verdict.go else 'NO-GO'}: {_named(tree)}, E[L] {tree.mean_emitted:.2f}, "
        f"{tree.tokens_per_s:.1f} tokens/s ({tree.basis}).",
        f"  {gain} tokens per step over {against}: {'reaches' if enough else 'misses'} the gate of "
        f"{verdict.gate:.2f} by {abs(verdict.margin):.2f}.",
        f"  {verdict.speed_ratio:.2f} times the speed of {_named(other)} ({other.tokens_per_s:.1f} tokens/s), the "
        "fastest without a tree.",
    ]
    return "\n".join(lines)


def _named(result: Result) -> str:
    if result.kind == "plain":
        return "plain decoding"
    size = "as many nodes as pay" if result.budget == "auto" else f"{result.budget} nodes"
    return f"{result.strategy} with {size}"
