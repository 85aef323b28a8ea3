"""Saved measurements of what a step costs: one JSON file per model, device and dtype, used while nothing changed.

A calibration does not grow old by itself: the same code on the same machine takes the same time next year. What changes
the time is compared instead, field by field; the date is shown, so that a user may think otherwise.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from treedecode import __version__
from treedecode.json_text import parse_json
from treedecode.models.default import CACHE_VARIABLE, cache_dir
from treedecode.surface import CostSurface
from treedecode.trace import first_fault

SCHEMA_VERSION = 1
# More than this between the quartiles, and the machine had other work.
_BUSY_SPREAD = 0.1
_WEIGHTS = ("*.safetensors", "*.bin")
# Shown, not compared: a folder that was renamed or fine-tuned runs the same passes.
_NOT_COMPARED = {"model"}


@dataclass(frozen=True)
class Conditions:
    """All that decides what a step costs.

    Attributes:
        model: Name of the model's folder, or owner and name on the Hub.
        config_sha256: Of the model's config.json.
        weight_bytes: Size of its weight files.
        device: "cpu", "cuda" or "mps".
        dtype: Of weights and cache, such as "float32".
        implementation, linear, head: Code that runs it, as ``LoadedModel`` names it.
        cpu: Name of the processor.
        num_cores: Cores that the process may use.
        num_threads: Threads of PyTorch.
        gpu: Name of the GPU, None for a model on the CPU.
        treedecode, torch, transformers: Versions.
    """

    model: str
    config_sha256: str
    weight_bytes: int
    device: str
    dtype: str
    implementation: str
    linear: str
    head: str
    cpu: str
    num_cores: int
    num_threads: int
    gpu: str | None
    treedecode: str
    torch: str
    transformers: str

    @classmethod
    def here(
        cls, folder: Path, device: Any, dtype: Any, implementation: str, linear: str, head: str
    ) -> Conditions:
        """Those of a model loaded from ``folder``, now; ``device`` and ``dtype`` as PyTorch has them."""
        kind = str(dtype).removeprefix("torch.")
        run_by = {"dtype": kind, "implementation": implementation, "linear": linear, "head": head}
        known: dict[str, Any] = _identity(folder) | _machine(device) | _versions() | run_by
        return cls(**known)

    def differences(self, now: Conditions) -> list[str]:
        """What makes measurements under these conditions stale, in words; empty when nothing does."""
        found = []
        for name in (field.name for field in fields(self) if field.name not in _NOT_COMPARED):
            before, after = getattr(self, name), getattr(now, name)
            if before != after and name == "config_sha256":
                found.append("config.json is another")
            elif before != after:
                found.append(f"{name} was {before}, is {after}")
        return found


@dataclass(frozen=True)
class Calibration:
    """A measured cost surface and where it holds.

    Attributes:
        conditions: Of the measurement.
        surface: Milliseconds by rows and context.
        measured_at: When it ended, with time zone.
        num_repeats: Timed passes per row count and context, at least.
        spread: Half the distance between the quartiles of the repeats, as a share of their median.
    """

    conditions: Conditions
    surface: CostSurface
    measured_at: datetime
    num_repeats: int
    spread: float

    @property
    def busy(self) -> bool:
        """Whether the machine seems to have had other work: the times are to be taken again."""
        return self.spread > _BUSY_SPREAD

    def to_json(self) -> str:
        """One JSON object; ``read`` reads it."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "measured_at": self.measured_at.isoformat(timespec="seconds"),
            "conditions": asdict(self.conditions),
            "num_repeats": self.num_repeats,
            "spread": round(self.spread, 4),
            "surface": json.loads(self.surface.to_json()),
        }
        return json.dumps(content, ensure_ascii=False)


@dataclass(frozen=True)
class _Record:
    """The file, for its types to be checked."""

    schema_version: int
    measured_at: datetime
    conditions: Conditions
    num_repeats: int
    spread: float
    surface: dict[str, Any]


def read(path: Path) -> Calibration:
    """Reads a file that ``save`` wrote.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no calibration, or of another schema version.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        text = path.read_text(encoding="utf-8-sig")
        content = parse_json(text)
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"expected a JSON object of schema_version {SCHEMA_VERSION}, got {version!r}")
        record = TypeAdapter(_Record).validate_json(text, strict=True)
        surface = CostSurface.from_json(json.dumps(record.surface))
    except ValidationError as error:
        raise ValueError(f"{path} is no calibration: {first_fault(error)}") from error
    except (ValueError, TypeError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"{path} is no calibration: {error}") from error
    return Calibration(record.conditions, surface, record.measured_at, record.num_repeats, record.spread)


def path_of(conditions: Conditions) -> Path:
    """The file in the user's cache for this model, device and dtype."""
    return _folder() / f"{_stem(conditions)}-{conditions.device}-{conditions.dtype}.json"


