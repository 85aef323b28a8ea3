"""Reading recordings: traces, logs of other programs, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.replay.live import record
from treedecode.cost import CostCurve
from treedecode.replay.costs import step_cost
from treedecode.replay.data import select
from treedecode.replay.source import read_recordings
from treedecode.replay.strategies import Chain, Dynamic, LeafSiblings, Rerun
from treedecode.replay.walk import walk

LOGGED: dict[str, Any] = {
    "id": "first",
    "prompt_ids": [9, 8],
    "token_ids": [1, 2, 3, 4],
    "top_ids": [[1, 5], [2, 6], [3, 7], [4, 8]],
    "top_logprobs": [[-0.1, -3.0], [-0.2, -2.0], [-0.3, -1.5], [-0.4, -1.2]],
    "draft_ids": [[], [[2, 5], [7, 3]], [[5, 3]], [[4, 6]]],
    "draft_logprobs": [[], [[-0.1, -2.5], [-0.7, -0.8]], [[-1.0, -1.0]], [[-0.5, -1.5]]],
}


def write(path: Path, *requests: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return path


def test_a_log(tmp_path: Path) -> None:
    bare = {"prompt_ids": [9], "token_ids": [5, 6, 7]}
    first, second = read_recordings([write(tmp_path / "log", LOGGED, bare)])
    assert (first.name, second.name) == ("first", f"{tmp_path / 'log'}, line 2")
    assert (first.dense, second.dense) == (True, False)
    assert first.num_positions == 3
    assert first.rows[0, ()] == ([2, 6], [-0.2, -2.0])
    # of a bare log the choices are known
    assert second.rows[0, ()] == ((6,), (0.0,))
    assert walk(second, Rerun("merged"), 4).num_emitted


def test_drafts_of_a_log(tmp_path: Path) -> None:
    """Entry i was drafted for output token i: its step has token i - 1 as the root."""
    (recording,) = read_recordings([write(tmp_path / "log", LOGGED)])
    tree = recording.trees[0]
    assert tree.token_tuple == (1, 2, 7, 3, 5)  # best first: -0.1, -0.8, -0.9, -2.5
    assert tree.scores is not None and tree.scores.tolist() == pytest.approx([0.0, -0.1, -0.8, -0.9, -2.5])
    assert walk(recording, Chain(), 4).num_accepted == (1, 0)
    assert walk(recording, LeafSiblings(2), 4).num_accepted == (2,)
    assert walk(recording, Dynamic(), 2).num_accepted == (1, 0)
    assert walk(recording, Dynamic(), 3).num_accepted == (2,)


def test_drafts_without_confidence(tmp_path: Path) -> None:
    request = {key: value for key, value in LOGGED.items() if key != "draft_logprobs"}
    (recording,) = read_recordings([write(tmp_path / "log", request)])
    assert recording.trees[0].token_tuple == (1, 2, 5, 7, 3)
    assert recording.trees[0].scores is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": []}, "prompt_ids: List should have at least 1 item"),
        ({"prompt_ids": "text"}, "prompt_ids: Input should be a valid array"),
        ({"token_ids": [1, -2]}, r"token_ids\[1\]: Input should be greater than or equal to 0"),
        ({"token_ids": [1, 2**63]}, r"token_ids\[1\]: Input should be less than 9223372036854775808"),
        ({"top_ids": [[1], [2], [3], [10**25]]}, r"top_ids\[3\]\[0\]: Input should be less than"),
        ({"token_ids": [1, "2"]}, r"token_ids\[1\]: Input should be a valid integer"),
        ({"token_ids": [1, 2.0, 3, 4]}, r"token_ids\[1\]: Input should be a valid integer"),
        ({"tokens": [1]}, "tokens: Extra inputs are not permitted"),
        ({"top_ids": [[1]]}, "top_ids must have one entry per output token: expected 4, got 1"),
        ({"top_ids": [[1], [], [3], [4]]}, r"top_ids\[1\]: List should have at least 1 item"),
        (
            {"top_ids": [[1, 1]] * 4, "top_logprobs": None},
            r"top_ids\[1\] must have different tokens, got 1 twice",
        ),
        ({"top_ids": None}, "top_logprobs need top_ids"),
        (
            {"top_logprobs": [[-0.1, -3.0]]},
            "top_logprobs must have the shape of top_ids: expected 4 rows, got 1",
        ),
        ({"top_logprobs": [[-0.1, -0.2], [-0.1]] * 2}, "expected 2 entries in row 1, got 1"),
        ({"top_logprobs": [[-0.5, -0.1]] * 4}, r"top_logprobs\[1\] must be best first: -0.1 follows -0.5"),
        (
            {"top_logprobs": [[0.5, -0.1]] * 4},
            r"top_logprobs\[0\]\[0\]: Input should be less than or equal to 0",
        ),
        ({"draft_ids": [[]]}, "draft_ids must have one entry per output token: expected 4, got 1"),
        (
            {"draft_ids": [[], [[5, 5]], [], []]},
            r"draft_ids\[1\]\[0\] must have different tokens, got 5 twice",
        ),
        ({"draft_logprobs": [[]] * 4}, r"draft_logprobs\[1\] must have the shape of draft_ids\[1\]"),
        ({"draft_ids": None}, "draft_logprobs need draft_ids"),
    ],
)
def test_logs_that_break_a_rule(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    request = {key: value for key, value in (LOGGED | changes).items() if value is not None}
    path = write(tmp_path / "log", {"prompt_ids": [1], "token_ids": []}, request)
    with pytest.raises(ValueError, match=message) as caught:
        read_recordings([path])
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert "\n" not in str(caught.value)


def test_candidates_for_the_next_token_are_noticed(tmp_path: Path) -> None:
    tokens = list(range(20))
    shifted = {"prompt_ids": [1], "token_ids": tokens, "top_ids": [[token + 1] for token in tokens]}
    with pytest.raises(ValueError, match=r"its best one is token_ids\[i \+ 1\] at 19 of 20 positions"):
        read_recordings([write(tmp_path / "log", shifted)])
    right = shifted | {"top_ids": [[token] for token in tokens]}
    assert len(read_recordings([write(tmp_path / "log", right)])) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: expected a trace, or a log"),
        (b"\n\n", "is empty"),
        (b"not json\n", "line 1: Invalid JSON"),
        (b"[" * 100_000, "line 1: Invalid JSON: recursion limit exceeded"),
        (b"[1]\n", "line 1: Input should be an object"),
        (b"\xff\xfe", "must be UTF-8"),
        (b'{"type":"header","schema_version":7}\n', "schema version 7"),
        (b'{"type":"header","schema_version":1}\n', "the header's prompt_ids: Field required"),
        (
            b'{"type":"header","schema_version":1,"prompt_ids":[1],"settings":3}\n',
            "the header's settings: Input should be an object, got 3",
        ),
        (
            b'{"type":"header","schema_version":1,"prompt_ids":[1],"cost":{"rows":[1]}}\n',
            "the header's cost cannot be read: a cost must be a JSON object",
        ),
    ],
)
def test_files_that_are_neither(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_recordings([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefix_len": 3}, "prefix_len must be"),
        ({"emitted_ids": []}, "every step emits a token"),
        ({"emitted_ids": [-1]}, r"emitted_ids must be token ids, at least 0 and below 2\*\*63, got \[-1\]"),
        (
            {"top_ids": [[1, 2], [10**20, 3]]},
            r"top_ids must be token ids, .*, got \[100000000000000000000, 3\]",
        ),
        ({"parents": [-1, 5]}, "node 1 has parent 5"),
        ({"token_ids": [3, 4]}, "its root must be the last emitted token"),
        ({"path": [0, 1], "emitted_ids": [96]}, "path must run down the tree and spell the emitted tokens"),
        ({"top_ids": [[1], [2]]}, "must have the same number of entries"),
        ({"top_logprobs": [[None, None]] * 2}, "must start with a number for every node, got null"),
    ],
)
def test_traces_that_contradict_themselves(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = record(tmp_path / "trace", "merged", 4, count=20).path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    step = next(line for line in lines[2:] if len(line["parents"]) == 2 or line is lines[-1])
    two = {
        "parents": [-1, 0],
        "token_ids": [step["token_ids"][0], 5],
        "sources": None,
        "scores": None,
        "path": [0],
        "top_ids": [[1, 2], [3, 4]],
        "top_logprobs": [[-1.0, -2.0], [-1.0, -2.0]],
    }
    step |= two | changes
    write(path, *lines)
    with pytest.raises(ValueError, match=message) as caught:
        read_recordings([path])
    assert f"{path}, step {step['index']}: " in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": [1, "2"]}, r"prompt_ids\[1\]: Input should be a valid integer, got '2'"),
        ({"prompt_ids": [1, -2]}, r"prompt_ids\[1\]: Input should be greater than or equal to 0, got -2"),
        ({"max_positions": "x"}, "max_positions: Input should be a valid integer, got 'x'"),
        ({"max_positions": -5}, "max_positions: Input should be greater than 0, got -5"),
        ({"settings": {"dense": "no"}}, "settings.dense: Input should be a valid boolean, got 'no'"),
        (
            {"settings": {"budget": -1}},
            "settings.budget.*: Input should be greater than or equal to 0, got -1",
        ),
        ({"settings": {"drafter": 3}}, "settings.drafter: Input should be a valid string, got 3"),
        ({"settings": {"max_new_tokens": True}}, "settings.max_new_tokens: Input should be a valid integer"),
        ({"settings": {"stop_ids": "x"}}, "settings.stop_ids: Input should be a valid array, got 'x'"),
    ],
)
def test_headers_that_break_a_rule(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = record(tmp_path / "trace", "merged", 4, count=10).path
    header, *steps = [json.loads(line) for line in path.read_text().splitlines()]
    changes = {
        key: header[key] | value if isinstance(value, dict) else value for key, value in changes.items()
    }
    write(path, header | changes, *steps)
    with pytest.raises(ValueError, match=f"the header's {message}") as caught:
        read_recordings([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value) and "http" not in str(caught.value)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """Editors on Windows put one in front."""
    for path in (
        record(tmp_path / "trace", "merged", 4, count=10).path,
        write(tmp_path / "log", LOGGED),
    ):
        (without,) = read_recordings([path])
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        (found,) = read_recordings([path])
        assert (found.output_ids, found.trees) == (without.output_ids, without.trees)


def test_what_is_replayed(tmp_path: Path) -> None:
    dense = record(tmp_path / "dense", "merged", 16, count=40, dense=True)
    other = record(tmp_path / "other", "recycling", 16, count=40, dense=True)
    live = record(tmp_path / "live", "merged", 8, count=40)
    foreign = record(tmp_path / "foreign", "merged", 8, count=40, prompt=[5, 6, 7])
    chosen = select(read_recordings([live.path, dense.path, other.path, foreign.path]))
    assert [one.name for one in chosen.replayed] == [str(dense.path)]
    assert [one.name for one in chosen.live] == [str(live.path)]
    assert chosen.unused == (str(foreign.path),)
    # what the target said beside the other drafter's trees is known too, what it said beside the live ones is not
    assert set(chosen.replayed[0].rows) == set(dense.recording.rows) | set(other.recording.rows)
    assert set(other.recording.rows) - set(dense.recording.rows)
    assert len(select([live.recording, foreign.recording]).replayed) == 2
    with pytest.raises(ValueError, match="nothing to replay"):
        select([record(tmp_path / "short", "merged", 8, count=1).recording])


def test_costs(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace", "merged", 8, count=40).recording
    assert step_cost([trace]).forward == trace.cost
    assert "when the model was loaded" in step_cost([trace]).origin
    assert step_cost([trace]).draft_ms > 0.0
    assert step_cost([trace], draft_ms=0.25).draft_ms == 0.25
    curve = CostCurve([1, 8], [10.0, 20.0])
    assert step_cost([trace], curve, origin="curve").forward.at(0).ms(8) == 20.0


def test_cost_of_recorded_steps(tmp_path: Path) -> None:
    from dataclasses import replace

    trace = replace(record(tmp_path / "trace", "merged", 8, count=40).recording, cost=None)
    points = ((1, 10.0), (1, 12.0), (3, 15.0), (5, 19.0), (9, 30.0))
    found = step_cost([replace(trace, step_ms=points)])
    assert found.origin == "verify times of 5 recorded steps, by number of rows"
    assert found.forward.at(0).ms(1) == 11.0
    for too_few in (points[:3], points[2:], ()):
        with pytest.raises(ValueError, match="do not say what a step costs: expected --cost FILE"):
            step_cost([replace(trace, step_ms=too_few)])


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    """JSON strings may hold the line separators of Unicode as they are."""
    path = tmp_path / "log"
    path.write_text(
        json.dumps(LOGGED | {"id": "a\u2028b\x85c"}, ensure_ascii=False) + "\r\n", encoding="utf-8"
    )
    (recording,) = read_recordings([path])
    assert recording.name == "a\u2028b\x85c"
