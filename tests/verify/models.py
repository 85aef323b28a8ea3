"""Tiny models as if loaded, and prompts for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.engines.tiny import PROMPTS, target_of
from treedecode.cost import CostCurve
from treedecode.engines.load import LoadedModel
from treedecode.engines.target import Target
from treedecode.verify.prompts import Prompt
from treedecode.verify.results import Report, Status

PROMPTS_OF_IDS = [Prompt(name, tuple(ids)) for name, ids in PROMPTS.items()]


def loaded(target: Target) -> LoadedModel:
    """A model around a target; its tokenizer writes ids."""
    tokenizer: Any = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))
    return LoadedModel(Path("tiny"), tokenizer, None, target, frozenset(), CostCurve([1, 64], [1.0, 1.1]), "")


def tiny_model(name: str, implementation: str) -> LoadedModel:
    """One of ``tests.engines.tiny``, float64."""
    return loaded(target_of(name, implementation))


def different(report: Report) -> set[str]:
    """Names of the checks that found something."""
    return {
        finding.check.split(", seed")[0] for finding in report.findings if finding.status is Status.DIFFERENT
    }
