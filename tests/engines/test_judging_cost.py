"""What sampled, penalised and traced requests cost more, and that their planner knows it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from tests.engines.fake_target import FakeTarget, linear
from tests.engines.tiny import target_of
from treedecode.cost import CostCurve
from treedecode.engines import judging_cost
from treedecode.engines.judge import Judging
from treedecode.engines.judging_cost import judged_cost, typical_rows
from treedecode.engines.loop import Decoder
from treedecode.engines.params import SamplingParams
from treedecode.engines.request import Request
from treedecode.surface import CostSurface

GREEDY = CostCurve([1, 16], [10.0, 25.0])
WARM = SamplingParams(temperature=1.2, seed=3)


def judging(target: FakeTarget, params: SamplingParams, wants_rows: bool, traced: bool) -> Judging:
    return Judging.of(target, Request((1,), 4, 4, params), wants_rows, traced)


class DearLogits(FakeTarget):
    """All logits take 2 ms and 3 ms per row; the best candidates alone take 1 ms."""

    num_products = 0

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        self.now += 1e-3 * (2 + 3 * len(features))
        self.num_products += 1
        return super().logits(features)

    def top(self, features: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.now += 1e-3
        return torch.zeros(len(features), count), torch.zeros(len(features), count, dtype=torch.int64)


def test_sampled_rows_cost_what_their_logits_cost() -> None:
    target = DearLogits(linear)
    cost = judged_cost(target, GREEDY, judging(target, WARM, True, False), target.clock)
    assert [cost.at(0).ms(n) for n in (1, 16)] == pytest.approx([10 + 1 + 3, 25 + 1 + 48])
    before = target.num_products
    again = judged_cost(
        target, GREEDY, judging(target, SamplingParams(1.2, seed=4), True, False), target.clock
    )
    assert again == cost and target.num_products == before  # another seed is no other kind
    judged_cost(target, GREEDY, judging(target, SamplingParams(1.2, top_p=0.9), True, False), target.clock)
    assert target.num_products > before


def test_other_numbers_are_no_other_kind() -> None:
    """A bias or a penalty touches a few columns, whatever its value: it is timed once, not for every value."""
    target = DearLogits(linear)
    judged_cost(
        target, GREEDY, judging(target, SamplingParams(logit_bias={3: 1.0}), True, False), target.clock
    )
    before = target.num_products
    for params in (SamplingParams(logit_bias={4: 2.0}), SamplingParams(frequency_penalty=0.5)):
        judged_cost(target, GREEDY, judging(target, params, True, False), target.clock)
    assert target.num_products == before


@pytest.mark.parametrize(
    ("params", "traced"),
    [
        (SamplingParams(repetition_penalty=1.1), False),
        (SamplingParams(logit_bias={3: 1.0}), False),
        (SamplingParams(), True),
        (WARM, True),
    ],
)
def test_every_kind_that_needs_all_logits_is_timed(params: SamplingParams, traced: bool) -> None:
    target = DearLogits(linear)
    cost = judged_cost(target, GREEDY, judging(target, params, True, traced), target.clock)
    assert cost.at(0).ms(16) > GREEDY.ms(16) + 40


def test_greedy_requests_cost_what_was_measured() -> None:
    target = DearLogits(linear)
    assert judged_cost(target, GREEDY, judging(target, SamplingParams(), True, False)) is GREEDY
    assert target.num_products == 0


def test_surfaces_keep_their_contexts() -> None:
    target = DearLogits(linear)
    surface = CostSurface([1, 16], [64, 512], [[10.0, 25.0], [12.0, 40.0]])
    cost = judged_cost(target, surface, judging(target, WARM, True, False), target.clock)
    assert cost.at(512).ms(16) == pytest.approx(40 + 1 + 48)


@pytest.mark.parametrize("budget", ["auto", 8])
def test_the_planner_of_a_sampled_request_knows(budget: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """With logits this dear trees shrink, though the greedy curve says that rows are free; nothing else is timed."""
    asked: list[Judging] = []
    dear = CostCurve([1, 49], [10.0, 10_000.0])

    def told(_target: object, cost: CostCurve, judging: Judging) -> CostCurve:
        asked.append(judging)
        return cost.plus(dear)

    monkeypatch.setattr("treedecode.engines.loop.judged_cost", told)
    target = target_of("llama", "fused")
    request = Request((1, 2, 3, 1, 2, 3), 40, None if budget == "auto" else 8, WARM)
    decoder = Decoder.of(target, request, "merged", CostCurve([1, 49], [10.0, 10.001]))
    for _ in decoder.run():
        pass
    if budget == "auto":
        assert [judging.needs_logits for judging in asked] == [True]
        assert decoder.stats.build(40).num_drafted == 0
    else:
        assert not asked
        assert decoder.stats.build(40).num_drafted > 0


@pytest.mark.parametrize("capacity", [1, 5, 64])
def test_typical_rows_are_the_models_own_text(capacity: int) -> None:
    """Each row's token is the model's choice after the row before, for the first rows at least."""
    target = target_of("llama", "fused")
    chosen: list[list[int]] = []
    forward = target.forward
    target.forward = lambda step, cache, keep=None: (  # type: ignore[method-assign]
        chosen.append(step.token_ids.tolist()),
        forward(step, cache, keep),
    )[1]
    rows = typical_rows(target, target.new_cache(capacity))
    assert len(rows) == min(capacity, judging_cost._TYPICAL_ROWS)
    with torch.inference_mode():
        last = target.top(rows, 1)[1][:, 0].tolist()
    agreed = [token == choice for token, choice in zip(chosen[-1][1:], last, strict=False)]
    assert all(agreed[: judging_cost._TYPICAL_ROUNDS])
    assert len(chosen) == 1 + judging_cost._TYPICAL_ROUNDS
    assert all(before[0] == after[0] for before, after in pairwise(chosen))
