"""The sweep over batches: against brute force, and the story of the H100."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treedecode as td
from treedecode.planner import choose_budget
from treedecode.roofline import Roofline
from treedecode.sweep import Span, judge_tree, sweep_batches

PROBS = (0.7, 0.15)
REFERENCE = td.TreeShape.from_paths(
    [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0)]
)


def h100(_batch: int, rows: int) -> float:
    return Roofline.of("h100").step_ms(rows, 8e9)


def measured(curve: td.CostCurve, _batch: int, rows: int) -> float:
    return curve.ms(rows)


def test_the_reference_tree_against_a_chain_of_four() -> None:
    wide, chain = (judge_tree(shape, PROBS, h100, 1) for shape in (REFERENCE, td.TreeShape.chain(4)))
    assert wide.expected_tokens == pytest.approx(3.28, abs=0.005)
    assert chain.expected_tokens == pytest.approx(2.77, abs=0.005)
    assert (wide.kind, chain.kind) == ("tree", "chain")
    # far below the ridge rows are free
    assert wide.speedup == pytest.approx(wide.expected_tokens)
    wide, chain = (judge_tree(shape, PROBS, h100, 64) for shape in (REFERENCE, td.TreeShape.chain(4)))
    assert (wide.verified_tokens, chain.verified_tokens) == (640, 320)
    # the decision has reversed
    assert wide.speedup == pytest.approx(3.2801 * 295.224 / 640, rel=1e-3)
    assert chain.speedup == pytest.approx(2.7731 * 295.224 / 320, rel=1e-3)
    assert chain.speedup > wide.speedup


def test_h100_goes_from_wide_trees_to_chains_to_nothing() -> None:
    swept = sweep_batches(PROBS, h100, range(1, 513))
    assert [span.kind for span in swept.spans] == ["tree", "chain", "nothing"]
    tree, chain, nothing = swept.spans
    assert (tree.first_batch, nothing.last_batch) == (1, 512)
    assert chain.first_batch == tree.last_batch + 1
    assert nothing.first_batch == chain.last_batch + 1
    # one node more gives 1.7 tokens for 2 B rows of which 295 are free: it pays until 2 B / 295.2 = 1.7
    assert chain.last_batch == math.floor(1.7 * 295.224 / 2)
    # six nodes are the first that are not a chain: 0.7 ** k stays above 0.15 until k = 5
    assert swept.best[tree.last_batch - 1].num_drafted > 5 >= swept.best[chain.first_batch - 1].num_drafted


def test_the_best_tree_is_never_below_the_chain_nor_below_plain() -> None:
    swept = sweep_batches(PROBS, h100, range(1, 301))
    for best, chain in zip(swept.best, swept.chains, strict=True):
        assert best.speedup >= chain.speedup * (1 - 1e-12) and chain.speedup >= 1.0
        assert chain.kind in ("chain", "nothing")
        if best.kind != "tree":
            assert best == chain


@pytest.mark.parametrize("max_drafted", [0, 1, 7])
def test_the_limit_holds(max_drafted: int) -> None:
    swept = sweep_batches(PROBS, h100, [1], max_drafted)
    assert swept.best[0].num_drafted == swept.chains[0].num_drafted == max_drafted
    assert swept.shape_of(swept.best[0]) == td.plan_tree(PROBS, max_drafted)


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_every_size_is_looked_at(seed: int) -> None:
    rng = random.Random(seed)
    probs = sorted((rng.random() / 3 for _ in range(3)), reverse=True)
    curve = td.CostCurve([1, 3, 4, 8, 9, 30, 60], sorted(rng.uniform(1, 10) for _ in range(7)))
    cost, limit = partial(measured, curve), rng.randrange(20)
    swept = sweep_batches(probs, cost, [1, 2, 5], limit)
    trees = [td.plan_tree(probs, n) for n in range(limit + 1)]
    for best, chain in zip(swept.best, swept.chains, strict=True):
        judged = [judge_tree(shape, probs, cost, best.batch) for shape in trees]
        assert best.speedup == pytest.approx(max(choice.speedup for choice in judged), rel=1e-9)
        same = judged[best.num_drafted]
        assert (best.kind, best.step_ms) == (same.kind, same.step_ms)
        assert best.expected_tokens == pytest.approx(same.expected_tokens, rel=1e-12)
        chains = [judge_tree(td.TreeShape.chain(n), probs, cost, best.batch) for n in range(limit + 1)]
        assert chain.speedup == pytest.approx(max(choice.speedup for choice in chains), rel=1e-9)


def test_a_staircase_is_crossed() -> None:
    """The fifth row is dear and those up to 32 are free: a rule that stops at the first loss would stay at 4 rows."""
    curve = td.CostCurve([4, 5, 32, 33, 64], [10.0, 16.0, 16.0, 60.0, 60.0])
    swept = sweep_batches((0.8, 0.15), partial(measured, curve), [1, 2, 4, 20])
    assert [choice.num_drafted for choice in swept.best] == [31, 15, 7, 0]
    assert [choice.kind for choice in swept.best] == ["tree", "tree", "chain", "nothing"]
    assert swept.spans == (Span("tree", 1, 2), Span("chain", 4, 4), Span("nothing", 20, 20))


def test_spans_turn_back_where_the_cost_does() -> None:
    def free_when_even(batch: int, rows: int) -> float:
        return float(rows) if batch % 2 else 1.0

    swept = sweep_batches(PROBS, free_when_even, [1, 3, 4, 6, 7])
    assert swept.spans == (Span("nothing", 1, 3), Span("tree", 4, 6), Span("nothing", 7, 7))


@pytest.mark.parametrize("name", Roofline.known())
def test_one_request_gets_the_budget_of_the_planner(name: str) -> None:
    """The engine's rule, on the curve of a roofline, and the sweep are one decision."""
    roofline = Roofline.of(name)
    (best,) = sweep_batches(PROBS, lambda _, rows: roofline.step_ms(rows, 8e9), [1], 500).best
    reach = [math.prod(PROBS[rank] for rank in path) for path in td.plan_tree(PROBS, 500).paths[1:]]
    assert best.num_drafted == choose_budget(reach, roofline.cost_curve(8e9), 500)
    assert best.num_drafted == math.floor(roofline.ridge_tokens) - 1


