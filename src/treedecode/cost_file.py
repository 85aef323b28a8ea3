"""The one reader of files that say what a step costs: for ``--cost`` of every command and of the vLLM plugin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treedecode import calibration
from treedecode.calibration import Conditions
from treedecode.json_text import parse_json
from treedecode.surface import Cost, cost_from_json


@dataclass(frozen=True)
class SavedCost:
    """A cost from a file.

    Attributes:
        cost: Milliseconds of a step.
        conditions: What it was measured on; None where the file does not say.
    """

    cost: Cost
    conditions: Conditions | None


def read_cost(path: str | Path) -> SavedCost:
    """Reads a saved calibration, or a cost as ``CostCurve.to_json`` or ``CostSurface.to_json`` write it.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds none of these; names the file.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        try:
            data = parse_json(text)
        except ValueError as error:
            raise ValueError(f"expected JSON: {error}") from None
        if isinstance(data, dict) and "schema_version" in data:
            saved = calibration.read(Path(path))
            return SavedCost(saved.surface, saved.conditions)
        return SavedCost(cost_from_json(text), None)
    except (ValueError, TypeError) as error:
        reason = str(error).removeprefix(f"{path} is no calibration: ")
        raise ValueError(f"{path} is no cost file: {reason}") from None
