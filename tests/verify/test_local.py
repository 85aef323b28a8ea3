"""A right engine passes, and every planted fault is found by the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from torch import Tensor

from tests.engines.tiny import PROMPTS, SHORT, Fixed
from tests.faults import FAULTS
from tests.verify.models import PROMPTS_OF_IDS, different, tiny_model
from treedecode.engines import judge, loop, processing, sampling
from treedecode.engines.params import SamplingParams
from treedecode.engines.sampling import processed_probs
from treedecode.streams import keyed_uniforms
from treedecode.testing.faulty_walks import greedy_draw
from treedecode.tree import DraftTree
from treedecode.verify import local
from treedecode.verify.local import verify_model
from treedecode.verify.prompts import Prompt
from treedecode.verify.results import Status
from treedecode.verify.settings import Settings

FEW = Settings(max_new_tokens=60, num_seeds=1)
CHECKS = ["greedy", "greedy, hostile drafts", "logprobs", "sampled, seed 0", "draws"]
GREEDY, HOSTILE, LOGPROBS, SAMPLED, DRAWS = "greedy", "greedy, hostile drafts", "logprobs", "sampled", "draws"


@pytest.mark.parametrize("implementation", ["fused", "transformers"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_right_engine_is_exact(name: str, implementation: str) -> None:
    report = verify_model(tiny_model(name, implementation), PROMPTS_OF_IDS, FEW)
    assert [finding.check for finding in report.findings] == 2 * CHECKS
    assert {finding.status for finding in report.findings} == {Status.EXACT}, report
    assert report.verdict == "EXACT: 10 checks found no difference"
    # trees were really verified, and the counts say something
    assert "accepted from" in report.findings[0].detail
    assert all(finding.numbers["degrees"] > 5 for finding in report.findings if finding.check == DRAWS)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 5, "temperature": 1.3},
        {"top_p": 0.8},
        {"min_p": 0.2, "repetition_penalty": 1.3, "seed": 7},
        {"budget": "auto", "drafter": "prompt-lookup"},
        {"temperature": 0, "repetition_penalty": 1.5, "budget": 1024},
    ],
)
def test_any_settings_are_exact(options: dict[str, Any]) -> None:
    settings = Settings(**{"max_new_tokens": 30, "num_seeds": 2, "num_draws": 200} | options)
    report = verify_model(tiny_model("mistral", "fused"), PROMPTS_OF_IDS[:1], settings)
    assert report.exact and not report.num_near_ties
    assert len(report.findings) == (6 if settings.samples else 3)


# The logprobs of a faulty walk are still those of its rows.
SEES_LOGPROBS = set(FAULTS) - {"drafts one row off"}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_engine_are_found(fault: str) -> None:
    model = tiny_model("gemma3", "fused")
    with FAULTS[fault]():
        found = different(verify_model(model, PROMPTS_OF_IDS, FEW))
    assert HOSTILE in found
    assert (LOGPROBS in found) == (fault in SEES_LOGPROBS)


def hot(logits: Tensor, params: SamplingParams) -> Tensor:
    """Temperature ignored."""
    return processed_probs(logits, SamplingParams(1.0))


def one_number(seed: int, positions: list[int]) -> Any:
    """One draw per path."""
    return keyed_uniforms(seed, [positions[0]] * len(positions))


def next_number(seed: int, positions: list[int]) -> Any:
    """Numbers of the next position."""
    return keyed_uniforms(seed, [position + 1 for position in positions])


def squared(seed: int, positions: list[int]) -> Any:
    """Numbers that are not uniform."""
    return keyed_uniforms(seed, positions) ** 2


SAMPLER_FAULTS: dict[str, tuple[Any, str, Callable[..., Any], set[str]]] = {
    "greedy draw": (sampling, "draw", greedy_draw, {SAMPLED, DRAWS}),
    "temperature ignored": (sampling, "processed_probs", hot, {SAMPLED, DRAWS}),
    "one draw per path": (judge, "keyed_uniforms", one_number, {SAMPLED, DRAWS}),
    "numbers of the next position": (judge, "keyed_uniforms", next_number, {SAMPLED}),
    "numbers not uniform": (judge, "keyed_uniforms", squared, {SAMPLED, DRAWS}),
}


@pytest.mark.parametrize("fault", SAMPLER_FAULTS)
def test_faults_of_the_sampler_are_found(fault: str) -> None:
    """In trees and in plain decoding alike: what they say is compared with the model, not only with each other."""
    place, name, faulty, expected = SAMPLER_FAULTS[fault]
    settings = Settings(max_new_tokens=40, temperature=0.5, num_seeds=1)
    with mock.patch.object(place, name, faulty):
        report = verify_model(tiny_model("llama", "fused"), PROMPTS_OF_IDS[:1], settings)
    assert different(report) == expected


@pytest.mark.parametrize(
    ("options", "ignored"), [({"top_k": 4}, "top_k"), ({"top_p": 0.6}, "top_p"), ({"min_p": 0.4}, "min_p")]
)
def test_a_filter_that_is_ignored_is_found(options: dict[str, Any], ignored: str) -> None:
    def unfiltered(logits: Tensor, params: SamplingParams) -> Tensor:
        return processed_probs(logits, SamplingParams(params.temperature))

    settings = Settings(max_new_tokens=30, temperature=1.5, num_seeds=1, **options)
    with mock.patch.object(sampling, "processed_probs", unfiltered):
        report = verify_model(tiny_model("llama", "fused"), PROMPTS_OF_IDS[:1], settings)
    assert different(report) == {SAMPLED, DRAWS}
    assert "probability 0" in report.findings[-1].detail


def test_penalties_of_the_whole_tree_are_found() -> None:
    """Siblings must not count for each other."""
    original = processing.Penalties.__call__

    def flat(self: Any, logits: Tensor, paths: Any) -> Tensor:
        token_ids, in_output, seen = paths.counts
        anywhere = np.broadcast_to(seen.any(0), seen.shape).copy()
        return original(self, logits, SimpleNamespace(counts=(token_ids, in_output, anywhere)))

    settings = Settings(max_new_tokens=60, temperature=0, repetition_penalty=1.4)
    with mock.patch.object(processing.Penalties, "__call__", flat):
        report = verify_model(tiny_model("llama", "fused"), PROMPTS_OF_IDS, settings)
    assert {HOSTILE, LOGPROBS} <= different(report)


def test_an_output_that_ends_early_is_found() -> None:
    original = loop.Decoder.of.__func__

    def of(cls: Any, target: Any, request: Any, *rest: Any) -> Any:
        made = original(cls, target, request, *rest)
        made.state._max_new_tokens -= bool(request.max_drafted)
        return made

    with mock.patch.object(loop.Decoder, "of", classmethod(of)):
        report = verify_model(
            tiny_model("llama", "fused"), PROMPTS_OF_IDS[:1], Settings(max_new_tokens=9, temperature=0)
        )
    assert different(report) == {GREEDY, HOSTILE}
    assert report.findings[0].detail.startswith("trees ended after 8 tokens, plain after 9")


def test_a_drafter_without_drafts_is_said() -> None:
    idle = Fixed(lambda context: DraftTree.root_only(context.token_ids[-1]))
    settings = Settings(max_new_tokens=8, temperature=0, drafter=idle)
    report = verify_model(tiny_model("llama", "fused"), PROMPTS_OF_IDS[:1], settings)
    assert report.findings[0].detail == "8 tokens identical, but no tree was verified"


def test_outputs_without_a_step_have_nothing_to_check() -> None:
    settings = Settings(max_new_tokens=1, num_draws=50)
    report = verify_model(tiny_model("llama", "fused"), PROMPTS_OF_IDS[:1], settings)
    assert report.exact
    assert {f.check: f.status for f in report.findings}["logprobs"] is Status.SKIPPED


def test_up_to_the_longest_sequence() -> None:
    """CASES 9: nothing here reaches beyond the positions that the model has."""
    long = Prompt("long", tuple(PROMPTS[SHORT] * 127))  # 508 of 512
    report = verify_model(tiny_model("llama", "fused"), [long], Settings(max_new_tokens=30, num_draws=50))
    assert report.exact and report.findings[0].num_tokens == 4


def test_findings_come_one_by_one() -> None:
    """So that those made before an interruption are there."""
    findings = local.check_model(tiny_model("llama", "fused"), PROMPTS_OF_IDS, Settings(max_new_tokens=5))
    assert next(findings).check == GREEDY
    findings.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": 0}, "plain decoding"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"num_seeds": 0}, "num_seeds must be at least 1"),
        ({"num_draws": 49}, "num_draws must be at least 50"),
        ({"gap_tolerance": -1.0}, "gap_tolerance must be at least 0"),
        ({"logprob_tolerance": float("nan")}, "logprob_tolerance must be at least 0"),
        ({"temperature": -1.0}, "temperature"),
        ({"drafter": "oracle"}, "oracle"),
    ],
)
def test_bad_settings(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**options)


@pytest.mark.parametrize(
    ("ids", "words"), [((), "one: the prompt is empty"), ((97,), "one: prompt token ids")]
)
def test_bad_prompts_are_named_before_anything_runs(ids: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        verify_model(tiny_model("llama", "fused"), [*PROMPTS_OF_IDS, Prompt("one", ids)])
