"""A server with trees against a model loaded here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engines.tiny import PROMPTS, SHORT, target_of
from tests.verify.models import tiny_model
from tests.verify.server import LyingServer, Serve
from treedecode.verify.client import Endpoint, EndpointError
from treedecode.verify.endpoint import verify_endpoint
from treedecode.verify.plain import PlainModel
from treedecode.verify.prompts import Prompt
from treedecode.verify.reference import LocalModel
from treedecode.verify.results import Report, Status
from treedecode.verify.settings import Settings

PROMPT = Prompt("ids", tuple(PROMPTS[SHORT]))
SETTINGS = Settings(max_new_tokens=12, num_draws=120, temperature=0.6)


def served_logits(context: list[int]) -> np.ndarray:
    return PlainModel(target_of("llama", "transformers")).row(context).numpy()


def verified(server: LyingServer, settings: Settings = SETTINGS) -> Report:
    with Endpoint(server.url, "--endpoint") as endpoint:
        plain = LocalModel(tiny_model("llama", "fused"), settings)
        return verify_endpoint(endpoint, plain, [PROMPT], settings)


def test_a_server_of_the_same_model_is_exact(serve: Serve) -> None:
    report = verified(serve(logits=served_logits))
    assert [finding.status for finding in report.findings] == [Status.EXACT] * 4, report
    assert report.findings[1].numbers["worst_difference"] < 1e-4
    assert report.findings[3].numbers["degrees"] >= 3


@pytest.mark.parametrize(
    ("lie", "check"),
    [
        ({"wrong_at": 5}, "greedy"),
        ({"shift": -0.01}, "logprobs"),
        ({"stream": "lost"}, "stream"),
        ({"sharpen": 0.4}, "sampled"),
    ],
)
def test_lies_are_caught(serve: Serve, lie: dict[str, Any], check: str) -> None:
    report = verified(serve(logits=served_logits, **lie))
    assert [finding.check for finding in report.differences] == [check]


def test_a_filter_that_the_server_ignores_is_caught(serve: Serve) -> None:
    settings = Settings(max_new_tokens=4, num_draws=120, temperature=1.5, top_k=2)
    (sampled,) = verified(serve(logits=served_logits), settings).differences
    assert sampled.check == "sampled" and "probability 0" in sampled.detail


@pytest.mark.parametrize("vllm", ["ignored", "refused"])
def test_a_server_that_gives_no_ids_cannot_be_compared_with_a_model(serve: Serve, vllm: str) -> None:
    with pytest.raises(EndpointError, match="gives no token ids, which a comparison with a MODEL needs"):
        verified(serve(logits=served_logits, vllm=vllm))


def test_a_sample_outside_the_vocabulary_is_impossible() -> None:
    plain = LocalModel(tiny_model("llama", "fused"), SETTINGS)
    found = plain.compare(PROMPT.content, [(10**6, 1)] * 30)
    assert found.impossible == 10**6 and not found.passed
