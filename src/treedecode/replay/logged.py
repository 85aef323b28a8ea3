"""Logs that other programs write, one JSON object per request (docs/replay.md), checked strictly."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treedecode.replay.recording import Recording, Row, Text
from treedecode.shape import TreeShape
from treedecode.trace import first_fault
from treedecode.tree import DraftTree

# Of a candidate whose log did not say it, by rank: means over 318 greedy positions of the default model, four texts.
TYPICAL_LOGPROBS = (-0.7, -3.8, -4.6, -5.1, -5.5, -5.7, -5.9, -6.1)
# Fewer positions than this say nothing about the alignment of top_ids.
_MIN_ALIGNED = 8

TokenId = Annotated[int, Field(ge=0, lt=2**63)]
LogProb = Annotated[float, Field(le=0.0, allow_inf_nan=False)]


class LoggedRequest(BaseModel):
    """One line of a log.

    Attributes:
        id: Any name.
        prompt_ids: Prompt tokens.
        token_ids: Output tokens.
        top_ids: ``[output][k]``, the target's k best candidates for each output token, best first.
        top_logprobs: ``[output][k]``, their log probabilities.
        draft_ids: ``[output][depth][k]``: entry ``i`` was drafted when the output before token ``i`` was known; its
            row ``d`` holds the drafter's candidates for token ``i + d``, best first, after its own best ones for the
            tokens between. An entry may be empty: nothing was drafted there.
        draft_logprobs: Same shape: the log probability that the drafter gives to each.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    id: str | None = None
    prompt_ids: Annotated[list[TokenId], Field(min_length=1)]
    token_ids: list[TokenId]
    top_ids: list[Annotated[list[TokenId], Field(min_length=1)]] | None = None
    top_logprobs: list[list[LogProb]] | None = None
    draft_ids: list[list[Annotated[list[TokenId], Field(min_length=1)]]] | None = None
    draft_logprobs: list[list[list[LogProb]]] | None = None


def parse_request(line: str, where: str) -> Recording:
    """The recording of one line.

    Args:
        line: A JSON object.
        where: File and line, for messages.

    Raises:
        ValueError: The line breaks a rule; names ``where``, the field and the rule.
    """
    try:
        request = LoggedRequest.model_validate_json(line)
    except ValidationError as error:
        raise ValueError(f"{where}: {first_fault(error)}") from None
    try:
        rows = _rows(request)
        trees = _trees(request)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return Recording(
        name=request.id or where,
        prompt_ids=tuple(request.prompt_ids),
        output_ids=tuple(request.token_ids),
        max_emitted=len(request.token_ids),
        trees=trees,
        dense=request.draft_ids is not None,
        rows=rows,
    )


def _rows(request: LoggedRequest) -> dict[Text, Row]:
    tokens, top_ids, top_logprobs = request.token_ids, request.top_ids, request.top_logprobs
    if top_ids is None:
        if top_logprobs is not None:
            raise ValueError("top_logprobs need top_ids")
        # all that is known is what the target chose
        return {(i - 1, ()): ((token,), (0.0,)) for i, token in enumerate(tokens) if i}
    _same_length("top_ids", top_ids, tokens)
    _check_alignment(top_ids, tokens)
    if top_logprobs is not None:
        _same_shape("top_logprobs", top_logprobs, "top_ids", top_ids)
    rows: dict[Text, Row] = {}
    for i in range(1, len(tokens)):
        ids = top_ids[i]
        _check_distinct(f"top_ids[{i}]", ids)
        if top_logprobs is not None:
            _check_descending(f"top_logprobs[{i}]", top_logprobs[i])
            rows[i - 1, ()] = ids, top_logprobs[i]
        else:
            last = len(TYPICAL_LOGPROBS) - 1
            rows[i - 1, ()] = ids, [TYPICAL_LOGPROBS[min(rank, last)] for rank in range(len(ids))]
    return rows


