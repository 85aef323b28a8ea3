"""From the name of a model to a folder that transformers can load."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from treedecode.models.default import ensure_default
from treedecode.models.errors import ModelNotFoundError, first_line
from treedecode.models.progress import Progress, silent

DEFAULT_NAME = "default"
_ACCEPTED = f'"{DEFAULT_NAME}", a folder in transformers format or a Hub id such as Qwen/Qwen3-0.6B'
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)
_WEIGHTS = ("*.safetensors", "*.bin")
# The formats of other frameworks that stand beside the weights in many Hub repositories.
_IGNORED = [
    "*.gguf",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.ot",
    "*.pt",
    "*.pth",
    "onnx/*",
    "original/*",
    "metal/*",
]


def resolve_model(name: str, revision: str | None = None, progress: Progress | None = None) -> Path:
    """The folder of a model; converts the default model or downloads from the Hub where needed.

    Args:
        name: ``"default"`` (Gemma 3 270M; no network), a folder, or a Hub id.
        revision: Branch, tag or commit of a Hub id.
        progress: Called with the name of each stage of the conversion.

    Raises:
        ModelNotFoundError: No such model, or an incomplete one; says in one line what to do.
    """
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # ~name of nobody
        path = Path(name)
    is_hub_id = name != DEFAULT_NAME and not (name and path.exists())
    if revision is not None and not is_hub_id:
        raise ModelNotFoundError(f"a revision belongs to a Hub id: got revision {revision!r} for {name!r}")
    if name == DEFAULT_NAME:
        return ensure_default(progress or silent)
    if is_hub_id:
        path = _download(name, revision)
    _check_folder(path)
    return path


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise ModelNotFoundError(f"a model must be a folder in transformers format, got the file {path}")
    wanted = {"config.json": ("config.json",), "weights": _WEIGHTS, "tokenizer": _TOKENIZER_FILES}
    for what, patterns in wanted.items():
        if not any(found for pattern in patterns for found in path.glob(pattern)):
            raise ModelNotFoundError(
                f"{path} has no {what}: expected {' or '.join(patterns)} as saved by save_pretrained"
            )
    for weights in path.glob("*.safetensors"):
        try:
            with safe_open(weights, "numpy"):  # reads the header and checks it against the file's length
                pass
        except SafetensorError as error:
            raise ModelNotFoundError(f"{weights} is damaged: {first_line(error)}; get it again") from error


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelNotFoundError(f"no such folder: {name}; expected {_ACCEPTED}")
    try:
        path = Path(snapshot_download(name, revision=revision, ignore_patterns=[*_IGNORED, "*.bin"]))
        if any(path.glob("*.safetensors")):
            return path
        return Path(snapshot_download(name, revision=revision, ignore_patterns=_IGNORED))
    except HFValidationError as error:
        raise ModelNotFoundError(f"{name!r} is no folder and no Hub id; expected {_ACCEPTED}") from error
    except GatedRepoError as error:
        raise ModelNotFoundError(
            f"{name} is gated: accept its terms at https://huggingface.co/{name}, then run `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(f"the Hub has {name} but no revision {revision!r} of it") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"no folder and no Hub model is named {name!r}; expected {_ACCEPTED}"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelNotFoundError(
            f"{name!r} is no folder here, is not in the Hub cache, and the Hub cannot be asked "
            f"({first_line(error)}); expected {_ACCEPTED}"
        ) from error
