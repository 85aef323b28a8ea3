"""The real model, loaded once, and what transformers itself says about every prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import treedecode as td
from tests.e2e.prompts import PROMPTS

NEW_TOKENS = 128


@dataclass(frozen=True)
class Reference:
    """transformers' own greedy output for one prompt, and its plain forward pass for teacher forcing."""

    model: Any
    prompt_ids: list[int]
    token_ids: list[int]

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Logits ``[len(token_ids), vocab]`` that a plain forward gives for each of these output tokens."""
        ids = torch.tensor([self.prompt_ids + token_ids[:-1]])
        return self.model(ids, logits_to_keep=len(token_ids)).logits[0]


class _References(dict[str, Reference]):
    """References by prompt name, each made when it is first asked for."""

    def __init__(self, gemma: td.LoadedModel, model: Any) -> None:
        super().__init__()
        self._gemma, self._model = gemma, model

    def __missing__(self, name: str) -> Reference:
        prompt_ids = self._gemma.tokenizer(PROMPTS[name]).input_ids
        ids = torch.tensor([prompt_ids])
        output = self._model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)
        self[name] = Reference(self._model, prompt_ids, output[0, len(prompt_ids) :].tolist())
        return self[name]


@pytest.fixture(scope="session")
def gemma() -> td.LoadedModel:
    """The default model as treedecode loads it."""
    return td.load("default")


@pytest.fixture(scope="session")
def plain_model(gemma: td.LoadedModel) -> Any:
    """The same checkpoint in transformers, untouched."""
    model = AutoModelForCausalLM.from_pretrained(gemma.path, dtype=torch.float32).eval()
    model.generation_config.pad_token_id = 0
    return model


@pytest.fixture(scope="session")
def references(gemma: td.LoadedModel, plain_model: Any) -> dict[str, Reference]:
    """Greedy outputs of transformers for all prompts."""
    return _References(gemma, plain_model)
