"""Drafters that know the truth: they hide it in bushy trees, contradict it, or mix both, on purpose."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from treedecode.drafters import MergedDrafter, SharedStore, make_drafter
from treedecode.drafters.base import DraftContext, Drafter
from treedecode.tree import DraftTree
from treedecode.vllm.config import MAX_BUDGET

VOCAB_SIZE = 262_144
WIDTH, DEPTH = 3, 4

_truth: dict[tuple[int, ...], list[int]] = {}
STORE = SharedStore(50_000)
_mode = "merged"
_most = MAX_BUDGET


@contextmanager
def drafting(
    mode: str, truth: Sequence[tuple[list[int], list[int]]] = (), most: int = MAX_BUDGET
) -> Iterator[None]:
    """Requests that start inside use this drafter.

    Args:
        mode: its name.
        truth: prompts and their right outputs.
        most: drafted nodes per tree, for tests of which every row is dear.
    """
    global _mode, _most
    before, _mode, _most = (_mode, _most), mode, most
    _truth.clear()
    # the first output of a prompt counts
    _truth.update({tuple(prompt): output for prompt, output in reversed(truth)})
    try:
        yield
    finally:
        _mode, _most = before


def make() -> Drafter:
    """What the engine's ``drafter`` option names."""
    drafter = {
        "hidden": Hidden,
        "adversary": Adversary,
        "mixed": Mixed,
        "raising": Raising,
        "malformed": Malformed,
        "sharing": lambda: MergedDrafter(shared=STORE),
    }.get(_mode, lambda: make_drafter(_mode))()
    return drafter if _most == MAX_BUDGET else Cut(drafter, _most)


class Cut:
    """The first nodes of another drafter's trees."""

    def __init__(self, drafter: Drafter, most: int) -> None:
        self.name, self.drafter, self.most = drafter.name, drafter, most

    def begin(self, prompt_ids: list[int]) -> None:
        self.drafter.begin(prompt_ids)

    def propose(self, context: DraftContext) -> DraftTree:
        return self.drafter.propose(context).prefix(self.most)


class Hidden:
    """The truth at a random child of a bushy tree; decoys repeat true tokens below wrong parents."""

    name = "hidden"

    def begin(self, prompt_ids: list[int]) -> None:
        self.prompt = tuple(prompt_ids)
        self.random = random.Random(len(prompt_ids))

    def propose(self, context: DraftContext) -> DraftTree:
        return self.tree(context).within_depth(context.max_depth).prefix(context.max_drafted)

    def rest(self, context: DraftContext) -> list[int]:
        return _truth.get(self.prompt, [])[len(context.token_ids) - len(self.prompt) :]

    def decoy(self, context: DraftContext) -> int:
        if self.random.random() < 0.5:
            return self.random.choice(context.token_ids)
        return self.random.randrange(5, VOCAB_SIZE - 5)

    def tree(self, context: DraftContext) -> DraftTree:
        truth = self.rest(context)
        parents, tokens = [-1], [context.token_ids[-1]]
        level, spine = [0], 0
        for depth in range(DEPTH):
            true = truth[depth] if depth < len(truth) else self.decoy(context)
            self.random.shuffle(level)
            below, next_spine = [], None
            for parent in level:
                if parent == spine:
                    children = [token for _ in range(WIDTH - 1) if (token := self.decoy(context)) != true]
                    children.insert(self.random.randrange(len(children) + 1), true)
                elif self.random.random() < 0.6:
                    children = [true]
                else:
                    children = [self.decoy(context)]
                for token in children:
                    parents.append(parent)
                    tokens.append(token)
                    below.append(len(parents) - 1)
                    if parent == spine and token == true:
                        next_spine = below[-1]
            assert next_spine is not None
            level, spine = [*[node for node in below if node != next_spine][:3], next_spine], next_spine
        return DraftTree.build(parents, tokens)[0]


class Adversary(Hidden):
    """Random topology and tokens, true tokens strewn at wrong places."""

    name = "adversary"

    def tree(self, context: DraftContext) -> DraftTree:
        truth = self.rest(context)[:6]
        size = self.random.randrange(1, context.max_drafted + 1)
        parents = [-1] + [self.random.randrange(node) for node in range(1, size + 1)]
        tokens = [context.token_ids[-1]] + [
            self.random.choice(truth) if truth and self.random.random() < 0.5 else self.decoy(context)
            for _ in range(size)
        ]
        return DraftTree.build(parents, tokens)[0]


class Mixed(Adversary):
    """Per step: nothing, a chain, the truth in a tree, or a random tree."""

    name = "mixed"

    def tree(self, context: DraftContext) -> DraftTree:
        kind = self.random.random()
        if kind < 0.15:
            return DraftTree.root_only(context.token_ids[-1])
        if kind < 0.35:
            tokens = self.rest(context)[: self.random.randrange(1, 8)] or [self.decoy(context)]
            return DraftTree.build(range(-1, len(tokens)), [context.token_ids[-1], *tokens])[0]
        return Hidden.tree(self, context) if kind < 0.7 else Adversary.tree(self, context)


class Raising(Hidden):
    """Fails in every step."""

    name = "raising"

    def propose(self, context: DraftContext) -> DraftTree:
        raise RuntimeError("this drafter always fails")


class Malformed(Hidden):
    """Proposes a token outside the vocabulary, a wrong root, or no tree at all."""

    name = "malformed"

    def propose(self, context: DraftContext) -> DraftTree:
        kind = len(context.token_ids) % 3
        if kind == 0:
            return DraftTree.build([-1, 0], [context.token_ids[-1], VOCAB_SIZE + 7])[0]
        if kind == 1:
            return DraftTree.build([-1, 0], [context.token_ids[-1] + 1, 5])[0]
        return [1, 2, 3]  # type: ignore[return-value]
