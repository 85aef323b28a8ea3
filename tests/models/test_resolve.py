"""Folders and Hub ids: what is not a model is named, with the way out, in one line."""

from __future__ import annotations

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import errors
from safetensors.numpy import save_file

from treedecode.models import ModelNotFoundError, resolve_model


@pytest.fixture
def folder(tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    save_file({"weight": np.zeros(4)}, tmp_path / "model.safetensors")
    return tmp_path


def message_of(*args, **options):
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_itself(folder, monkeypatch):
    assert resolve_model(str(folder)) == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model(f"~/{folder.name}") == folder


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_incomplete_folders(folder, missing, what):
    (folder / missing).unlink()
    assert what in message_of(str(folder))


def test_damaged_weights(folder):
    whole = (folder / "model.safetensors").read_bytes()
    for damaged in (b"", b"text, not tensors", whole[:-1]):
        (folder / "model.safetensors").write_bytes(damaged)
        assert "model.safetensors is damaged" in message_of(str(folder))


def test_a_file_is_no_model(folder):
    assert "got the file" in message_of(str(folder / "config.json"))


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/nowhere", "a/b/c"])
def test_missing_folders(name):
    assert message_of(name).startswith(f"no such folder: {name}; expected")


@pytest.mark.parametrize("name", ["", "two words", "bad//id", "-x/y"])
def test_names_that_are_nothing(name):
    assert "expected" in message_of(name)


def test_revisions_belong_to_the_hub(folder):
    assert "belongs to a Hub id" in message_of(str(folder), revision="main")
    assert "belongs to a Hub id" in message_of("default", revision="main")


def response_error(kind):
    import httpx2

    request = httpx2.Request("GET", "https://huggingface.co/x")
    return kind("404 Client Error.\n\nDetails", response=httpx2.Response(404, request=request))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.HFValidationError("bad"), "no folder and no Hub id"),
        (errors.LocalEntryNotFoundError("cannot reach"), "the Hub cannot be asked (cannot reach)"),
        (errors.OfflineModeIsEnabled("offline"), "the Hub cannot be asked (offline)"),
        (ConnectionError("no route"), "the Hub cannot be asked (no route)"),
        (response_error(errors.RepositoryNotFoundError), "no folder and no Hub model is named 'some/model'"),
        (response_error(errors.RevisionNotFoundError), "no revision 'v1' of it"),
        (response_error(errors.GatedRepoError), "hf auth login"),
        (response_error(errors.HfHubHTTPError), "the Hub cannot be asked (404 Client Error.)"),
    ],
)
def test_hub_errors(monkeypatch, error, text):
    def download(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert text in message_of("some/model", revision="v1")


def test_hub_snapshots(folder, monkeypatch):
    asked = []

    def download(name, revision, ignore_patterns):
        asked.append((name, revision, "*.bin" in ignore_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("some/model", revision="v1") == folder
    assert asked == [("some/model", "v1", True)]
    (folder / "model.safetensors").rename(folder / "model.bin")
    assert resolve_model("some/model") == folder
    assert asked[1:] == [("some/model", None, True), ("some/model", None, False)]
    (folder / "config.json").unlink()
    assert "no config.json" in message_of("some/model")
