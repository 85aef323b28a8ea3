"""Traces: written line by line, read back checked."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from treedecode.trace import SCHEMA_VERSION, StepRecord, TraceWriter, read_trace


def record(**changes):
    base = {
        "index": 0,
        "emitted_ids": [7, 9],
        "prefix_len": 5,
        "parents": [-1, 0, 0],
        "token_ids": [3, 7, 8],
        "sources": ["root", "suffix", "recycling"],
        "scores": [0.0, -0.25, -math.inf],
        "path": [0, 1],
        "top_ids": [[7, 8], [9, 1], [2, 3]],
        "top_logprobs": [[-0.1, -3.0], [-0.123456789, -9.0], [-1.0, -math.inf]],
        "draft_ms": 0.1,
        "verify_ms": 9.0,
        "commit_ms": 0.05,
    }
    return StepRecord(**{**base, **changes})


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as trace:
        trace.header({"model": "m", "prompt_ids": [1, 2]})
        trace.step(record())
        trace.step(record(index=1, sources=None, scores=None))
    return path


def test_round_trip(path):
    trace = read_trace(path)
    assert trace.header == {"schema_version": SCHEMA_VERSION, "model": "m", "prompt_ids": [1, 2]}
    expected = record(scores=[0.0, -0.25, None], top_logprobs=[[-0.1, -3.0], [-0.123457, -9.0], [-1.0, None]])
    assert trace.steps[0] == expected
    assert trace.steps[1] == dataclasses.replace(expected, index=1, sources=None, scores=None)


def test_every_line_is_strict_json(path):
    def refuse(constant):
        raise AssertionError(constant)

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["header", "step", "step"]


def test_lines_are_on_disk_before_the_writer_closes(tmp_path):
    writer = TraceWriter(tmp_path / "t")
    writer.header({})
    writer.step(record())
    assert len(read_trace(tmp_path / "t").steps) == 1
    writer.close()
    writer.close()


def test_a_line_that_was_cut_off_is_left_out(path):
    path.write_text(path.read_text()[:-20])
    assert len(read_trace(path).steps) == 1


def test_unknown_fields_are_ignored(path):
    header, *steps = path.read_text().splitlines()
    path.write_text("\n".join([header, *(step[:-1] + ',"new":1}' for step in steps), ""]))
    assert len(read_trace(path).steps) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is no trace: the first line must be a header"),
        ('{"type":"step"}\n', "is no trace"),
        ('{"type":"header","schema_version":2}\n', "has trace schema version 2, expected 1"),
        ('{"type":"header","schema_version":1}\nx\n', "line 2 is not JSON"),
        (
            '{"type":"header","schema_version":1}\n' + "[" * 100_000 + "\n",
            "line 2 is not JSON: .* nested too deeply",
        ),
        ('{"type":"header","schema_version":1}\n[]\n', "line 2 must be a JSON object, got list"),
        ('{"type":"header","schema_version":1}\n{}\n', 'line 2: expected "type": "step"'),
        ('{"type":"header","schema_version":1}\n{"type":"step"}\n', "line 2 is no step of schema version 1"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, message):
    path = tmp_path / "t"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_ms": -1.0}, "Value error, step 0: draft_ms must be at least 0 milliseconds, got -1.0"),
        ({"prefix_len": "5"}, "prefix_len: Input should be a valid integer, got '5'"),
        ({"parents": [-1, "0", 0]}, "parents[1]: Input should be a valid integer, got '0'"),
    ],
)
def test_a_damaged_step_is_one_line(path, changes, message):
    header, step, *rest = path.read_text().splitlines()
    step = json.dumps(json.loads(step) | changes)
    path.write_text("\n".join([header, step, *rest, ""]))
    with pytest.raises(ValueError, match="line 2 is no step") as caught:
        read_trace(path)
    assert str(caught.value) == f"{path}, line 2 is no step of schema version 1: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [1]}, "token_ids must have 3 entries, got 1"),
        ({"sources": ["root"]}, "sources must have 3 entries"),
        ({"top_logprobs": []}, "top_logprobs must have 3 entries"),
        ({"path": [1]}, r"path must start at 0 and hold nodes from 0 to 2, got \[1\]"),
        ({"path": [0, 3]}, "path must start at 0"),
        ({"path": [0, -1]}, "path must start at 0"),
        ({"path": []}, "path must start at 0"),
        ({"draft_ms": -1.0}, "draft_ms must be at least 0 milliseconds, got -1.0"),
        ({"verify_ms": math.nan}, "verify_ms must be at least 0 milliseconds, got nan"),
        ({"commit_ms": math.inf}, "commit_ms must be at least 0 milliseconds, got inf"),
    ],
)
def test_records_that_disagree_with_themselves_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        record(**changes)


def test_the_file_is_replaced_by_the_header(tmp_path):
    path = tmp_path / "t"
    path.write_text("old")
    with TraceWriter(path) as trace:
        with pytest.raises(TypeError):
            trace.header({"model": object()})
        assert path.read_text() == "old"
        trace.header({"budget": np.int64(3), "ratio": np.float32(0.5)})
    assert read_trace(path).header == {"schema_version": SCHEMA_VERSION, "budget": 3, "ratio": 0.5}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named():
    with (
        TraceWriter("/dev/full") as trace,
        pytest.raises(OSError, match="No space left on device: '/dev/full'"),
    ):
        trace.header({})


def test_one_header_and_first(tmp_path):
    with TraceWriter(tmp_path / "t") as trace:
        with pytest.raises(ValueError, match="call header before step"):
            trace.step(record())
        trace.header({})
        with pytest.raises(ValueError, match="holds one generation"):
            trace.header({})