def test_the_smallest_of_equal_sizes_wins() -> None:
    def proportional(_batch: int, rows: int) -> float:
        return 0.1 * rows

    swept = sweep_batches((1.0,), proportional, [1, 3, 7])
    assert [choice.num_drafted for choice in swept.best] == [0, 0, 0]


def test_the_best_chain_follows_the_best_rank_and_ends_with_the_depths() -> None:
    swept = sweep_batches([(0.2, 0.6), (0.5, 0.0), (0.9,)], h100, [1])
    (chain,) = swept.chains
    assert chain.num_drafted == 3
    assert chain.expected_tokens == pytest.approx(1 + 0.6 + 0.6 * 0.5 + 0.6 * 0.5 * 0.9)
    assert sweep_batches((0.0,), h100, [1]).best[0].kind == "nothing"


def test_the_cost_may_depend_on_the_batch() -> None:
    """K/V cache to read makes rows free for longer."""
    roofline = Roofline.of("h100")

    def with_cache(batch: int, rows: int) -> float:
        return roofline.step_ms(rows, 8e9, cache_bytes=batch * 4096 * 131_072)

    bare, cached = (sweep_batches(PROBS, cost, [64, 300]).best for cost in (h100, with_cache))
    assert cached[0].num_drafted > bare[0].num_drafted
    assert (bare[1].kind, cached[1].kind) == ("nothing", "tree")


@pytest.mark.parametrize(
    ("batches", "max_drafted", "error", "message"),
    [
        ([0], 4, ValueError, "at least 1 and increase: 0 follows 0"),
        ([1, 3, 2], 4, ValueError, "2 follows 3"),
        ([1.5], 4, TypeError, "batch of position 0 must be an integer"),
        ([1], -1, ValueError, "budget must be at least 0"),
    ],
)
def test_bad_input(batches: list, max_drafted: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sweep_batches(PROBS, h100, batches, max_drafted)


def test_bad_batch_of_a_given_tree() -> None:
    with pytest.raises(ValueError, match="batch must be at least 1"):
        judge_tree(REFERENCE, PROBS, h100, 0)
