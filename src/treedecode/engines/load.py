"""From a name to a model that is ready to decode: find it, load it, know what its steps cost."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treedecode import calibration as saved
from treedecode.calibration import Calibration
from treedecode.engines.build import Implementation, build_target
from treedecode.engines.measure import check_plain_step, conditions_of, measure_cost
from treedecode.engines.request import check_stop_ids
from treedecode.engines.target import Target
from treedecode.models import ModelNotFoundError, Progress, resolve_model
from treedecode.models.errors import first_line
from treedecode.models.progress import silent
from treedecode.surface import Cost

# Those that PyTorch computes in; of narrower ones it only stores weights.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to decode over trees.

    Attributes:
        path: Folder it was loaded from.
        tokenizer: Its transformers tokenizer.
        config: Its transformers config.
        target: What runs the forward passes.
        eos_token_ids: Tokens that end an output unless the caller says otherwise.
        cost: Milliseconds of a step, by number of rows and, from a calibration, by context.
        cost_source: Where ``cost`` comes from; if not from a calibration, why not.
    """

    path: Path
    tokenizer: Any
    config: Any
    target: Target
    eos_token_ids: frozenset[int]
    cost: Cost
    cost_source: str

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and cache."""
        return self.target.dtype

    @property
    def implementation(self) -> str:
        """Code that runs the layers: "fused" or "transformers"."""
        return self.target.implementation

    @property
    def linear(self) -> str:
        """Code that runs the linear layers: "blocked", "onednn-prepacked" or "torch" (see ``engines.linear``)."""
        return self.target.linear_kind

    @property
    def head(self) -> str:
        """Code that finds the best tokens of the vocabulary: the dtype of its product, or "int8-screened" (exact)."""
        kind = self.target.head_kind
        return str(self.dtype).removeprefix("torch.") if kind == "float32" else kind


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A model that can run, without tokenizer and cost.

    Attributes:
        path: Folder it was loaded from.
        config: Its transformers config.
        target: What runs the forward passes.
        eos_token_id: As its generation config has it: none, one id or several.
    """

    path: Path
    config: Any
    target: Target
    eos_token_id: Any


def load(
    name_or_path: str | Path = "default",
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    implementation: Implementation = "auto",
    calibration: str | Path | None = "auto",
) -> LoadedModel:
    """Loads a decoder-only model and its tokenizer.

    Args:
        name_or_path: ``"default"`` (Gemma 3 270M, needs the ``demo`` extra), a folder in transformers format, or a
            Hub id.
        device: Where to run; None takes CUDA, then MPS, then the CPU.
        dtype: Of the weights; None keeps that of the checkpoint.
        revision: Branch, tag or commit of a Hub id.
        progress: Called with the name of each stage that may take over two seconds; returns a context manager.
        implementation: See ``build_target``.
        calibration: What a step costs: "auto" takes what ``treedecode calibrate`` saved for this model, if nothing has
            changed since, and else measures at one context, in three seconds; None always measures; a path takes that
            file and no other. ``LoadedModel.cost_source`` says what was taken.

    Raises:
        ModelNotFoundError: No such model, folder or tokenizer.
        UnsupportedModelError: The model cannot be verified over trees.
        ValueError: Unknown device, dtype or implementation; a calibration file that is missing, damaged or stale.
    """
    automatic = isinstance(calibration, str) and calibration == "auto"
    file = None if automatic else _check_calibration(calibration)
    where, kind = _check_device(device), _check_dtype(dtype)
    path = resolve_model(str(name_or_path), revision=revision, progress=progress)
    given = None if file is None else _read_calibration(file)
    tokenizer = _load_tokenizer(path)
    opened = _open(path, where, kind, progress or silent, implementation)
    command = _calibrate_command(name_or_path, device, dtype, revision)
    conditions = conditions_of(path, opened.target)
    if file is not None and given is not None:
        found = saved.require(given, conditions, file, f"{command} --output {shlex.quote(str(file))}")
        source = f"{_described(found)} ({file})"
    else:
        found, reason = saved.find(conditions) if automatic else (None, "as calibration=None asks")
        source = _described(found) if found else f"measured at load, at one short context: {reason}"
        if not found and automatic:
            source += f"; {command} measures all"
    with (progress or silent)("Measuring the cost of a step"):
        cost: Cost = found.surface if found else measure_cost(opened.target)
        if found:
            check_plain_step(opened.target, cost)
    eos = opened.eos_token_id
    stops = check_stop_ids(eos if eos is not None else tokenizer.eos_token_id)
    return LoadedModel(path, tokenizer, opened.config, opened.target, stops, cost, source)


def open_model(
    name_or_path: str | Path = "default",
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    implementation: Implementation = "auto",
) -> OpenModel:
    """As :func:`load`, without tokenizer and cost: what measuring needs."""
    where, kind = _check_device(device), _check_dtype(dtype)
    path = resolve_model(str(name_or_path), revision=revision, progress=progress)
    return _open(path, where, kind, progress or silent, implementation)


def _open(
    path: Path,
    device: torch.device,
    dtype: torch.dtype | str,
    stage: Progress,
    implementation: Implementation,
) -> OpenModel:
    # here, not above: importing the model classes takes a second that `import treedecode.engines` should not
    from transformers import AutoModelForCausalLM

    with stage(f"Loading {path.name}"):
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise ModelNotFoundError(
                f"{path} holds no loadable causal language model: {first_line(error)}"
            ) from error
        model = model.to(device).eval()
        target = build_target(model, consume=True, implementation=implementation)
        return OpenModel(path, model.config, target, model.generation_config.eos_token_id)


def _check_calibration(calibration: object) -> Path | None:
    if calibration is None or isinstance(calibration, str | Path):
        return None if calibration is None else Path(calibration)
    raise TypeError(f'calibration must be "auto", a file or None, got {calibration!r}')


def _read_calibration(file: Path) -> Calibration:
    try:
        return saved.read(file)
    except OSError as error:
        raise ValueError(f"the calibration {file} cannot be read: {error.strerror or error}") from error


def _described(calibration: Calibration) -> str:
    made = f"calibration of {calibration.measured_at.astimezone():%Y-%m-%d %H:%M}"
    return (
        f"{made}, on a busy machine: repeats vary by {calibration.spread:.0%}" if calibration.busy else made
    )


def _calibrate_command(name: object, device: object, dtype: object, revision: object) -> str:
    words = ["treedecode", "calibrate"] + ([] if name == "default" else [str(name)])
    for flag, value in {"--device": device, "--dtype": dtype, "--revision": revision}.items():
        words += [] if value is None else [flag, str(value).removeprefix("torch.")]
    return shlex.join(words)


def _check_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    try:
        where = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {str(device)!r} is not available here: {first_line(error)}") from error
    if where.type == "meta":
        raise ValueError(
            "device must be one that computes, such as cpu or cuda, got 'meta', which holds no data"
        )
    return where


def _check_dtype(dtype: torch.dtype | str | None) -> torch.dtype | str:
    if dtype is None:
        return "auto"
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if kind not in _DTYPES:
        raise ValueError(f"dtype must be float32, bfloat16, float16 or float64, got {dtype!r}")
    return kind


def _load_tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelNotFoundError(
            f"{path} has no loadable tokenizer ({first_line(error)}); save one there with tokenizer.save_pretrained"
        ) from error
