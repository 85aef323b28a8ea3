"""Run groups of cases on an engine, and say what came out in plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.vllm.cases import Case


@dataclass(frozen=True)
class Answer:
    """One completion.

    Attributes:
        token_ids: its tokens.
        text: its text.
        finish_reason: vLLM's.
        logprobs: per token, by token id; None if not asked for.
        num_cached: prompt tokens that came from the prefix cache.
    """

    token_ids: list[int]
    text: str
    finish_reason: str | None
    logprobs: list[dict[str, float]] | None
    num_cached: int

    @classmethod
    def of(cls, request: Any, completion: Any) -> Answer:
        logprobs = completion.logprobs and [
            {str(token): entry.logprob for token, entry in position.items()}
            for position in completion.logprobs
        ]
        return cls(
            list(completion.token_ids),
            completion.text,
            completion.finish_reason,
            logprobs,
            request.num_cached_tokens or 0,
        )

    def difference(self, other: Answer) -> str:
        """What differs in what was emitted; empty if nothing does."""
        for name in ("token_ids", "text", "finish_reason"):
            if getattr(self, name) != getattr(other, name):
                return f"{name}: {getattr(self, name)!r} != {getattr(other, name)!r}"
        return ""

    def logprob_gap(self, other: Answer) -> float:
        """Largest difference of a logprob; infinite if other tokens are listed."""
        gap = 0.0
        for mine, others in zip(self.logprobs or [], other.logprobs or [], strict=True):
            for token in mine:
                # two candidates can tie within rounding at the last place
                if token in others:
                    gap = max(gap, abs(mine[token] - others[token]))
        return gap


def run_cases(llm: Any, cases: Sequence[Case]) -> list[list[Answer]]:
    """Answers of all cases, run together: one list per case, with ``n`` answers."""
    from vllm import TokensPrompt

    tokenizer = llm.get_tokenizer()
    prompts = [TokensPrompt(prompt_token_ids=case.token_ids(tokenizer)) for case in cases]
    params = [case.sampling_params() for case in cases]
    return [
        [Answer.of(request, completion) for completion in request.outputs]
        for request in llm.generate(prompts, params, use_tqdm=False)
    ]


def to_plain(answers: list[list[Answer]]) -> list[list[dict[str, Any]]]:
    """For JSON."""
    return [[asdict(answer) for answer in case] for case in answers]


def from_plain(answers: list[list[dict[str, Any]]]) -> list[list[Answer]]:
    """From JSON."""
    return [[Answer(**answer) for answer in case] for case in answers]
