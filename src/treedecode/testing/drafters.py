"""Drafters that no one would use, for exactness tests: random trees, and trees made to trip a wrong engine."""

from __future__ import annotations

import random
from collections.abc import Sequence

from treedecode.drafters.base import DraftContext
from treedecode.tree import DraftTree


class RandomDrafter:
    """Random topology and random tokens, half of them from the context.

    Args:
        vocab_size: Tokens are below it.
        seed: Same seed, same trees.
    """

    name = "random"

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size, self._rng = vocab_size, random.Random(seed)

    def begin(self, prompt_ids: list[int]) -> None:
        """Nothing is kept between requests but the random state."""

    def propose(self, context: DraftContext) -> DraftTree:
        count = self._rng.randint(0, context.max_drafted)
        parents, depths = [-1], [0]
        while len(parents) <= count:
            parent = self._rng.randrange(len(parents))
            if depths[parent] < context.max_depth:
                parents.append(parent)
                depths.append(depths[parent] + 1)
            elif context.max_depth == 0:
                break
        tokens = [context.token_ids[-1]] + [self._token(context) for _ in parents[1:]]
        return DraftTree.build(parents, tokens)[0]

    def _token(self, context: DraftContext) -> int:
        if self._rng.random() < 0.5:
            return self._rng.choice(context.token_ids)
        return self._rng.randrange(self._vocab_size)


class AdversarialDrafter:
    """Hides the true continuation at random places of a bushy tree, and sets traps around it.

    True tokens stand under wrong parents and at wrong depths, decoys have subtrees of their own, and the spine is cut
    at a random depth, so every accept length comes up. An engine that reads positions, masks or cache rows wrongly
    goes off the reference within a few steps.

    Args:
        truth: Prompt and right output, as token ids; proposals are right as long as the context is a prefix of it.
        vocab_size: Tokens are below it.
        seed: Same seed, same trees.
    """

    name = "adversarial"

    def __init__(self, truth: Sequence[int], vocab_size: int, seed: int = 0) -> None:
        self._truth, self._vocab_size, self._rng = list(truth), vocab_size, random.Random(seed)

    def begin(self, prompt_ids: list[int]) -> None:
        """Nothing is kept between requests but the random state."""

    def propose(self, context: DraftContext) -> DraftTree:
        rng = self._rng
        done = len(context.token_ids)
        ahead = self._truth[done : done + context.max_depth]
        right_depth = rng.randint(0, min(len(ahead), 6))
        parents, tokens, depths = [-1], [context.token_ids[-1]], [0]
        spine = 0
        level = [0]
        for depth in range(1, min(context.max_depth, 7) + 1):
            children: list[tuple[int, int]] = []
            for parent in level:
                decoys = [(parent, self._decoy(ahead)) for _ in range(rng.randint(0, 2))]
                if parent != spine and rng.random() < 0.6 and ahead:
                    decoys.append((parent, ahead[min(depth, len(ahead)) - 1]))  # right token, wrong parent
                children += decoys
            if depth <= right_depth:
                children.append((spine, ahead[depth - 1]))
            rng.shuffle(children)
            level, next_spine = [], -1
            for parent, token in children:
                if len(parents) > context.max_drafted:
                    break
                if depth <= len(ahead) and parent == spine and token == ahead[depth - 1]:
                    next_spine = len(parents)
                level.append(len(parents))
                parents.append(parent)
                tokens.append(token)
                depths.append(depth)
            spine = next_spine
            if not level:
                break
        return DraftTree.build(parents, tokens)[0]

    def _decoy(self, ahead: Sequence[int]) -> int:
        if ahead and self._rng.random() < 0.3:
            return self._rng.choice(ahead)
        return self._rng.randrange(self._vocab_size)
