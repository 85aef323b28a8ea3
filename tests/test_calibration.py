"""Saved calibrations: round trip, what makes one stale, damaged files, and files that are whole or not there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

from treedecode import calibration as module
from treedecode.calibration import (
    Calibration,
    Conditions,
    check_writable,
    find,
    path_of,
    read,
    require,
    save,
    saved_for,
)
from treedecode.surface import CostSurface

SURFACE = CostSurface([1, 4], [64, 512], [[10.0, 13.0], [12.0, 16.5]])
LABELS = {"config_sha256": "config.json"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TREEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "a model"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "llama"}')
    (made / "model.safetensors").write_bytes(b"x" * 100)
    return made


def here(folder: Path, dtype: torch.dtype = torch.float32) -> Conditions:
    return Conditions.here(folder, torch.device("cpu"), dtype, "fused", "onednn-prepacked", "float32")


def of(conditions: Conditions) -> Calibration:
    return Calibration(conditions, SURFACE, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), 7, 0.0312)


def test_conditions_are_those_of_this_machine(folder: Path) -> None:
    now = here(folder)
    assert (now.model, now.weight_bytes, now.device, now.dtype) == ("a model", 100, "cpu", "float32")
    assert now.num_threads == torch.get_num_threads()
    assert 1 <= now.num_cores <= (os.cpu_count() or 1)
    assert now.torch == importlib.metadata.version("torch")
    assert now.gpu is None and now.cpu


def test_hub_models_go_by_their_name(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert here(snapshot).model == "Qwen--Qwen3-0.6B"


def test_saved_and_found(folder: Path, cache: Path) -> None:
    calibration = of(here(folder))
    assert find(here(folder)) == (None, "no calibration of this model in float32 on cpu")
    path = save(calibration)
    assert path == path_of(calibration.conditions)
    assert path.parent == cache / "calibrations"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.name.startswith("a-model-") and path.name.endswith("-cpu-float32.json")
    assert find(here(folder)) == (calibration, "")
    assert json.loads(path.read_text())["schema_version"] == 1


def test_a_file_of_ones_own(folder: Path, tmp_path: Path, cache: Path) -> None:
    path = save(of(here(folder)), tmp_path / "mine.json")
    assert read(path) == of(here(folder))
    assert not cache.exists()


def test_models_and_dtypes_have_files_of_their_own(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "a model"
    other.mkdir(parents=True)
    (other / "config.json").write_text('{"model_type": "qwen3"}')
    paths = {path_of(here(folder)), path_of(here(other)), path_of(here(folder, torch.bfloat16))}
    assert len(paths) == 3


def another(value: object) -> object:
    return value + 1 if isinstance(value, int) else f"{value} of old"


COMPARED = [field.name for field in fields(Conditions) if field.name != "model"]


@pytest.mark.parametrize("name", COMPARED)
def test_whatever_changes_the_cost_makes_it_stale(folder: Path, name: str) -> None:
    now = here(folder)
    was = another(getattr(now, name))
    old = replace(now, **{name: was})
    (difference,) = old.differences(now)
    assert difference.startswith(LABELS.get(name, name))
    if name not in LABELS:
        assert f"was {was}, is {getattr(now, name)}" in difference
    with pytest.raises(ValueError, match=r"f\.json is stale: .*; measure again: do this") as error:
        require(of(old), now, Path("f.json"), "do this")
    assert difference in str(error.value)
    path = save(of(old), save(of(now)))
    assert find(now) == (None, f"the saved calibration is stale ({difference})")
    save(of(now), path)
    assert find(now)[0] is not None


def test_a_renamed_folder_keeps_its_calibration(folder: Path) -> None:
    now = here(folder)
    assert require(of(replace(now, model="before")), now, Path("f"), "") == of(replace(now, model="before"))


def test_age_alone_is_not_stale(folder: Path) -> None:
    old = replace(of(here(folder)), measured_at=datetime(1999, 1, 1, tzinfo=UTC))
    save(old)
    assert find(here(folder)) == (old, "")


def test_calibrations_of_a_model_that_is_not_loaded(folder: Path) -> None:
    assert saved_for(folder) == []
    now = here(folder)
    fresh = of(replace(now, implementation="transformers"))  # cannot be told without loading
    stale = of(replace(now, dtype="bfloat16", torch="1.0", num_threads=99))
    save(fresh), save(stale)
    path_of(replace(now, dtype="float64")).write_text("{}")
    by_dtype = {
        path.stem.rpartition("-")[2]: (content, reason) for path, content, reason in saved_for(folder)
    }
    assert by_dtype["float32"] == (fresh, "")
    content, reason = by_dtype["bfloat16"]
    assert content == stale
    assert "torch was 1.0" in reason and "num_threads was 99" in reason
    assert by_dtype["float64"][0] is None and "schema_version" in by_dtype["float64"][1]
    (folder / "model.safetensors").write_bytes(b"x" * 101)
    assert "weight_bytes was 100, is 101" in saved_for(folder)[1][2]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: "", "no calibration"),
        (lambda text: text[:100], "no calibration"),
        (lambda text: "[]", "schema_version 1, got None"),
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 2'), "schema_version 1, got 2"),
        (lambda text: text.replace('"cpu"', '"cpu_"'), "no calibration: conditions.cpu: Field required"),
        (lambda text: text.replace('"num_repeats": 7', '"num_repeats": "7"'), "num_repeats"),
        (lambda text: text.replace("2026-01-02", "yesterday"), "measured_at"),
        (lambda text: text.replace("16.5", "9.0"), "must not fall as rows are added"),
        (lambda text: text.replace("16.5", '"x"'), "numbers of milliseconds"),
        (lambda text: text.replace("16.5", "NaN"), "no calibration"),
        (lambda text: text.replace('"prefix_lens"', '"contexts"'), "no calibration"),
    ],
)
def test_damaged_files_are_refused(folder: Path, damage, words: str) -> None:
    path = save(of(here(folder)))
    text = path.read_text()
    damaged = damage(text)
    assert damaged != text
    path.write_text(damaged)
    with pytest.raises(ValueError, match=words) as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    found, reason = find(here(folder))
    assert found is None and str(path) in reason


def test_text_that_is_no_text(folder: Path) -> None:
    path = save(of(here(folder)))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="no calibration"):
        read(path)


def test_an_interrupted_save_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(of(here(folder)))
    before = path.read_bytes()

    def interrupted(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(replace(of(here(folder)), num_repeats=1))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_saved_is_known_before(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "file.json")
    assert list(tmp_path.iterdir()) == [folder]
    check_writable()
    with pytest.raises(ValueError, match="got the folder"):
        check_writable(tmp_path)
    with pytest.raises(OSError, match="a calibration cannot be saved there: No such file") as error:
        check_writable(tmp_path / "nowhere" / "file.json")
    assert error.value.filename == str(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TREEDECODE_CACHE", str(tmp_path / "file"))
    for attempt in (check_writable, lambda: save(of(here(folder)))):
        with pytest.raises(OSError, match=f"TREEDECODE_CACHE is {tmp_path / 'file'}: '"):
            attempt()


def test_a_byte_order_mark_is_no_content(folder: Path) -> None:
    path = save(of(here(folder)))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path) == of(here(folder))


def test_it_loads_without_torch() -> None:
    code = "import sys, treedecode.calibration; print('torch' in sys.modules, 'transformers' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]