def save(calibration: Calibration, path: Path | None = None) -> Path:
    """Writes a calibration, whole or not at all, and returns where: ``path``, or the user's cache for None.

    Raises:
        OSError: It cannot be written.
    """
    if path is None:
        path = path_of(calibration.conditions)
        _make_folder()
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(calibration.to_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return path


def check_writable(path: Path | None = None) -> None:
    """Fails where ``save`` would, before a minute is spent on what cannot be kept.

    Raises:
        OSError: The folder of ``path``, or the user's cache for None, is missing or cannot be written.
        ValueError: ``path`` is a folder.
    """
    if path is None:
        _make_folder()
    elif path.is_dir():
        raise ValueError(f"a calibration is saved to a file, got the folder {path}")
    folder = _folder() if path is None else path.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:  # names a file that nobody asked for
        raise OSError(
            error.errno, f"a calibration cannot be saved there: {error.strerror}", str(folder)
        ) from error


def find(conditions: Conditions) -> tuple[Calibration | None, str]:
    """The saved calibration that holds under ``conditions``; or None and the reason why there is none."""
    path = path_of(conditions)
    if not path.exists():
        return None, f"no calibration of this model in {conditions.dtype} on {conditions.device}"
    try:
        found = read(path)
    except (ValueError, OSError) as error:
        return None, str(error)
    if different := found.conditions.differences(conditions):
        return None, f"the saved calibration is stale ({'; '.join(different)})"
    return found, ""


def require(calibration: Calibration, conditions: Conditions, path: Path, command: str) -> Calibration:
    """``calibration``, which was read from ``path``.

    Raises:
        ValueError: It does not hold under ``conditions``; names what differs, and the ``command`` that measures again.
    """
    if different := calibration.conditions.differences(conditions):
        raise ValueError(f"the calibration {path} is stale: {'; '.join(different)}; measure again: {command}")
    return calibration


def saved_for(folder: Path) -> list[tuple[Path, Calibration | None, str]]:
    """The saved calibrations of the model in ``folder``, without loading it: file, content, and why it is refused.

    An empty reason means that it holds as far as machine, versions and model tell; which code runs the model is only
    known once it is loaded.
    """
    identity = _identity(folder)
    found = []
    for path in sorted(_folder().glob(f"{_stem_of(**identity)}-*.json")):
        try:
            calibration = read(path)
        except (ValueError, OSError) as error:
            found.append((path, None, str(error)))
            continue
        then = calibration.conditions
        now = replace(then, **identity, **_machine(then.device), **_versions())
        found.append((path, calibration, "; ".join(then.differences(now))))
    return found


def cpu_name() -> str:
    """The processor's name, or its architecture where it has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _folder() -> Path:
    return cache_dir() / "calibrations"


def _make_folder() -> None:
    try:
        _folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = f"; {CACHE_VARIABLE} is {os.environ[CACHE_VARIABLE]}" if os.environ.get(CACHE_VARIABLE) else ""
        raise OSError(error.errno, f"{error.strerror}{hint}", str(_folder())) from error


def _stem(conditions: Conditions) -> str:
    return _stem_of(conditions.model, conditions.config_sha256, conditions.weight_bytes)


def _stem_of(model: str, config_sha256: str, weight_bytes: int) -> str:
    """Models of one name keep their files apart by configuration; other weights are for ``differences`` to find."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}-{config_sha256[:8]}"


def _identity(folder: Path) -> dict[str, Any]:
    folder = folder.resolve()
    in_hub_cache = folder.parent.name == "snapshots"
    weights = {path for pattern in _WEIGHTS for path in folder.glob(pattern)}
    return {
        "model": folder.parent.parent.name.removeprefix("models--") if in_hub_cache else folder.name,
        "config_sha256": hashlib.sha256((folder / "config.json").read_bytes()).hexdigest(),
        "weight_bytes": sum(path.stat().st_size for path in weights),
    }


def _machine(device: Any) -> dict[str, Any]:
    import torch

    where = torch.device(device)
    on_gpu = where.type == "cuda" and torch.cuda.is_available()
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    return {
        "device": where.type,
        "cpu": cpu_name(),
        "num_cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        "num_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(where) if on_gpu else None,
    }


def _versions() -> dict[str, Any]:
    packages = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {"treedecode": __version__, **packages}
