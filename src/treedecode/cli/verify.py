"""``treedecode verify``: is the output of trees exact, on this model or this server?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import treedecode as td
from treedecode.cli.numbers import integer, number
from treedecode.cli.options import Device, Dtype, Revision, parse_budget
from treedecode.cli.outcome import CHECK_FAILED, INTERRUPTED, bad_input
from treedecode.cli.output import print_json
from treedecode.cli.progress import Stages
from treedecode.cli.prompt import encode_prompt, read_prompt
from treedecode.models import quiet_transformers

if TYPE_CHECKING:
    from treedecode.verify.client import Endpoint
    from treedecode.verify.prompts import Prompt
    from treedecode.verify.results import Finding, Report
    from treedecode.verify.settings import Settings

_BUDGET, _DRAFTER = "16", "merged"


def verify(
    model: Annotated[
        str | None,
        typer.Argument(
            help='"default" (Gemma 3 270M, under the Gemma terms of use), a folder in transformers format, or a Hub '
            "id. With --endpoint, what to compare the server with if there is no --plain-endpoint."
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="Text to continue; may be repeated. Six short ones if none is given."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(help="Read a prompt from this file, without its last line break; may be repeated."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not apply the chat template of an instruct model.")
    ] = False,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="An OpenAI-compatible server with trees to verify.")
    ] = None,
    plain_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="The same model served without trees.")
    ] = None,
    served_model: Annotated[
        str | None,
        typer.Option(help="The model's name on the servers; the first that they list if not given."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", show_envvar=True, help="Key of the servers.")
    ] = None,
    logprobs: Annotated[
        bool, typer.Option("--logprobs/--no-logprobs", help="Whether to ask servers for logprobs.")
    ] = True,
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    max_new_tokens: Annotated[int, typer.Option(parser=integer, help="Tokens per output.")] = 64,
    budget: Annotated[
        str | None,
        typer.Option(
            help=f'Drafted nodes per step, {_BUDGET} if not given; "auto" for as many as pay, which may be none.'
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(help=f"merged, recycling, suffix or prompt-lookup; {_DRAFTER} if not given."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(parser=number, help="Of the sampled checks; 0 leaves them out.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(parser=integer, help="Of the sampled checks.")] = None,
    top_p: Annotated[float | None, typer.Option(parser=number, help="Of the sampled checks.")] = None,
    min_p: Annotated[float | None, typer.Option(parser=number, help="Of the sampled checks.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(parser=number, help="Of all checks.")] = None,
    seed: Annotated[int, typer.Option(parser=integer, help="First seed of the sampled checks.")] = 0,
    num_seeds: Annotated[
        int, typer.Option(parser=integer, help="Sampled outputs per prompt, compared token for token.")
    ] = 1,
    num_draws: Annotated[
        int, typer.Option(parser=integer, help="Draws (of servers: samples) per prompt that are counted.")
    ] = 400,
    logprob_tolerance: Annotated[
        float | None, typer.Option(parser=number, help="Largest difference of a logprob; 0.001 if not given.")
    ] = None,
    gap_tolerance: Annotated[
        float | None,
        typer.Option(parser=number, help="Largest gap of a near tie; as rounding is measured if not given."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> int:
    """Compare trees with plain decoding, token for token, on your own model, prompts and servers.

    Exits with 0 if nothing differs (near ties within rounding are counted apart), with 1 if something does.
    """
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "num_seeds": num_seeds,
        "num_draws": num_draws,
        "logprob_tolerance": logprob_tolerance,
        "gap_tolerance": gap_tolerance,
    }
    local = {"--device": device, "--dtype": dtype, "--revision": revision}
    _check_flags(model, endpoint, plain_endpoint, {"--budget": budget, "--drafter": drafter}, local)
    if endpoint is None:
        options |= {"budget": parse_budget(budget or _BUDGET), "drafter": drafter or _DRAFTER}
    texts = [(f"prompt {number}", read_prompt(text, None)) for number, text in enumerate(prompt or [], 1)]
    texts += [(path.name, read_prompt(None, path)) for path in file or []]
    stages = Stages()
    with stages("Starting"), bad_input():
        # here, not above: other commands need not wait for torch and transformers
        from treedecode.cli.verify_text import print_report, report_json, subject_of
        from treedecode.verify.prompts import DEFAULT_PROMPTS, Prompt
        from treedecode.verify.settings import Settings

        settings = Settings(**options)
        prompts = [Prompt(name, text) for name, text in texts] or list(DEFAULT_PROMPTS)
        quiet_transformers()
    with ExitStack() as closing, bad_input():
        servers = [
            _connect(closing, flag, url, served_model, api_key, logprobs)
            for flag, url in (("--endpoint", endpoint), ("--plain-endpoint", plain_endpoint))
            if url is not None
        ]
        loaded = None
        if plain_endpoint is None:
            loaded = td.load(
                model or "default", device=device, dtype=dtype, revision=revision, progress=stages
            )
            prompts = [_encoded(loaded, prompt, raw) for prompt in prompts]
        trees, plain = [*servers, None, None][:2]
        subject = subject_of(trees, plain, loaded)
        report = _run(_checks(trees, plain, loaded, prompts, settings, stages))
    if as_json:
        print_json(report_json(report, subject, options))
    else:
        print_report(report, subject)
    if not report.complete:
        return INTERRUPTED
    return 0 if report.exact else CHECK_FAILED


def _check_flags(
    model: str | None,
    endpoint: str | None,
    plain_endpoint: str | None,
    trees: dict[str, str | None],
    local: dict[str, str | None],
) -> None:
    """Which flags go together."""
    if endpoint is None:
        if plain_endpoint is not None:
            raise typer.TyperException(
                "--plain-endpoint needs a server to compare with it: expected --endpoint URL"
            )
        return
    for flag, value in trees.items():
        if value is not None:
            raise typer.TyperException(f"{flag} is up to the server that --endpoint names, got {value!r}")
    if plain_endpoint is None and model is None:
        raise typer.TyperException(
            "--endpoint needs something without trees to compare with: expected --plain-endpoint URL or a MODEL"
        )
    if plain_endpoint is not None:
        for flag, value in {"MODEL": model, **local}.items():
            if value is not None:
                raise typer.TyperException(
                    f"{flag} has no use where --plain-endpoint is given, got {value!r}"
                )


def _connect(
    closing: ExitStack, flag: str, url: str, model: str | None, api_key: str | None, logprobs: bool
) -> Endpoint:
    from treedecode.verify.client import Endpoint

    return closing.enter_context(Endpoint(url, flag, model, api_key, logprobs))


def _encoded(model: td.LoadedModel, prompt: Prompt, raw: bool) -> Prompt:
    """A prompt as token ids, checked."""
    from treedecode.verify.local import prompt_ids

    content = prompt.content
    encoded = encode_prompt(model.tokenizer, content, raw) if isinstance(content, str) else content
    made = replace(prompt, content=encoded if isinstance(encoded, str) else tuple(encoded))
    return replace(prompt, content=prompt_ids(model, made))


def _checks(
    trees: Endpoint | None,
    plain: Endpoint | None,
    loaded: td.LoadedModel | None,
    prompts: Sequence[Prompt],
    settings: Settings,
    stages: Stages,
) -> Iterator[Finding]:
    from treedecode.verify.endpoint import check_endpoint
    from treedecode.verify.local import check_model
    from treedecode.verify.reference import LocalModel, PlainEndpoint

    if trees is not None and plain is not None:
        return check_endpoint(trees, PlainEndpoint(plain, settings), prompts, settings, stages)
    if loaded is None:
        raise ValueError("nothing to compare trees with: expected a model or a server without trees")
    if trees is not None:
        return check_endpoint(trees, LocalModel(loaded, settings), prompts, settings, stages)
    return check_model(loaded, prompts, settings, stages)


def _run(findings: Iterator[Finding]) -> Report:
    """All findings, or on Ctrl-C those made until then."""
    from treedecode.verify.results import Report

    made: list[Finding] = []
    try:
        made.extend(findings)
    except KeyboardInterrupt:
        return Report(tuple(made), complete=False)
    return Report(tuple(made))
