"""What a loaded model says of the cost of its steps, and where it has that from."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import treedecode as td
from tests.engines.tokenizers import save_checkpoint
from treedecode import calibration as saved
from treedecode.calibration import Calibration
from treedecode.cost import CostCurve
from treedecode.engines import load as module
from treedecode.engines.load import load, open_model
from treedecode.engines.measure import calibrate, conditions_of
from treedecode.surface import CostSurface

SURFACE = CostSurface([1, 4], [64, 512], [[10.0, 10.5], [12.0, 900.0]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    save_checkpoint(
        path,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=700,
        initializer_range=0.02,
        pad_token_id=None,
    )
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREEDECODE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def conditions(folder: Path) -> saved.Conditions:
    return conditions_of(folder, open_model(folder).target)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The targets that were measured at load."""
    targets: list[Any] = []

    def measure_cost(target: Any) -> CostCurve:
        targets.append(target)
        return CostCurve([1], [5.0])

    monkeypatch.setattr(module, "measure_cost", measure_cost)
    return targets


def of(conditions: saved.Conditions) -> Calibration:
    return Calibration(conditions, SURFACE, datetime(2026, 1, 2, 12, tzinfo=UTC), 5, 0.01)


def test_without_a_calibration_it_is_measured(folder: Path, measured: list[Any]) -> None:
    model = load(folder)
    assert measured == [model.target]
    assert model.cost == CostCurve([1], [5.0])
    assert model.cost_source == (
        "measured at load, at one short context: no calibration of this model in float32 on cpu; "
        f"treedecode calibrate {folder} measures all"
    )


def test_what_was_saved_is_used(folder: Path, conditions: saved.Conditions, measured: list[Any]) -> None:
    saved.save(of(conditions))
    model = load(folder)
    assert (model.cost, measured) == (SURFACE, [])
    assert model.cost_source.startswith("calibration of 2026-01-")
    assert load(folder, dtype="float64").cost != SURFACE
    assert "busy" not in model.cost_source
    saved.save(replace(of(conditions), spread=0.3))
    assert load(folder).cost_source.endswith(", on a busy machine: repeats vary by 30%")


def test_none_always_measures(folder: Path, conditions: saved.Conditions, measured: list[Any]) -> None:
    saved.save(of(conditions))
    model = load(folder, calibration=None)
    assert measured == [model.target]
    assert model.cost_source.endswith("as calibration=None asks")


def test_what_is_stale_is_not_used(folder: Path, conditions: saved.Conditions, measured: list[Any]) -> None:
    saved.save(of(replace(conditions, torch="1.0")))
    model = load(folder, device="cpu")
    assert measured == [model.target]
    assert "the saved calibration is stale (torch was 1.0, is " in model.cost_source
    assert f"treedecode calibrate {folder} --device cpu measures all" in model.cost_source


def test_a_file_of_ones_own(
    folder: Path, conditions: saved.Conditions, measured: list[Any], tmp_path: Path
) -> None:
    file = saved.save(of(conditions), tmp_path / "my file.json")
    for calibration in (file, str(file)):
        model = load(folder, calibration=calibration)
        assert (model.cost, measured) == (SURFACE, [])
        assert str(file) in model.cost_source


def test_a_stale_file_is_refused(folder: Path, conditions: saved.Conditions, tmp_path: Path) -> None:
    file = saved.save(of(replace(conditions, num_threads=99, cpu="abacus")), tmp_path / "my file.json")
    with pytest.raises(ValueError, match=r"is stale: cpu was abacus.*; num_threads was 99") as error:
        load(folder, dtype=torch.float32, calibration=file)
    command = f"treedecode calibrate {folder} --dtype float32 --output '{file}'"
    assert str(error.value).endswith(f"; measure again: {command}")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_text("{"), "is no calibration"),
    ],
)
def test_files_that_are_no_calibration(
    folder: Path, tmp_path: Path, make: Callable[[Path], Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the model is loaded."""
    file = tmp_path / "file"
    make(file)
    monkeypatch.setattr(module, "_open", None)
    with pytest.raises(ValueError, match=words) as error:
        load(folder, calibration=file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_loaded_model_is_not_copied(
    folder: Path, measured: list[Any], copied: Callable[[Any], Any]
) -> None:
    model = load(folder)
    with pytest.raises(TypeError, match=r"neither copied nor pickled: .* treedecode\.load"):
        copied(model)
    assert copy.copy(model).target is model.target


def test_the_head_is_named_by_its_dtype(folder: Path, measured: list[Any]) -> None:
    assert load(folder, dtype="float64").head == "float64"


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match='calibration must be "auto", a file or None, got 5'):
        load("default", calibration=5)  # type: ignore[arg-type]


def test_measured_and_found_again(folder: Path) -> None:
    opened = open_model(folder)
    calibration = calibrate(opened.path, opened.target, 0.05)
    assert calibration.surface.prefix_lens[0] == 64
    saved.save(calibration)
    model = load(folder)
    assert model.cost == calibration.surface
    assert td.generate(model, "the end", max_new_tokens=8)[0].stats.num_emitted == 8


def test_the_size_of_a_tree_follows_the_context(
    folder: Path, conditions: saved.Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are nearly free at 64 tokens and dear at 512; without the guard, which goes by the clock."""
    monkeypatch.setattr("treedecode.engines.loop.Guard", lambda _reference: None)
    saved.save(of(conditions))
    model = load(folder)
    prompt = [5, 6, 7, 8] * 8
    drafted = {
        len(ids): td.generate(model, [ids], max_new_tokens=40, eos_token_id=None)[0].stats.num_drafted
        for ids in (prompt, prompt * 16)
    }
    assert drafted[32] > 0
    assert drafted[512] == 0
