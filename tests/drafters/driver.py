"""A decode loop without a model: the target is a function of the text, so every row is known at once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from treedecode.accept import accept_greedy
from treedecode.drafters import DraftContext, Drafter, VerifiedRows
from treedecode.tree import DraftTree

# The target's best next tokens and their logits, best first, after a text.
Target = Callable[[list[int]], tuple[list[int], list[float]]]


def markov_target(vocab_size: int = 40, order: int = 2, seed: int = 0, num_best: int = 8) -> Target:
    """A target whose choice depends on the last ``order`` tokens; its runners-up are other likely tokens."""

    def target(text: list[int]) -> tuple[list[int], list[float]]:
        rng = random.Random(f"{seed} {text[-order:]}")
        ids = rng.sample(range(vocab_size), num_best)
        logits = sorted((rng.gauss(0, 3) for _ in ids), reverse=True)
        return ids, logits

    return target


def recorded_target(text: list[int]) -> Target:
    """A target that says ``text`` whatever it is shown, sure of itself."""

    def target(shown: list[int]) -> tuple[list[int], list[float]]:
        right = text[len(shown)] if len(shown) < len(text) else 0
        return [right, (right + 1) % 7], [9.0, 1.0]

    return target


@dataclass
class Outcome:
    """Output, trees and what was emitted of each."""

    token_ids: list[int]
    trees: list[DraftTree] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)

    @property
    def mean_emitted(self) -> float:
        return sum(map(len, self.paths)) / len(self.paths)


def rows_of(target: Target, text: list[int], tree: DraftTree, path: list[int]) -> VerifiedRows:
    """What the target says after every node of ``tree``, whose root is the last token of ``text``."""
    texts = [list(text)]
    for node in range(1, tree.num_nodes):
        texts.append([*texts[tree.shape.parent_tuple[node]], tree.token_tuple[node]])
    best = [target(shown) for shown in texts]
    ids, logits = np.array([ids for ids, _ in best]), np.array([row for _, row in best], np.float32)
    return VerifiedRows(tree, len(text) - 1, tuple(path), ids, logits)


def decode(
    drafter: Drafter,
    target: Target,
    prompt: list[int],
    num_tokens: int,
    max_drafted: int = 8,
    max_depth: int = 64,
    prompt_rows: bool = True,
) -> Outcome:
    """Greedy decoding of ``num_tokens`` tokens with ``drafter``."""
    drafter.begin(list(prompt))
    text = [*prompt, target(prompt)[0][0]]
    rows: tuple[VerifiedRows, ...] = ()
    if prompt_rows:
        chain = DraftTree.trusted(range(-1, len(prompt) - 1), prompt)
        read = rows_of(target, prompt[:1], chain, list(range(len(prompt))))
        rows = (read,)
    outcome = Outcome(text)
    while len(text) < len(prompt) + num_tokens:
        room = len(prompt) + num_tokens - len(text) - 1
        tree = drafter.propose(DraftContext(text, len(prompt), max_drafted, min(max_depth, room), rows))
        verified = rows_of(target, text, tree, [])
        accepted = accept_greedy(tree, verified.top_ids[:, 0].tolist())
        rows = (
            VerifiedRows(tree, len(text) - 1, tuple(accepted.path), verified.top_ids, verified.top_logits),
        )
        text.extend(accepted.token_ids)
        outcome.trees.append(tree)
        outcome.paths.append(accepted.path)
    return Outcome(text[len(prompt) :], outcome.trees, outcome.paths)


def plain(target: Target, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy decoding without drafts."""
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(target(text)[0][0])
    return text[len(prompt) :]


def reach_error(outcome: Outcome) -> float:
    """Mean distance between said and seen reach over ten bins, weighted by their size."""
    said, seen = [], []
    for tree, path in zip(outcome.trees, outcome.paths, strict=True):
        assert tree.scores is not None
        said += [math.exp(score) for score in tree.scores[1:]]
        seen += [node in path for node in range(1, tree.num_nodes)]
    bins = np.minimum((np.array(said) * 10).astype(int), 9)
    return sum(
        abs(float(np.sum(np.array(said)[bins == b]) - np.sum(np.array(seen)[bins == b]))) for b in range(10)
    ) / len(said)
