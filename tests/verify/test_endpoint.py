"""A server with trees against one without: each of its lies is caught, and told apart from rounding."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from tests.verify.server import TIED_AT, LyingServer, Serve
from treedecode.verify.client import Endpoint, EndpointError
from treedecode.verify.completion import Choice, Completion, Logprobs
from treedecode.verify.endpoint import verify_endpoint
from treedecode.verify.prompts import Prompt
from treedecode.verify.reference import PlainEndpoint
from treedecode.verify.results import Report, Status
from treedecode.verify.settings import Settings

# one token, so that output position TIED_AT - 1 is the tied one
PROMPT = Prompt("one", "a")
TIE = TIED_AT - 1
FEW = Settings(max_new_tokens=20, num_draws=300)
GREEDY = Settings(max_new_tokens=20, temperature=0)
CHECKS = ["greedy", "logprobs", "stream", "sampled"]


def verified(
    trees: LyingServer, plain: LyingServer, settings: Settings = FEW, logprobs: bool = True
) -> Report:
    with ExitStack() as closing:
        servers = [
            closing.enter_context(Endpoint(server.url, flag, logprobs=logprobs))
            for server, flag in ((trees, "--endpoint"), (plain, "--plain-endpoint"))
        ]
        return verify_endpoint(servers[0], PlainEndpoint(servers[1], settings), [PROMPT], settings)


def statuses(report: Report) -> dict[str, Status]:
    return {finding.check: finding.status for finding in report.findings}


@pytest.mark.parametrize("vllm", ["ids", "ignored", "refused"])
def test_equal_servers_are_exact(serve: Serve, vllm: str) -> None:
    report = verified(serve(vllm=vllm), serve(vllm=vllm, key=1))
    assert statuses(report) == dict.fromkeys(CHECKS, Status.EXACT)
    assert report.exact and report.verdict == "EXACT: 4 checks found no difference"
    greedy, logprobs, stream, sampled = report.findings
    assert greedy.detail == "20 tokens identical" and logprobs.num_tokens == 20
    assert stream.detail.endswith("in 10 pieces")
    assert sampled.numbers["degrees"] > 10  # several contexts, rare tokens together


@pytest.mark.parametrize("vllm", ["ids", "ignored"])
@pytest.mark.parametrize(
    ("lie", "check", "words"),
    [
        ({"wrong_at": 7}, "greedy", ["token 7 is"]),
        ({"early": 9}, "greedy", ["ended after 9 tokens, without trees after 20"]),
        ({"shift": 0.002}, "logprobs", ["off by 0.002", "0.001 is allowed"]),
        ({"shift": float("nan")}, "logprobs", ["off by nan"]),
        ({"stream": "lost"}, "stream", ["differs from character"]),
        ({"stream": "changed"}, "stream", ["differs from character", "!"]),
        ({"sharpen": 3.0}, "sampled", ["chi-squared"]),
        ({"samples": 1}, "sampled", ["chi-squared"]),
    ],
)
def test_every_lie_is_caught(
    serve: Serve, vllm: str, lie: dict[str, Any], check: str, words: list[str]
) -> None:
    report = verified(serve(vllm=vllm, key=1, **lie), serve(vllm=vllm))
    assert not report.exact
    assert [finding.check for finding in report.differences] == [check]
    assert all(word in report.differences[0].detail for word in words), report.differences[0].detail
    assert report.verdict.startswith("NOT EXACT: 1 of ") and f'"{check}" on one' in report.verdict


def test_a_near_tie_is_no_error_and_the_rest_is_still_compared(serve: Serve) -> None:
    report = verified(serve(swap_ties=True), serve(), GREEDY)
    assert report.exact and report.num_near_ties == 1 and "1 near tie" in report.verdict
    greedy = report.findings[0]
    assert (greedy.status, greedy.num_tokens) == (Status.NEAR_TIE, 20)
    assert f"near tie at {TIE}" in greedy.detail
    report = verified(serve(swap_ties=True, wrong_at=12), serve(), GREEDY)
    assert report.differences[0].detail.startswith("token 12 is")


def test_a_near_tie_without_token_ids_ends_the_comparison(serve: Serve) -> None:
    report = verified(serve(swap_ties=True, vllm="ignored"), serve(vllm="ignored"), GREEDY)
    greedy = report.findings[0]
    assert (greedy.status, greedy.num_tokens) == (Status.NEAR_TIE, TIE)
    assert "no token ids" in greedy.detail


def test_what_is_near_comes_from_measured_noise(serve: Serve) -> None:
    """A gap of 0.01 is an error on servers that compute alike, and none where rounding moves logits by 0.01."""
    exact, noisy = ({"tie": 0.01, "noise": noise} for noise in (0.0, 0.01))
    assert (
        statuses(verified(serve(swap_ties=True, **exact), serve(**exact), GREEDY))["greedy"]
        is Status.DIFFERENT
    )
    assert (
        statuses(verified(serve(swap_ties=True, **noisy), serve(**noisy), GREEDY))["greedy"]
        is Status.NEAR_TIE
    )
    # no noise makes this one near
    far = {"tie": 0.7, "noise": 5.0}
    assert (
        statuses(verified(serve(swap_ties=True, **far), serve(**far), GREEDY))["greedy"] is Status.DIFFERENT
    )


def test_tolerances_can_be_given(serve: Serve) -> None:
    wide = Settings(max_new_tokens=20, temperature=0, gap_tolerance=0.1, logprob_tolerance=0.01)
    lies = {"swap_ties": True, "tie": 0.05}
    assert verified(serve(**lies, shift=0.005), serve(tie=0.05), wide).exact
    assert not verified(serve(tie=0.05, shift=0.02), serve(tie=0.05), wide).exact
    assert not verified(serve(swap_ties=True, tie=0.2), serve(tie=0.2), wide).exact


@pytest.mark.parametrize("vllm", ["ids", "ignored"])
def test_without_logprobs_tokens_are_still_compared(serve: Serve, vllm: str) -> None:
    """And where the server gives no ids either, the characters."""
    options: dict[str, Any] = {"vllm": vllm, "logprobs": "none"}
    report = verified(serve(**options), serve(**options, key=1), logprobs=False)
    assert report.exact and statuses(report)["logprobs"] is Status.SKIPPED
    assert (
        "tokens" in report.findings[0].detail if vllm == "ids" else "characters" in report.findings[0].detail
    )
    for lie, check in (({"wrong_at": 3}, "greedy"), ({"sharpen": 3.0}, "sampled")):
        report = verified(serve(**options, **lie, key=1), serve(**options), logprobs=False)
        assert [finding.check for finding in report.differences] == [check]


def test_penalties_and_filters_reach_the_server(serve: Serve) -> None:
    server = serve()
    settings = Settings(max_new_tokens=5, num_draws=50, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    verified(server, serve(), settings)
    sampled = [body for body in server.requests if body["temperature"]]
    assert sorted(body["seed"] for body in sampled) == list(range(50))
    wanted = {"top_k": 3, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.2, "temperature": 0.8}
    assert all(wanted.items() <= body.items() for body in sampled)
    greedy = [body for body in server.requests if not body["temperature"] and body["max_tokens"] == 5]
    assert greedy and all(body["repetition_penalty"] == 1.2 and "top_k" not in body for body in greedy)


@pytest.mark.parametrize(
    "odd", [{"odd_top": float("nan")}, {"odd_top": float("-inf")}, {"odd_noise": float("nan")}]
)
def test_logprobs_that_are_no_numbers_make_no_near_tie(serve: Serve, odd: dict[str, float]) -> None:
    report = verified(serve(wrong_at=7), serve(**odd), GREEDY)
    assert statuses(report)["greedy"] is Status.DIFFERENT and not report.num_near_ties


GIVEN = {"text": " w1", "token_ids": [1], "logprobs": {"tokens": ["token_id:1"], "token_logprobs": [-0.1]}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"choices": {"a": 1}}, "choices: Input should be a valid list"),
        ({"choices": [None]}, r"choices\[0\]: Input should be"),
        ({"choices": [{"message": {"content": "hi"}}]}, r"choices\[0\]\.text: Field required"),
        ({"choices": [GIVEN | {"text": None}]}, r"choices\[0\]\.text"),
        ({"choices": [GIVEN | {"token_ids": [-1]}]}, r"token_ids\[0\].*greater than or equal to 0, got -1"),
        ({"choices": [GIVEN | {"token_ids": "ab"}]}, r"token_ids: Input should be a valid list, got 'ab'"),
        ({"choices": [GIVEN | {"logprobs": {"content": []}}]}, r"logprobs\.tokens: Field required"),
        (
            {"choices": [GIVEN | {"logprobs": {"tokens": ["a"], "token_logprobs": [None]}}]},
            r"logprobs\.token_logprobs\[0\]: Input should be a valid number, got None",
        ),
        (
            {"choices": [GIVEN | {"logprobs": GIVEN["logprobs"] | {"top_logprobs": [None]}}]},
            r"top_logprobs\[0\]: Input should be a valid dictionary",
        ),
        ("[" * 100_000, "must answer with JSON objects"),
    ],
)
def test_answers_of_another_form_are_named(serve: Serve, answer: Any, words: str) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    with pytest.raises(EndpointError, match=f"--endpoint http.*{words}"):
        Endpoint(serve(broken=text).url, "--endpoint")


def test_a_token_name_that_holds_no_id_is_text() -> None:
    choice = Choice(text="a", logprobs=Logprobs(tokens=["token_id:x"], token_logprobs=[-1.0]))
    assert Completion.of([choice]).tokens == ("token_id:x",)


@pytest.mark.parametrize("data", [None, ["x"], [{}], [{"id": 5}]])
def test_a_list_of_models_of_another_form_is_named(
    serve: Serve, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.verify.server.MODELS", data)
    with pytest.raises(EndpointError, match="must answer as OpenAI-compatible servers do: data"):
        Endpoint(serve().url, "--endpoint")
