"""A tiny model with a tokenizer, loaded once; one thread for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engines.tokenizers import save_checkpoint
from treedecode.engines.load import LoadedModel, load

LIMIT = 256


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products gain nothing from threads, and the machine may have other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in transformers format, float32, of at most ``LIMIT`` positions."""
    path = tmp_path_factory.mktemp("model")
    save_checkpoint(path, max_position_embeddings=LIMIT, tie_word_embeddings=True)
    return path


@pytest.fixture(scope="package")
def model(folder: Path) -> LoadedModel:
    """What is in ``folder``, float64."""
    return load(folder, dtype="float64")