def _trees(request: LoggedRequest) -> dict[int, DraftTree]:
    tokens, drafts, logprobs = request.token_ids, request.draft_ids, request.draft_logprobs
    if drafts is None:
        if logprobs is not None:
            raise ValueError("draft_logprobs need draft_ids")
        return {}
    _same_length("draft_ids", drafts, tokens)
    if logprobs is not None:
        _same_length("draft_logprobs", logprobs, tokens)
    trees = {}
    for i in range(1, len(tokens)):
        for depth, ids in enumerate(drafts[i]):
            _check_distinct(f"draft_ids[{i}][{depth}]", ids)
        if logprobs is not None:
            _same_shape(f"draft_logprobs[{i}]", logprobs[i], f"draft_ids[{i}]", drafts[i])
            for depth, row in enumerate(logprobs[i]):
                _check_descending(f"draft_logprobs[{i}][{depth}]", row)
        trees[i - 1] = leaf_sibling_tree(tokens[i - 1], drafts[i], None if logprobs is None else logprobs[i])
    return trees


def leaf_sibling_tree(
    root: int, candidates: list[list[int]], logprobs: list[list[float]] | None = None
) -> DraftTree:
    """A spine of the best candidates with the others beside it; with log probabilities scored, and best first.

    Args:
        root: The last committed token.
        candidates: ``[depth][k]``, best first.
        logprobs: ``[depth][k]``, descending, or None.
    """
    parents, ranks, tokens, scores = [-1], [0], [root], [0.0]
    spine = 0
    for depth, ids in enumerate(candidates):
        first = len(parents)
        parents += [spine] * len(ids)
        ranks += range(len(ids))
        tokens += ids
        if logprobs is not None:
            scores += [scores[spine] + value for value in logprobs[depth]]
        spine = first
    if logprobs is not None:
        return DraftTree.build(parents, tokens, scores)[0]
    return DraftTree(TreeShape(parents, ranks), tokens)


def _same_length(name: str, values: list, tokens: list[int]) -> None:
    if len(values) != len(tokens):
        raise ValueError(
            f"{name} must have one entry per output token: expected {len(tokens)}, got {len(values)}"
        )


def _same_shape(name: str, values: list[list[float]], like: str, ids: list[list[int]]) -> None:
    expected, got = [len(row) for row in ids], [len(row) for row in values]
    if expected != got:
        place = next(
            (i for i, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), None
        )
        if place is None:
            raise ValueError(
                f"{name} must have the shape of {like}: expected {len(ids)} rows, got {len(values)}"
            )
        raise ValueError(
            f"{name} must have the shape of {like}: expected {expected[place]} entries in row {place}, "
            f"got {got[place]}"
        )


def _check_distinct(name: str, ids: list[int]) -> None:
    if len(set(ids)) < len(ids):
        twice = next(token for place, token in enumerate(ids) if token in ids[:place])
        raise ValueError(f"{name} must have different tokens, got {twice} twice")


def _check_descending(name: str, values: list[float]) -> None:
    for place in range(1, len(values)):
        if values[place] > values[place - 1]:
            raise ValueError(f"{name} must be best first: {values[place]:g} follows {values[place - 1]:g}")


def _check_alignment(top_ids: list[list[int]], tokens: list[int]) -> None:
    """Refuses candidates that are clearly those for the next token: the likeliest mistake in a log."""
    right = sum(ids[0] == token for ids, token in zip(top_ids, tokens, strict=True))
    shifted = sum(ids[0] == token for ids, token in zip(top_ids, tokens[1:], strict=False))
    if len(tokens) >= _MIN_ALIGNED and shifted > 2 * right and shifted > len(tokens) // 2:
        raise ValueError(
            "top_ids[i] must hold the candidates for token_ids[i], best first; here its best one is token_ids[i + 1] "
            f"at {shifted} of {len(tokens)} positions: shift the lists by one"
        )
