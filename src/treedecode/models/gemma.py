"""Gemma 3 from a GGUF file to a folder that transformers loads: weights, tokenizer and configuration.

The result equals that of transformers' own GGUF loader, bit for bit and id for id (tests/models/test_gemma.py), with
two differences: it takes seconds instead of a minute, and the tokenizer adds the ``<bos>`` that Gemma needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from treedecode.models.gguf_file import GgufFile
from treedecode.models.progress import Progress

# llama.cpp's names for what transformers calls ...
_TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"


def convert_gemma(gguf_path: Path, folder: Path, stage: Progress) -> None:
    """Writes ``folder`` (must exist) from a Gemma 3 text model in GGUF format.

    Raises:
        ValueError: The file is no Gemma 3 GGUF.
    """
    with stage("Reading the vocabulary"):
        file = GgufFile(gguf_path)
    architecture = file.metadata["general.architecture"]
    if architecture != "gemma3":
        raise ValueError(f"expected a GGUF file of architecture gemma3, got {architecture}")
    with stage("Writing the tokenizer"):
        _write_json(folder / "tokenizer.json", tokenizer_json(file.metadata))
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(file.metadata))
    with stage("Dequantizing the weights to float32"):
        weights = {
            _weight_name(tensor.name): _weight(tensor.name, tensor.dequantized()) for tensor in file.tensors()
        }
    with stage("Writing the weights"):
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        _save_config(file.metadata, folder)


def tokenizer_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """The ``tokenizer.json`` of a Gemma vocabulary: byte-fallback BPE with merges recovered from the tokens.

    A token merges from every pair of tokens it splits into; tokens that stand earlier merge first, and of the splits
    of one token the one with the longest left part. Merges are written as ``"left right"``, which loads several times
    faster than pairs; no Gemma token holds a space.
    """
    kinds = metadata["tokenizer.ggml.token_type"]
    # a token of several spaces is stored as spaces, and the model looks it up as underlines
    tokens = [
        _SPACE * len(token) if not token.strip(" ") else token for token in metadata["tokenizer.ggml.tokens"]
    ]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [
        f"{token[:cut]} {token[cut:]}"
        for token in tokens
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    added = [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL or (kind == _USER_DEFINED and token.strip(_SPACE))
    ]
    bos_id = metadata["tokenizer.ggml.bos_token_id"]
    bos = tokens[bos_id]
    first, second = [
        [{"SpecialToken": {"id": bos, "type_id": number}}, {"Sequence": {"id": name, "type_id": number}}]
        for number, name in enumerate("AB")
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": first + second,
            "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    named = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    special = {
        f"{name}_token": tokens[metadata[f"tokenizer.ggml.{key}_token_id"]] for name, key in named.items()
    }
    return {
        **special,
        "add_bos_token": True,
        "model_max_length": metadata["gemma3.context_length"],
        "tokenizer_class": "GemmaTokenizer",
    }


def _weight_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"
    return f"model.{_TOP_NAMES[parts[0]]}.weight"


def _weight(name: str, values: np.ndarray) -> np.ndarray:
    # llama.cpp folds the 1 of Gemma's (1 + weight) into the weight of a norm
    return values - np.float32(1) if name.endswith("norm.weight") else values


def _save_config(metadata: dict[str, Any], folder: Path) -> None:
    from transformers import Gemma3TextConfig, GenerationConfig

    tokenizer = {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }
    config = Gemma3TextConfig(
        architectures=["Gemma3ForCausalLM"],
        dtype="float32",
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        max_position_embeddings=metadata["gemma3.context_length"],
        hidden_size=metadata["gemma3.embedding_length"],
        num_hidden_layers=metadata["gemma3.block_count"],
        intermediate_size=metadata["gemma3.feed_forward_length"],
        num_attention_heads=metadata["gemma3.attention.head_count"],
        num_key_value_heads=metadata["gemma3.attention.head_count_kv"],
        head_dim=metadata["gemma3.attention.key_length"],
        rms_norm_eps=metadata["gemma3.attention.layer_norm_rms_epsilon"],
        sliding_window=metadata["gemma3.attention.sliding_window"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": metadata["gemma3.rope.freq_base"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        **tokenizer,
    )
    config.save_pretrained(folder)
    GenerationConfig(**tokenizer).save_pretrained(folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
