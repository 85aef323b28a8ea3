"""How much each step of a batch drafts: one node budget by measured cost, and a guard over real steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from treedecode.accept import Acceptance
from treedecode.acceptance import EdgeEstimates
from treedecode.allocate import Allocation, cut_by_reach, scored_reach
from treedecode.batch_depth import DraftDepth
from treedecode.budget import PendingLook, likeliest_chain
from treedecode.draft_rest import DraftRest
from treedecode.gains import PlainReference
from treedecode.guard import Guard, Mode, ModeChange
from treedecode.shape import TreeShape
from treedecode.surface import Cost
from treedecode.tree import DraftTree

# Of the least reach that was worth a row in the last step: what is less likely need not be drafted for the next.
_STILL_DRAFTED = 0.5
# What a request is called: an id of the engine's, or its place.
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class _Plan:
    """What was planned for the next step, for that step's record."""

    guard: Guard
    num_requests: int
    context: int
    promised: float
    depth: int


def batch_class(num_requests: int) -> int:
    """Batch sizes that share a guard: 1 for 1, 2 for 2 to 3, 3 for 4 to 7, and so on."""
    return num_requests.bit_length()


class BatchPlanner:
    """Cuts the trees of all requests to the sizes that pay together, and watches what the steps really take.

    The nodes of all requests compete for one budget (``allocate_batch``): few requests get wide trees, many get chains,
    and past break-even none gets any. Batches of 1, 2 to 3, 4 to 7, ... requests have a ``Guard`` each, as what pays
    for one size does not for another: where measured steps show that trees or chains do not pay, it stops them and
    looks again from time to time, and once none of the requests that it went by is left. Its account is kept per
    request: tokens of a step over its requests, and times in plain steps of the same batch.

    Same calls, same plans: with tensor parallelism all ranks must be given the same times.

    Args:
        cost: milliseconds of a step by its number of rows.
        max_rows: most rows of a step, roots included; None for as many as pay.
        reference: what plain steps of a class of batch sizes take, by ``batch_class``; measured anew if not given.
        told: called with the smallest batch size of a class and its guard's change of mode.
        calibrates: scores are a model's own confidence, which what was accepted corrects, and trees are put in the
            order of their reach before they are cut. Otherwise scores are taken at their word, and so is their order.
        max_per_request: most drafted nodes of a request, counted in that order; None for no limit.
    """

    def __init__(
        self,
        cost: Cost,
        max_rows: int | None = None,
        reference: Callable[[int], PlainReference] | None = None,
        told: Callable[[int, ModeChange], None] | None = None,
        calibrates: bool = False,
        max_per_request: int | None = None,
    ) -> None:
        self.cost = cost
        self._calibrates, self._max_per_request = calibrates, max_per_request
        self._max_rows, self._reference, self._told = max_rows, reference, told
        self._guards: dict[int, Guard] = {}
        self._rests: dict[int, DraftRest] = {}
        self._least: dict[int, float] = {}  # reach that was worth a row
        self._judged: dict[int, set[Hashable]] = {}  # the requests that a guard goes by
        self._estimates = EdgeEstimates()
        self._depths = DraftDepth()
        self._plan: _Plan | None = None
        self._looks: list[PendingLook] = []

    def drafts(self, num_requests: int) -> bool:
        """Whether trees are wanted for the next step of so many requests; if not, ``plan_plain`` is called."""
        return self._guard(num_requests).drafts and not self._rest(num_requests).rests

    def min_reach(self, num_requests: int) -> float:
        """Reach below which nodes need not be drafted for the next step of so many requests, by what the last took."""
        return _STILL_DRAFTED * self._least.get(batch_class(num_requests), 0.0)

    def depth(self, num_requests: int, shape: TreeShape, prefix_len: int) -> int:
        """How deep to draft for the next step, where drafting itself takes its time; 0 for not at all.

        Args:
            num_requests: of the step, at least 1.
            shape: of every request's tree if it is drafted as deep as it can be.
            prefix_len: cached tokens of a request, in the mean.
        """
        guard = self._guard(num_requests)
        if not guard.drafts:
            return 0
        kind, cost = batch_class(num_requests), self.cost.at(prefix_len)
        depth = self._depths.choose(kind, num_requests, shape, cost, self._max_rows)
        # a look must see something
        return max(depth, 1) if guard.looks else depth

    def mode(self, num_requests: int) -> Mode:
        """What is verified at this batch size."""
        return self._guard(num_requests).mode

    def cut(
        self, trees: Mapping[Name, DraftTree], prefix_lens: Sequence[int], depth: int = 0
    ) -> dict[Name, DraftTree]:
        """The trees to verify in the next step.

        Args:
            trees: of all requests of the step, by id, nodes in descending reach; the root alone for no draft.
            prefix_lens: cached tokens of each.
            depth: how deep was drafted, where ``depth`` was asked.
        """
        if not trees:
            return {}
        num_requests, num_drafted = len(trees), sum(tree.num_drafted for tree in trees.values())
        if not num_drafted:
            self.plan_plain(prefix_lens, depth)
            return dict(trees)
        guard, context = self._guard(num_requests), sum(prefix_lens) // num_requests
        drafted = {name: self._by_reach(tree) for name, tree in trees.items()}
        cut, allocation = self._cut(drafted, context)
        if guard.looks:
            chains = {name: likeliest_chain(*pair) for name, pair in drafted.items()}
            chain_cut, chain_allocation = self._cut(chains, context)
            plain_ms = self.cost.at(context).ms(num_requests)
            self._looks.append(
                PendingLook(cut, allocation.cost_ms, chain_cut, chain_allocation.cost_ms, plain_ms)
            )
            drafted, cut, allocation = chains, chain_cut, chain_allocation
        promised = allocation.expected_tokens / num_requests - 1.0
        if guard.mode is Mode.NONE:
            cut, promised = {name: tree.prefix(0) for name, tree in trees.items()}, 0.0
        else:
            self._rest(num_requests).planned(num_drafted, len(allocation.order))
            reach = {name: of_nodes for name, (_, of_nodes) in drafted.items()}
            self._least[batch_class(num_requests)] = least_reach(cut, reach)
        self._plan = _Plan(guard, num_requests, context, promised, depth)
        return cut

    def plan_plain(self, prefix_lens: Sequence[int], depth: int = 0) -> None:
        """The next step has no drafts.

        Args:
            prefix_lens: cached tokens of each request, of at least one.
            depth: how deep was drafted in vain.
        """
        num_requests = len(prefix_lens)
        self._rest(num_requests).planned(0, 0)
        # so that a drafter that had nothing so likely is asked for less
        self._least[batch_class(num_requests)] = self.min_reach(num_requests)
        self._plan = _Plan(
            self._guard(num_requests), num_requests, sum(prefix_lens) // num_requests, 0.0, depth
        )

    def record(
        self, steps: Mapping[Name, tuple[DraftTree, Acceptance]], forward_ms: float | None, draft_ms: float
    ) -> None:
        """Learns from a step.

        Args:
            steps: of the requests that decoded, by id, the tree that was verified and its walk.
            forward_ms: what the step took; None if it had other rows as well, of prompts.
            draft_ms: what drafting and planning it took before.
        """
        plan, self._plan = self._plan, None
        for tree, walk in steps.values():
            if self._learns(tree):
                self._estimates.observe(tree, walk.path)
            if self._calibrates:
                self._depths.observe(tree, walk)
        if plan is not None and plan.depth:
            self._depths.timed(batch_class(plan.num_requests), plan.depth, draft_ms)
        # the batch that was planned for
        timed = plan if plan is not None and plan.num_requests == len(steps) else None
        if self._looks:
            self._follow({name: walk.token_ids for name, (_, walk) in steps.items()}, timed)
        if timed is None or forward_ms is None:
            return
        num_requests = len(steps)
        kind, before = batch_class(num_requests), timed.guard.mode
        if self._judged.setdefault(kind, set(steps)).isdisjoint(steps):
            self._judged[kind] = set(steps)
            timed.guard.renew()
        num_drafted = sum(tree.num_drafted for tree, _ in steps.values())
        num_emitted = sum(len(walk.token_ids) for _, walk in steps.values())
        table = self.cost.at(timed.context).table(num_requests + num_drafted)
        timed.guard.record(
            num_emitted / num_requests,
            forward_ms + draft_ms,
            draft_ms,
            num_drafted,
            timed.promised,
            table[num_requests + num_drafted],
            table[num_requests],
        )
        if self._told is not None and timed.guard.mode is not before:
            self._told(1 << kind - 1, timed.guard.changes[-1])

    def skip(self) -> None:
        """A step is not recorded: its plan is void, and so are looks, which would miss what it emitted."""
        self._plan, self._looks = None, []

    def _guard(self, num_requests: int) -> Guard:
        size = batch_class(num_requests)
        if size not in self._guards:
            self._guards[size] = Guard(None if self._reference is None else self._reference(size))
        return self._guards[size]

    def _rest(self, num_requests: int) -> DraftRest:
        return self._rests.setdefault(batch_class(num_requests), DraftRest())

    def _learns(self, tree: DraftTree) -> bool:
        return self._calibrates or tree.score_tuple is None

    def _by_reach(self, tree: DraftTree) -> tuple[DraftTree, list[float]]:
        """The tree as it is to be cut, and the reach of its nodes."""
        reach = self._estimates.reach(tree) if self._learns(tree) else scored_reach(tree)
        if self._calibrates:
            reach = siblings_in_order(tree.shape, reach)
            order = sorted(range(tree.num_nodes), key=lambda node: -reach[node])
            tree, reach = tree.only(order), [reach[node] for node in order]
        if self._max_per_request is not None:
            tree, reach = tree.prefix(self._max_per_request), reach[: 1 + self._max_per_request]
        return tree, reach

    def _cut(
        self, drafted: Mapping[Name, tuple[DraftTree, Sequence[float]]], context: int
    ) -> tuple[dict[Name, DraftTree], Allocation]:
        room = None if self._max_rows is None else max(0, self._max_rows - len(drafted))
        trees, reach = zip(*drafted.values(), strict=True)
        cut, allocation = cut_by_reach(trees, reach, self.cost.at(context), room)
        return dict(zip(drafted, cut, strict=True)), allocation

    def _follow(self, emitted: Mapping[Name, Sequence[int]], timed: _Plan | None) -> None:
        for look in self._looks:
            look.follow(emitted)
        done = [look for look in self._looks if look.done]
        self._looks = [look for look in self._looks if not look.done]
        if timed is not None:
            for look in done:
                timed.guard.looked(look.result)


def least_reach(cut: Mapping[Name, DraftTree], reach: Mapping[Name, Sequence[float]]) -> float:
    """Reach of the least likely node of trees that were cut; where nothing is left, of the likeliest one before.

    Args:
        cut: by request.
        reach: of every node before the cut, root first, descending.
    """
    taken = [reach[name][tree.num_drafted] for name, tree in cut.items() if tree.num_drafted]
    return min(
        taken, default=max((of_nodes[1] for of_nodes in reach.values() if len(of_nodes) > 1), default=0.0)
    )


def siblings_in_order(shape: TreeShape, reach: Sequence[float]) -> list[float]:
    """``reach`` lowered where needed, so that no node counts for more than its parent or the sibling before it.

    Args:
        shape: topology.
        reach: by node, ``[N]``, root first.
    """
    lowered = list(reach)
    for node in range(shape.num_nodes):
        above = lowered[node]
        for child in shape.children(node):
            above = lowered[child] = min(lowered[child], above)
    return lowered
