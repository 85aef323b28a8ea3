"""The checks of a loaded model: greedy, hostile drafts, logprobs, sampled, draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from treedecode.engines.hf import stream
from treedecode.engines.load import LoadedModel
from treedecode.engines.request import check_prompt
from treedecode.models.progress import Progress, silent
from treedecode.testing.drafters import AdversarialDrafter
from treedecode.verify.draws import count_draws, most_open
from treedecode.verify.judged import Judge, Output, Rule
from treedecode.verify.logprobs import StepLogprobs, compare_logprobs
from treedecode.verify.plain import PlainModel
from treedecode.verify.processed import processed
from treedecode.verify.prompts import DEFAULT_PROMPTS, Prompt
from treedecode.verify.results import Finding, Report, Status
from treedecode.verify.rules import Drawn, Greedy
from treedecode.verify.settings import Settings

# Drafted nodes per step of the drafts that are made to mislead.
_HOSTILE_BUDGET = 24


def verify_model(
    model: LoadedModel,
    prompts: Sequence[Prompt] = DEFAULT_PROMPTS,
    settings: Settings | None = None,
    progress: Progress = silent,
) -> Report:
    """Compares trees with plain decoding on a loaded model.

    Args:
        model: From ``treedecode.load``.
        prompts: What to continue.
        settings: How; None for the defaults.
        progress: Called with the name of every stage, returns a context manager around it.

    Raises:
        TypeError, ValueError: A prompt is empty, too long or holds ids outside the vocabulary.
    """
    return Report(tuple(check_model(model, prompts, settings or Settings(), progress)))


def check_model(
    model: LoadedModel,
    prompts: Sequence[Prompt],
    settings: Settings,
    progress: Progress = silent,
) -> Iterator[Finding]:
    """As :func:`verify_model`, one finding after the other: what was found stays if it is interrupted."""
    encoded = [(prompt.name, prompt_ids(model, prompt)) for prompt in prompts]
    for number, (name, ids) in enumerate(encoded, 1):
        checks = _Checks(model, name, ids, settings)
        with progress(f"Prompt {number} of {len(encoded)}, {name}: greedy"):
            findings = list(checks.greedy())
        yield from findings
        for seed in range(settings.seed, settings.seed + settings.num_seeds) if settings.samples else ():
            with progress(f"Prompt {number} of {len(encoded)}, {name}: sampled with seed {seed}"):
                finding = checks.sampled(seed)
            yield finding
        if settings.samples:
            with progress(f"Prompt {number} of {len(encoded)}, {name}: {settings.num_draws} draws"):
                finding = checks.draws()
            yield finding


def prompt_ids(model: LoadedModel, prompt: Prompt) -> tuple[int, ...]:
    """Token ids of a prompt, checked.

    Raises:
        TypeError, ValueError: As ``treedecode.stream``, with the prompt's name.
    """
    content = prompt.content
    ids = model.tokenizer(content)["input_ids"] if isinstance(content, str) else content
    try:
        return check_prompt(ids, model.target.vocab_size, model.target.max_positions)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{prompt.name}: {error}") from error


class _Checks:
    """All checks of one prompt."""

    def __init__(self, model: LoadedModel, name: str, ids: tuple[int, ...], settings: Settings) -> None:
        self._model, self._name, self._ids, self._settings = model, name, ids, settings
        self._plain = PlainModel(model.target, settings.repetition_penalty)
        self._sampled_ids: tuple[int, ...] = ()

    def greedy(self) -> Iterator[Finding]:
        """Trees, drafts made to mislead, and the logprobs of the latter's steps."""
        settings, name = self._settings, self._name
        judge = self._judge(Greedy())
        plain = self._run("plain", budget=0)
        trees = self._run("trees", budget=settings.budget, drafter=settings.drafter)
        yield judge.compare(name, "greedy", trees, plain)
        hostile = AdversarialDrafter([*self._ids, *plain.token_ids], self._model.target.vocab_size)
        steps = StepLogprobs()
        misled = self._run("hostile drafts", budget=_HOSTILE_BUDGET, drafter=hostile, observer=steps)
        yield judge.compare(name, "greedy, hostile drafts", misled, plain)
        yield compare_logprobs(
            name, self._plain, self._ids, misled.token_ids, steps.logprobs, settings.logprob_tolerance
        )

    def sampled(self, seed: int) -> Finding:
        """The same seed with trees and without, and every token what that seed draws."""
        settings = self._settings
        params = settings.sampling(seed)
        options = {key: getattr(params, key) for key in ("temperature", "top_k", "top_p", "min_p", "seed")}
        plain = self._run("plain", budget=0, **options)
        trees = self._run("trees", budget=settings.budget, drafter=settings.drafter, **options)
        self._sampled_ids = plain.token_ids
        return self._judge(Drawn(params)).compare(self._name, f"sampled, seed {seed}", trees, plain)

    def draws(self) -> Finding:
        """Many draws of one tree step, where the last sampled output was least certain."""
        settings, ids, output = self._settings, self._ids, self._sampled_ids
        params = settings.sampling(settings.seed)
        room = self._model.target.max_positions
        # the tree is two tokens deep, and its last row says a third
        last = len(output) if room is None else min(len(output), room - len(ids) - 2)
        if last < 1:
            return Finding(self._name, "draws", Status.SKIPPED, "the output is too short for a tree")
        rows = [processed(row, params) for row in self._plain.rows(ids, output[:last])]
        place = most_open(rows[1:]) + 1 if last > 1 else 0
        found = count_draws(self._model.target, self._plain, ids, output[:place], params, settings.num_draws)
        detail = f"{found.num_counted} draws at token {place}: {found.words}"
        if found.impossible is not None:
            detail = f"{self._show(found.impossible)} was drawn at token {place}, where it has probability 0"
        status = Status.EXACT if found.passed else Status.DIFFERENT
        return Finding(self._name, "draws", status, detail, found.num_counted, 0, found.numbers)

    def _judge(self, rule: Rule) -> Judge:
        target = self._model.target
        return Judge(self._plain, self._ids, rule, target.dtype, self._settings.gap_tolerance, self._show)

    def _run(self, name: str, **options: Any) -> Output:
        settings = self._settings
        running = stream(
            self._model,
            self._ids,
            max_new_tokens=settings.max_new_tokens,
            repetition_penalty=settings.repetition_penalty,
            **options,
        )
        token_ids = tuple(token for chunk in running for token in chunk.token_ids)
        stats = running.generation.stats
        return Output(name, token_ids, stats.num_drafted, stats.num_accepted)

    def _show(self, token_id: int) -> str:
        return repr(self._model.tokenizer.decode([token_id]))
