"""Reads traces (docs/trace.md) and logs of other programs (docs/replay.md) as recordings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from treedecode.json_text import parse_json
from treedecode.replay.logged import TokenId, parse_request
from treedecode.replay.recording import Recording, Row, Text, tails, text_of
from treedecode.shape import TreeShape
from treedecode.surface import Cost, cost_from_json
from treedecode.trace import StepRecord, Trace, first_fault, read_trace
from treedecode.tree import DraftTree


class _Settings(BaseModel):
    """What replay uses of a header's settings."""

    model_config = ConfigDict(strict=True)

    max_new_tokens: NonNegativeInt | None = None
    budget: NonNegativeInt | Literal["auto"] | None = None
    drafter: str | None = None
    dense: bool = False
    stop_ids: list[TokenId] = []


class _Header(BaseModel):
    """What replay uses of a trace's header; other fields are ignored."""

    model_config = ConfigDict(strict=True)

    prompt_ids: list[TokenId]
    max_positions: PositiveInt | None = None
    settings: _Settings = _Settings()
    cost: Any = None


def read_recordings(paths: Sequence[str | Path]) -> list[Recording]:
    """All recordings of some files, in order: one of a trace, one per line of a log.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is neither a trace nor a log, or is damaged; names file and line or step.
    """
    return [recording for path in paths for recording in read_file(path)]


def read_file(path: str | Path) -> list[Recording]:
    """The recordings of one file; raises as :func:`read_recordings`."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text: {error}") from None
    if _is_trace(text):
        return [from_trace(read_trace(path), str(path))]
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty: expected a trace, or a log with one JSON object per request")
    return [parse_request(line, f"{path}, line {number}") for number, line in lines]


def _is_trace(text: str) -> bool:
    try:
        first = parse_json(text.partition("\n")[0])
    except ValueError:
        return False
    return isinstance(first, dict) and "type" in first


def from_trace(trace: Trace, name: str) -> Recording:
    """The recording of a trace.

    Args:
        trace: As read by ``read_trace``.
        name: Shown in messages.

    Raises:
        ValueError: Steps contradict each other or the header; names the step.
    """
    try:
        header = _Header.model_validate_json(json.dumps(trace.header))
    except ValidationError as error:
        raise ValueError(f"{name}: the header's {first_fault(error)}") from None
    prompt_ids, settings = header.prompt_ids, header.settings
    output: list[int] = [trace.steps[0].token_ids[0]] if trace.steps else []
    trees: dict[int, DraftTree] = {}
    for step in trace.steps:
        try:
            trees[len(output) - 1] = tree = _tree(step)
            _check_step(step, tree, len(prompt_ids), output)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}, step {step.index}: {error}") from None
        output += step.emitted_ids
    rows: dict[Text, Row] = {}
    for step, (position, tree) in zip(trace.steps, trees.items(), strict=True):
        for tail, ids, logprobs in zip(tails(tree), step.top_ids, step.top_logprobs, strict=True):
            known = [float("-inf") if value is None else value for value in logprobs]
            rows[text_of(output, position, tail)] = ids, known
    return Recording(
        name=name,
        prompt_ids=tuple(prompt_ids),
        output_ids=tuple(output),
        max_emitted=_max_emitted(header, len(prompt_ids), len(output)),
        trees=trees,
        dense=settings.dense,
        rows=rows,
        drafter=settings.drafter,
        budget=settings.budget,
        step_ms=tuple((len(step.parents), step.verify_ms) for step in trace.steps if step.verify_ms > 0.0),
        draft_ms=tuple(step.draft_ms for step in trace.steps if len(step.parents) > 1),
        cost=_cost(header.cost, name),
    )


def _tree(step: StepRecord) -> DraftTree:
    scores = step.scores
    return DraftTree(
        TreeShape(step.parents),
        step.token_ids,
        None if scores is None else [float("-inf") if score is None else score for score in scores],
        step.sources,
    )


def _check_step(step: StepRecord, tree: DraftTree, num_prompt: int, output: list[int]) -> None:
    if step.token_ids[0] != output[-1]:
        raise ValueError(f"its root must be the last emitted token {output[-1]}, got {step.token_ids[0]}")
    expected = num_prompt + len(output) - 1
    if step.prefix_len != expected:
        raise ValueError(
            f"prefix_len must be {expected}, as many tokens as come before its root, got {step.prefix_len}"
        )
    if any(
        not ids or len(ids) != len(known) for ids, known in zip(step.top_ids, step.top_logprobs, strict=True)
    ):
        raise ValueError(
            "top_ids and top_logprobs must have the same number of entries, at least 1, for every node"
        )
    if any(known[0] is None for known in step.top_logprobs):
        raise ValueError("top_logprobs must start with a number for every node, got null")
    if not step.emitted_ids:
        raise ValueError("every step emits a token, got none")
    for name, ids in (("emitted_ids", step.emitted_ids), *(("top_ids", row) for row in step.top_ids)):
        if not 0 <= min(ids) <= max(ids) < 2**63:
            raise ValueError(f"{name} must be token ids, at least 0 and below 2**63, got {ids}")
    for node, parent, token in zip(step.path[1:], step.path, step.emitted_ids, strict=False):
        if tree.shape.parent_tuple[node] != parent or tree.token_tuple[node] != token:
            raise ValueError(f"path must run down the tree and spell the emitted tokens, got {step.path}")
    if len(step.path) > 1 + len(step.emitted_ids):
        raise ValueError(
            f"path has {len(step.path) - 1} drafted nodes, but {len(step.emitted_ids)} tokens were emitted"
        )


def _max_emitted(header: _Header, num_prompt: int, num_emitted: int) -> int:
    """Tokens that the run was allowed to emit; at least those that it did."""
    limit, positions = header.settings.max_new_tokens, header.max_positions
    if limit is None:
        return num_emitted
    if positions is not None:
        limit = min(limit, positions - num_prompt)
    return max(limit, num_emitted)


def _cost(cost: Any, name: str) -> Cost | None:
    if cost is None:
        return None
    try:
        return cost_from_json(json.dumps(cost))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: the header's cost cannot be read: {error}") from None
