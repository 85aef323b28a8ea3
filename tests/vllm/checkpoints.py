"""Tiny random checkpoints of targets and drafters, in the files and under the names that real ones have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCAB, DRAFT_VOCAB, HIDDEN, LAYERS = 32, 24, 64, 4
_HEADS, _KV_HEADS, _HEAD_SIZE, _INNER = 2, 1, 32, 96
# Small beside the embeddings: the target's next token then depends most on the last one, and a drafter can guess it.
_TARGET_SCALE = 0.01
# Large enough that a drafter's guess depends on all that it attends to.
_DRAFTER_SCALE = 0.08

Weights = dict[str, Tensor]


class _Maker:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=self.generator) * scale

    def layer(self, prefix: str, scale: float, bias: bool = False, inputs: int = HIDDEN) -> Weights:
        sizes = {"q": _HEADS, "k": _KV_HEADS, "v": _KV_HEADS}
        weights = {
            f"{prefix}.self_attn.{name}_proj.weight": self.normal(heads * _HEAD_SIZE, inputs, scale=0.3)
            for name, heads in sizes.items()
        }
        if bias:
            weights |= {
                f"{prefix}.self_attn.{name}_proj.bias": self.normal(heads * _HEAD_SIZE)
                for name, heads in sizes.items()
            }
        out = _HEADS * _HEAD_SIZE
        return weights | {
            f"{prefix}.self_attn.o_proj.weight": self.normal(HIDDEN, out, scale=scale),
            f"{prefix}.mlp.gate_proj.weight": self.normal(_INNER, HIDDEN, scale=0.3),
            f"{prefix}.mlp.up_proj.weight": self.normal(_INNER, HIDDEN, scale=0.3),
            f"{prefix}.mlp.down_proj.weight": self.normal(HIDDEN, _INNER, scale=scale),
            f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
        }

    def target(self, bias: bool) -> Weights:
        weights = {
            "model.embed_tokens.weight": self.normal(VOCAB, HIDDEN),
            "model.norm.weight": torch.ones(HIDDEN),
            "lm_head.weight": self.normal(VOCAB, HIDDEN),
        }
        for layer in range(LAYERS):
            weights |= self.layer(f"model.layers.{layer}", _TARGET_SCALE, bias)
        return weights


def _save(folder: Path, config: dict[str, Any], weights: Weights) -> str:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def _config(
    architecture: str, model_type: str = "llama", layers: int = LAYERS, **others: Any
) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_SIZE,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **others,
    }


def save_llama(folder: Path) -> str:
    """A target of four layers; returns the folder."""
    return _save(folder, _config("LlamaForCausalLM"), _Maker(0).target(bias=False))


def save_eagle(folder: Path) -> str:
    """An EAGLE head that guesses from the last token's embedding, somewhat off; target's embeddings and head."""
    maker = _Maker(1)
    guess = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
    weights = maker.layer("layers.0", _DRAFTER_SCALE) | {
        "fc.weight": guess + maker.normal(HIDDEN, 2 * HIDDEN, scale=0.02)
    }
    del weights["layers.0.input_layernorm.weight"]
    return _save(folder, _config("LlamaForCausalLM", layers=1), weights)


def save_eagle3(folder: Path) -> str:
    """A random EAGLE-3 head over three of the target's layers, with a vocabulary of its own."""
    maker = _Maker(2)
    drafted = torch.randperm(VOCAB, generator=maker.generator)[:DRAFT_VOCAB].sort().values
    weights = maker.layer("midlayer", _DRAFTER_SCALE, inputs=2 * HIDDEN) | {
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "fc.weight": maker.normal(HIDDEN, 3 * HIDDEN, scale=0.1),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": maker.normal(DRAFT_VOCAB, HIDDEN),
        "d2t": drafted - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, drafted, True),
    }
    own = {"draft_vocab_size": DRAFT_VOCAB, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    return _save(folder, _config("LlamaForCausalLMEagle3", layers=1, **own), weights)


def save_mimo(folder: Path) -> str:
    """A target with a multi-token-prediction layer in its own checkpoint, which guesses from the last embedding."""
    maker = _Maker(3)
    layer = "model.mtp_layers.0"
    guess = torch.cat([torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)], dim=1)
    weights = maker.target(bias=True) | maker.layer(layer, _DRAFTER_SCALE, bias=True)
    weights |= {
        f"{layer}.{name}.weight": torch.ones(HIDDEN)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")
    }
    weights[f"{layer}.input_proj.weight"] = guess + maker.normal(HIDDEN, 2 * HIDDEN, scale=0.02)
    return _save(folder, _config("MiMoForCausalLM", "qwen2", num_nextn_predict_layers=1), weights)


def save_medusa(folder: Path, heads: int) -> str:
    """Random Medusa heads, in the format of the first checkpoints."""
    maker = _Maker(4)
    weights: Weights = {}
    for head in range(heads):
        weights[f"{head}.0.linear.weight"] = maker.normal(HIDDEN, HIDDEN, scale=0.1)
        weights[f"{head}.0.linear.bias"] = maker.normal(HIDDEN, scale=0.1)
        weights[f"{head}.1.weight"] = maker.normal(VOCAB, HIDDEN)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "medusa_num_heads": heads,
        "medusa_num_layers": 1,
        "medusa_fc_bias": True,
    }
    return _save(folder, config, weights)
