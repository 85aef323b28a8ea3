"""Small sampling problems: two models that know every path, and a tree shape."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from treedecode.testing.reference import Drafted, Row, without
from treedecode.tree import TreeShape

Path = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """Two models over a small vocabulary, and a tree shape.

    Attributes:
        parents: topology, siblings in draw order.
        vocab_size: number of tokens.
        target: the target's distribution after a path of tokens.
        draft: the drafter's. Where it has fewer tokens than a node has children, the children left over are token
            0, which is no draw and which every walk must reject.
        name: for messages.
    """

    parents: tuple[int, ...]
    vocab_size: int
    target: Callable[[Path], Row]
    draft: Callable[[Path], Row]
    name: str = ""

    @cached_property
    def shape(self) -> TreeShape:
        """The topology."""
        return TreeShape.from_parents(self.parents)

    def drafts(self, replacement: bool) -> Iterator[tuple[Drafted, float]]:
        """Every tree that can be drawn, with its probability."""
        yield from self._grow([0], [()], 1.0, replacement)

    def _grow(
        self, tokens: list[int], paths: list[Path], mass: float, replacement: bool
    ) -> Iterator[tuple[Drafted, float]]:
        node = len(tokens)
        if node == len(self.parents):
            rows = [self.target(path) for path in paths], [self.draft(path) for path in paths]
            yield Drafted(self.parents, tokens, *rows), mass
            return
        parent = self.parents[node]
        row = self.draft(paths[parent])
        if not replacement:
            for elder in range(1, node):
                if self.parents[elder] == parent:
                    row = without(row, tokens[elder])
        if sum(row) == 0:
            row = [1.0] + [0.0] * (self.vocab_size - 1)
        for token, probability in enumerate(row):
            if probability > 0:
                grown = [*paths, (*paths[parent], token)]
                yield from self._grow([*tokens, token], grown, mass * probability, replacement)

    def sample(self, rng: random.Random, replacement: bool) -> Drafted:
        """One tree, drawn by the drafter."""
        tokens: list[int] = [0]
        paths: list[Path] = [()]
        for node in range(1, len(self.parents)):
            parent = self.parents[node]
            row = self.draft(paths[parent])
            for elder in range(1, node):
                if self.parents[elder] == parent and not replacement:
                    row = without(row, tokens[elder])
            tokens.append(rng.choices(range(self.vocab_size), row)[0] if sum(row) else 0)
            paths.append((*paths[parent], tokens[-1]))
        rows = [self.target(path) for path in paths], [self.draft(path) for path in paths]
        return Drafted(self.parents, tokens, *rows)

    def target_mass(self, sequence: Path) -> float:
        """The target's probability of ``sequence``."""
        mass = 1.0
        for length, token in enumerate(sequence):
            mass *= self.target(sequence[:length])[token]
        return mass


def random_problem(parents: Sequence[int], vocab_size: int, seed: int, kind: str = "any") -> Problem:
    """A problem with random rows, different after every path.

    ``kind``: ``"any"`` (positive rows), ``"zeros"`` (tokens without mass in either model), ``"certain"`` (rows that
    are exactly 0 and 1 in one model or the other), ``"equal"`` (draft = target), ``"opposed"`` (draft logits = minus
    target logits), ``"narrow"`` (a drafter with fewer tokens than the widest siblings).
    """

    def row(model: str, path: Path) -> Row:
        rng = random.Random(f"{seed} {model} {path}")
        weights = [rng.uniform(0.05, 1) for _ in range(vocab_size)]
        if kind == "zeros":
            # the drafter keeps enough tokens for the widest siblings
            most_gone = vocab_size - (1 if model == "target" else width)
            gone = rng.sample(range(vocab_size), rng.randint(1, most_gone))
            weights = [0.0 if token in gone else weight for token, weight in enumerate(weights)]
        certain = model == "target" or width == 1
        if kind == "certain" and certain and rng.random() < 0.6:
            weights = [0.0] * vocab_size
            weights[rng.randrange(vocab_size)] = 1.0
        return [weight / sum(weights) for weight in weights]

    def narrow(path: Path) -> Row:
        kept = random.Random(f"{seed} kept {path}").sample(range(vocab_size), max(1, width - 1))
        weights = [value if token in kept else 0.0 for token, value in enumerate(row("draft", path))]
        return [weight / sum(weights) for weight in weights]

    def opposed(path: Path) -> Row:
        weights = [1 / probability for probability in target(path)]
        return [weight / sum(weights) for weight in weights]

    width = max(1, *(list(parents).count(node) for node in range(len(parents))))
    if kind in ("zeros", "certain") and width >= vocab_size:
        raise ValueError(
            f"kind {kind!r} needs vocab_size above the widest siblings, {width}; got {vocab_size}"
        )
    memory: dict[tuple[str, Path], Row] = {}

    def model(name: str) -> Callable[[Path], Row]:
        def remembered(path: Path) -> Row:
            if (name, path) not in memory:
                memory[name, path] = row(name, path)
            return memory[name, path]

        return remembered

    target = model("target")
    draft = {"equal": target, "opposed": opposed, "narrow": narrow}.get(kind, model("draft"))
    name = f"parents {list(parents)}, {vocab_size} tokens, {kind}, seed {seed}"
    return Problem(tuple(parents), vocab_size, target, draft, name)


STARS = tuple(
    random_problem(parents, vocab_size, seed, kind)
    for parents, vocab_size in (((-1,), 3), ((-1, 0), 3), ((-1, 0, 0), 3), ((-1, 0, 0, 0), 4))
    for seed, kind in enumerate(("any", "opposed", "zeros", "zeros", "zeros", "certain", "equal", "narrow"))
)
BRANCHED = tuple(
    random_problem(parents, 3, seed, kind)
    for parents in ((-1, 0, 1), (-1, 0, 0, 1, 1), (-1, 0, 1, 0, 3), (-1, 0, 0, 1, 3))
    for seed, kind in enumerate(("any", "opposed", "zeros", "certain", "narrow"))
)
