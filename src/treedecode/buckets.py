"""Fixed tree sizes, as captured graphs need them: which one pays, and when to change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from treedecode import topology
from treedecode.cost import CostCurve


@dataclass(frozen=True)
class Buckets:
    """The sizes that exist: for some batch sizes, how many drafted nodes every tree is padded to.

    Args:
        sizes: by batch size, the numbers of drafted nodes per tree. 0, plain decoding, is always one of them.

    Raises:
        TypeError: a size is not an integer.
        ValueError: there is no batch size, one is below 1, or a number of nodes is negative.
    """

    sizes: Mapping[int, tuple[int, ...]]

    def __init__(self, sizes: Mapping[int, Sequence[int]]) -> None:
        if not sizes:
            raise ValueError("buckets need at least one batch size, got none")
        checked = {
            topology.count(batch, "batch size", minimum=1): tuple(
                sorted({0, *(topology.count(size, "num_drafted") for size in sizes[batch])})
            )
            for batch in sorted(sizes)
        }
        object.__setattr__(self, "sizes", checked)

    def batch_size(self, num_requests: int) -> int:
        """The smallest batch size that holds ``num_requests``.

        Raises:
            ValueError: there are no requests, or more than the largest batch size.
        """
        if num_requests < 1:
            raise ValueError(f"a step needs at least one request, got {num_requests}")
        for batch in self.sizes:
            if batch >= num_requests:
                return batch
        raise ValueError(f"the largest batch size is {max(self.sizes)}, got {num_requests} requests")


@dataclass(frozen=True)
class BucketChoice:
    """One fixed size for a step.

    Attributes:
        batch_size: rows of the batch, padding requests included.
        bucket_drafted: drafted nodes per tree, padding included: the step has ``batch_size * (1 + bucket_drafted)``
            rows, whatever the trees.
        num_drafted: real drafted nodes by request, for ``tree.prefix``.
        expected_tokens: of the requests, from their real nodes.
        cost_ms: of all rows, padding included.
    """

    batch_size: int
    bucket_drafted: int
    num_drafted: tuple[int, ...]
    expected_tokens: float
    cost_ms: float

    @property
    def tokens_per_ms(self) -> float:
        """What the choice promises."""
        return self.expected_tokens / self.cost_ms


def bucket_choices(
    reach: Sequence[Sequence[float]], cost: CostCurve, buckets: Buckets, room: Sequence[int] | None = None
) -> list[BucketChoice]:
    """What every size of the smallest batch size that holds the requests promises, smallest size first.

    Padding costs as much as a node and emits nothing: expected tokens count real nodes, the cost all rows. A request
    puts as many of its nodes into a bucket as fit; they are free once the bucket is paid for.

    Args:
        reach: by request, of its drafted nodes in order of the tree, as for ``allocate_batch``.
        cost: milliseconds by the number of rows of the step.
        buckets: the sizes that exist.
        room: by request, the most drafted nodes it can use; no limit if not given.

    Raises:
        TypeError, ValueError: as ``Buckets.batch_size``; a room is negative or there is not one per request.
    """
    batch = buckets.batch_size(len(reach))
    if room is not None:
        if len(room) != len(reach):
            raise ValueError(f"expected one room per request: {len(reach)} requests, got {len(room)} rooms")
        reach = [nodes[: topology.count(limit, "room")] for nodes, limit in zip(reach, room, strict=True)]
    sizes = buckets.sizes[batch]
    by_place = [sum(values) for values in zip_longest(*reach, fillvalue=0.0)]
    expected = list(accumulate(by_place, initial=float(len(reach))))
    table = cost.table(batch * (1 + sizes[-1]))
    return [
        BucketChoice(
            batch,
            size,
            tuple(min(size, len(nodes)) for nodes in reach),
            expected[min(size, len(by_place))],
            table[batch * (1 + size)],
        )
        for size in sizes
    ]


def choose_bucket(
    reach: Sequence[Sequence[float]], cost: CostCurve, buckets: Buckets, room: Sequence[int] | None = None
) -> BucketChoice:
    """The size with the most expected tokens per millisecond, padding paid for; the smallest wins a tie.

    Args and errors as ``bucket_choices``.
    """
    return max(bucket_choices(reach, cost, buckets, room), key=lambda choice: choice.tokens_per_ms)


class BucketPlanner:
    """Chooses a size per step, and does not flap between sizes that are about as good.

    Expected tokens are estimates, new at every step, so two sizes of nearly equal worth would change places all the
    time. A change is not free: another captured graph runs on other memory, and a cost measured while sizes
    alternate belongs to neither. So the size is held until another one promises ``margin`` more, or has been the
    better one for ``patience`` steps in a row, as a small gain that lasts is worth having. Every batch size holds its
    own. A size per request without captured graphs costs nothing to change, and ``choose_budget`` does so freely.

    Args:
        buckets: the sizes that exist.
        margin: relative gain in tokens per millisecond that is worth an immediate change.
        patience: steps in a row after which any gain is; 1 changes at once.

    Raises:
        TypeError, ValueError: ``margin`` is negative or ``patience`` below 1 or no integer.
    """

    def __init__(self, buckets: Buckets, margin: float = 0.05, patience: int = 8) -> None:
        if not margin >= 0.0:
            raise ValueError(f"margin must be at least 0, got {margin!r}")
        self._buckets, self._margin = buckets, margin
        self._patience = topology.count(patience, "patience", minimum=1)
        self._held: dict[int, int] = {}
        self._num_better: dict[int, int] = {}

    def choose(
        self, reach: Sequence[Sequence[float]], cost: CostCurve, room: Sequence[int] | None = None
    ) -> BucketChoice:
        """The size for this step; args and errors as ``bucket_choices``."""
        choices = bucket_choices(reach, cost, self._buckets, room)
        best = max(choices, key=lambda choice: choice.tokens_per_ms)
        batch = best.batch_size
        held = next((c for c in choices if c.bucket_drafted == self._held.get(batch)), None)
        if held is not None and best.tokens_per_ms > held.tokens_per_ms:
            self._num_better[batch] += 1
            if (
                best.tokens_per_ms <= held.tokens_per_ms * (1.0 + self._margin)
                and self._num_better[batch] < self._patience
            ):
                return held
        elif held is not None:
            best = held
        self._held[batch], self._num_better[batch] = best.bucket_drafted, 0
        return best
