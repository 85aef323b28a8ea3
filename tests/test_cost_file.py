"""Files that say what a step costs: three kinds, one reader, and what is none of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from treedecode.calibration import Calibration, Conditions, save
from treedecode.cost import CostCurve
from treedecode.cost_file import read_cost
from treedecode.surface import CostSurface

CURVE = CostCurve([1, 8], [10.0, 20.0])
SURFACE = CostSurface([1, 8], [0, 100], [[10.0, 20.0], [30.0, 40.0]])


@pytest.mark.parametrize("cost", [CURVE, SURFACE])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])  # editors on Windows put one in front
def test_a_cost_alone(tmp_path: Path, cost: CostCurve | CostSurface, mark: bytes) -> None:
    path = tmp_path / "cost.json"
    path.write_bytes(mark + cost.to_json().encode())
    assert (read_cost(path).cost, read_cost(str(path)).conditions) == (cost, None)


def test_a_calibration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    conditions = Conditions.here(tmp_path, "cpu", "float32", "fused", "blocked", "int8")
    saved = Calibration(conditions, SURFACE, datetime.now(UTC), 7, 0.02)
    found = read_cost(save(saved, tmp_path / "calibration.json"))
    assert (found.cost, found.conditions) == (SURFACE, conditions)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "expected JSON: "),
        ("[]", "a cost must be a JSON object"),
        ("{}", "a cost must be a JSON object"),
        ('{"rows": [1], "ms": [-1]}', "times must be positive"),
        ('{"rows": [1], "ms": ["x"]}', "times must be numbers"),
        ('{"schema_version": 99}', "expected a JSON object of schema_version 1, got 99"),
        ("[" * 100_000, "expected JSON: lists and objects are nested too deeply"),
        ('{"schema_version":' + "[" * 100_000, "expected JSON: lists and objects are nested too deeply"),
        (
            '{"rows": [1], "ms": [1' + "0" * 400 + "]}",
            "times must be positive and finite milliseconds, got inf",
        ),
        ("\xff", "'utf-8' codec can't decode"),
    ],
)
def test_what_is_no_cost_is_named(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "cost"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match="is no cost file") as caught:
        read_cost(path)
    assert str(caught.value).startswith(f"{path} is no cost file: {reason}")
    with pytest.raises(FileNotFoundError):
        read_cost(tmp_path / "missing")
