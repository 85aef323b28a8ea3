"""Tokenizers made in the test: every character of more than one byte falls into several tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.engines.tiny import GROUPED

END, NEXT_FREE = 0, 1  # the special token, and the first id after it


def byte_level() -> Any:
    """GPT-2 style: one token per byte, a few merges, no word boundary of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<end>": END} | {symbol: NEXT_FREE + i for i, symbol in enumerate(alphabet)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("e", "n"), ("en", "d")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def byte_fallback() -> Any:
    """Llama 2 style: words with a leading space mark, and bytes for what the vocabulary lacks."""
    letters = "▁abcdefghijklmnopqrstuvwxyz.,!\n"
    vocab = {"<end>": END, "<unk>": 1} | {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    for letter in letters:
        vocab[letter] = len(vocab)
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("e", "n"), ("en", "d")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", unk_token="<unk>"
    )


MAKERS = {"byte-level": byte_level, "byte-fallback": byte_fallback}


def save_checkpoint(path: Path, **changes: Any) -> None:
    """A tiny Llama with ``byte_level`` beside it, in transformers format, float32; always the same weights."""
    tokenizer = byte_level()
    tokenizer.save_pretrained(path)
    torch.manual_seed(1)
    own = {"vocab_size": len(tokenizer), "pad_token_id": END, "bos_token_id": None}
    LlamaForCausalLM(LlamaConfig(**(GROUPED | own | changes))).save_pretrained(path)
