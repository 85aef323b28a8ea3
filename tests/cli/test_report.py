"""What the closing line and the JSON say of tree sizes and of the guard."""

from __future__ import annotations

import json
from weakref import WeakKeyDictionary

import treedecode as td
from treedecode.cli.report import Comparison, closing_line, comparison_lines
from treedecode.engines import target
from treedecode.engines.stats import StatsBuilder
from treedecode.guard import Mode, ModeChange


def generation(sizes: list[int], *changes: ModeChange) -> td.Generation:
    stats = StatsBuilder(num_prompt_tokens=3, num_emitted=1)
    for size in sizes:
        stats.begin_step()
        stats.end_step(size, 0, 1)
    stats.guard_changes = changes
    return td.Generation([5] * (1 + len(sizes)), "text", "length", stats.build(1 + len(sizes)))


MEASURES = (
    ModeChange(0, Mode.NONE, "plain steps are measured", measures=True),
    ModeChange(5, Mode.TREE, "plain steps were measured"),
)


def test_the_chosen_sizes() -> None:
    line = closing_line(generation([4, 6, 0, 24, 6], *MEASURES))
    assert line.endswith("; 6 nodes a step (0 to 24), 1 of 5 steps without a tree")
    assert "\n" not in line
    assert closing_line(generation([8, 8])).endswith("; 8 nodes a step (8 to 8)")


def test_plain_decoding_has_no_sizes() -> None:
    assert closing_line(generation([0, 0])).endswith("forward passes")


def test_what_the_guard_did_is_said_and_what_it_measured_is_not() -> None:
    changes = (
        *MEASURES,
        ModeChange(40, Mode.NONE, "plain steps are measured", measures=True),
        ModeChange(43, Mode.NONE, "trees do not pay"),
        ModeChange(60, Mode.CHAIN, "chains look good"),
    )
    line = closing_line(generation([0] * 80, *changes))
    assert line.endswith(
        "; 0 nodes a step (0 to 0), 80 of 80 steps without a tree; "
        "guard: none from step 43: trees do not pay, chain from step 60: chains look good"
    )


def test_a_comparison_says_the_sizes_of_the_trees_alone() -> None:
    lines = comparison_lines(Comparison(generation([4, 4]), generation([0, 0])))
    assert "nodes a step" in lines[0]
    assert "nodes a step" not in lines[1]


def test_json_has_the_whole_distribution(run, tiny, monkeypatch) -> None:
    run("generate", "--model", tiny, "--max-new-tokens", 1, "the tree")  # loading measures a plain step
    monkeypatch.setattr(target, "_PLAIN", WeakKeyDictionary())  # as for the first request of a model
    found = json.loads(run("generate", "--model", tiny, "--max-new-tokens", 40, "--json", "the tree").out)
    stats = found["stats"]
    assert stats["steps_by_size"] == {
        str(size): stats["nodes_per_step"].count(size) for size in sorted(set(stats["nodes_per_step"]))
    }
    assert stats["num_steps_without_tree"] == stats["nodes_per_step"].count(0)
    assert {"step", "mode", "reason", "measures"} == set(stats["guard_changes"][0])
    fixed = run("generate", "--model", tiny, "--max-new-tokens", 40, "--budget", 8, "--json", "the tree")
    assert json.loads(fixed.out)["stats"]["guard_changes"] == []
