"""How faults are planted: in a function of the core, in what it reads, or in how it lists siblings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from treedecode.accept import Acceptance
from treedecode.testing.enumeration import Case, Walk
from treedecode.testing.exact import BatchSampler
from treedecode.testing.reference import Chance, Drafted, UniformChance, walk
from treedecode.testing.samplers import batched

Choose = Callable[[Drafted, int, list[int]], list[int]]


@dataclass(frozen=True)
class Mutation:
    """A faulty sampler.

    Attributes:
        sampler: the sampler, in the form of ``exactness_batched``.
        methods: the methods that have the fault.
        plant: opens the fault in the core, for as long as the context lasts; None if the fault is not in a function
            of the core.
    """

    sampler: BatchSampler
    methods: tuple[str, ...]
    plant: Callable[[], AbstractContextManager[Any]] | None = None


def replaced(methods: tuple[str, ...], change: Callable[..., Any], *places: tuple[Any, str]) -> Mutation:
    """The batched core with a function replaced at every ``(module, name)`` of ``places``."""

    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for module, name in places:
                stack.enter_context(mock.patch.object(module, name, change))
            yield

    def run(batch: list[Case], method: str) -> list[Acceptance]:
        with plant():
            return batched(batch, method)

    return Mutation(run, methods, plant)


def misread(methods: tuple[str, ...], change: Callable[[Case], Case]) -> Mutation:
    """The batched core on cases that it misreads."""
    return Mutation(lambda batch, method: batched([change(case) for case in batch], method), methods)


@dataclass(frozen=True)
class _Listed(Drafted):
    choose: Choose

    def children(self, node: int) -> list[int]:
        return self.choose(self, node, super().children(node))


def relisted(choose: Choose, recount: bool = False) -> Walk:
    """The reference walk over every node's children as ``choose`` lists them; nodes keep their numbers.

    With ``recount``, the draft probability of a token is multiplied by the number of siblings that have it.
    """

    def faulty(drafted: Drafted, method: str, chance: Chance) -> tuple[list[int], list[int]]:
        rows = [list(row) for row in drafted.draft_probs]
        for node, row in enumerate(rows):
            tokens = [drafted.token_ids[child] for child in drafted.children(node)]
            for token in set(tokens) if recount else ():
                row[token] *= tokens.count(token)
        listed = _Listed(drafted.parents, drafted.token_ids, drafted.target_probs, rows, choose)
        return walk(listed, method, chance)

    return faulty


def driven(methods: tuple[str, ...], faulty: Walk) -> Mutation:
    """A walk against ``Chance``, driven by numbers."""

    def run(batch: list[Case], method: str) -> list[Acceptance]:
        results = [faulty(case.drafted, method, UniformChance(case.uniforms)) for case in batch]
        return [Acceptance(path, emitted, len(path) - 1) for path, emitted in results]

    return Mutation(run, methods)
