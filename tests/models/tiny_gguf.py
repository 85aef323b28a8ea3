"""A Gemma 3 GGUF file small enough for a test: every kind of token, three kinds of weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

HIDDEN, INNER, HEADS, HEAD_DIM, LAYERS = 64, 128, 2, 32, 7
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
WORDS = [
    "the",
    "tree",
    "the▁tree",
    "branch",
    "▁a",
    "ab",
    "abc",
    "bc",
    "▁ab",
    "▁the",
    "th",
    "he",
    "▁t",
    "木木",
]


def vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their kinds: control, user-defined (among them runs of spaces), bytes, characters, words."""
    tokens = [
        *(
            ("<pad>", CONTROL),
            ("<eos>", CONTROL),
            ("<bos>", CONTROL),
            ("<unk>", CONTROL),
            ("<mask>", CONTROL),
        ),
        *(
            ("[multimodal]", USER_DEFINED),
            ("<unused0>", CONTROL),
            ("\n", USER_DEFINED),
            ("\n\n", USER_DEFINED),
        ),
        *((" " * n, USER_DEFINED) for n in range(2, 5)),
        *((f"<0x{n:02X}>", BYTE) for n in range(256)),
        *((c, NORMAL) for c in "▁abcdefghijklmnopqrstuvwxyz0123456789.,(){}[]=_é木"),
        *((word, NORMAL) for word in WORDS),
    ]
    return [token for token, _ in tokens], [kind for _, kind in tokens]


def write(path: Path) -> Path:
    """Writes the file and returns its path."""
    tokens, kinds = vocabulary()
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(16)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    for name, token_id in {"bos": 2, "eos": 1, "unk": 3, "pad": 0}.items():
        getattr(writer, f"add_{name}_token_id")(token_id)
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32) -> None:
        values = rng.standard_normal(shape).astype(np.float32)
        quantized = kind != gguf.GGMLQuantizationType.F32
        writer.add_tensor(f"{name}.weight", quantize(values, kind) if quantized else values, raw_dtype=kind)

    q8, q5 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q5_0
    add("output_norm", HIDDEN)
    add("token_embd", len(tokens), HIDDEN, kind=q8)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            add(f"{block}.{norm}", HIDDEN)
        add(f"{block}.attn_q_norm", HEAD_DIM)
        add(f"{block}.attn_k_norm", HEAD_DIM)
        add(f"{block}.attn_q", HEADS * HEAD_DIM, HIDDEN, kind=q5)
        add(f"{block}.attn_k", HEAD_DIM, HIDDEN, kind=q5)
        add(f"{block}.attn_v", HEAD_DIM, HIDDEN, kind=q8)
        add(f"{block}.attn_output", HIDDEN, HEADS * HEAD_DIM, kind=q8)
        add(f"{block}.ffn_gate", INNER, HIDDEN, kind=q5)
        add(f"{block}.ffn_up", INNER, HIDDEN, kind=q5)
        add(f"{block}.ffn_down", HIDDEN, INNER, kind=q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
