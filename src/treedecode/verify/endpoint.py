"""The checks of a running server: greedy, logprobs, stream, sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treedecode.models.progress import Progress, silent
from treedecode.verify.client import Endpoint, EndpointError
from treedecode.verify.completion import Completion, Token
from treedecode.verify.followed import follow, gap_of, greedy_finding, logprob_finding
from treedecode.verify.prompts import DEFAULT_PROMPTS, Prompt
from treedecode.verify.reference import Reference, draw_samples, greedy_options
from treedecode.verify.results import Finding, Report, Status, first_difference
from treedecode.verify.settings import LOGPROB_TOLERANCE, Settings


def verify_endpoint(
    trees: Endpoint,
    plain: Reference,
    prompts: Sequence[Prompt] = DEFAULT_PROMPTS,
    settings: Settings | None = None,
    progress: Progress = silent,
) -> Report:
    """Compares a server that has trees with one that has none, or with a model loaded here.

    Args:
        trees: The server with trees.
        plain: ``reference.PlainEndpoint`` or ``reference.LocalModel``.
        prompts: What to continue; texts are sent as they are.
        settings: How; None for the defaults. Budget and drafter are the server's own affair.
        progress: Called with the name of every stage, returns a context manager around it.

    Raises:
        EndpointError: A server went away or refused a request, or gives no token ids to compare with a model.
    """
    return Report(tuple(check_endpoint(trees, plain, prompts, settings or Settings(), progress)))


def check_endpoint(
    trees: Endpoint,
    plain: Reference,
    prompts: Sequence[Prompt],
    settings: Settings,
    progress: Progress = silent,
) -> Iterator[Finding]:
    """As :func:`verify_endpoint`, one finding after the other: what was found stays if it is interrupted."""
    count, options = settings.max_new_tokens, greedy_options(settings)
    for number, prompt in enumerate(prompts, 1):
        stage = f"Prompt {number} of {len(prompts)}, {prompt.name}"
        with progress(f"{stage}: greedy"):
            whole = trees.complete(prompt.content, count, options)
            _check_ids(trees, plain, whole.tokens)
            followed = follow(whole, plain, prompt.content, settings)
            findings = [greedy_finding(prompt.name, whole, followed)]
            findings.append(logprob_finding(prompt.name, whole, followed, plain, settings))
            streamed = trees.stream(prompt.content, count, options)
            findings.append(_stream(prompt.name, streamed, whole, settings))
        yield from findings
        if settings.samples:
            with progress(f"{stage}: {settings.num_draws} samples"):
                finding = _sampled(prompt, trees, plain, settings)
            yield finding


def _stream(name: str, streamed: Completion, whole: Completion, settings: Settings) -> Finding:
    """Is the streamed text that of the whole answer?"""
    count = len(streamed.text)
    if streamed.text == whole.text:
        detail = f"{count} characters in {streamed.num_pieces} pieces"
        return Finding(name, "stream", Status.EXACT, detail, len(streamed.tokens))
    mine, other = streamed.tokens, whole.tokens
    place = first_difference(mine, other)
    limit = LOGPROB_TOLERANCE if settings.gap_tolerance is None else settings.gap_tolerance
    gap = gap_of(whole, place, mine[place]) if place < min(len(mine), len(other)) else None
    if gap is not None and gap <= limit:
        detail = f"another run of the same request went another way at a near tie, token {place}"
        return Finding(name, "stream", Status.NEAR_TIE, detail, place, 1)
    at = first_difference(streamed.text, whole.text)
    parts = [repr(text[at : at + 20]) for text in (streamed.text, whole.text)]
    detail = f"differs from character {at} on: {parts[0]}, not streamed {parts[1]}"
    return Finding(name, "stream", Status.DIFFERENT, detail, place)


def _sampled(prompt: Prompt, trees: Endpoint, plain: Reference, settings: Settings) -> Finding:
    """Do samples come from the same distribution?"""
    samples = draw_samples(trees, prompt.content, settings)
    _check_ids(trees, plain, [token for sample in samples for token in sample])
    found = plain.compare(prompt.content, samples)
    detail = f"{found.num_counted} tokens of {len(samples)} samples: {found.words}"
    if found.impossible is not None:
        detail = f"{found.impossible!r} was drawn, which has probability 0 there"
    status = Status.EXACT if found.passed else Status.DIFFERENT
    return Finding(prompt.name, "sampled", status, detail, found.num_counted, 0, found.numbers)


def _check_ids(trees: Endpoint, plain: Reference, tokens: Sequence[Token]) -> None:
    if plain.needs_ids and not all(isinstance(token, int) for token in tokens):
        raise EndpointError(
            f"{trees.name} gives no token ids, which a comparison with a MODEL needs: expected those that vLLM gives "
            "for return_token_ids; or compare it with --plain-endpoint"
        )
