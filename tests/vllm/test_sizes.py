"""The planner in the engine: trees are sized by what steps cost, and the output stays the same."""

from __future__ import annotations

import pytest

from tests.vllm.cases import GROUPS
from tests.vllm.conftest import runner_of
from tests.vllm.drafters import drafting
from tests.vllm.running import run_cases
from tests.vllm.test_engine import assert_same, num_output
from treedecode.cost import CostCurve
from treedecode.vllm import TreeOptions

pytestmark = [pytest.mark.vllm, pytest.mark.real_model]

FLAT = CostCurve([1, 1024], [50.0, 50.1])
STEEP = CostCurve([1, 1024], [50.0, 51200.0])
MAX_SECONDS = 20


@pytest.fixture
def plan_by(llm, tmp_path):
    """Sizes the engine's trees by a curve, saved and read as the option does, until the test ends."""

    def plan(curve):
        file = tmp_path / "cost.json"
        file.write_text(curve.to_json())
        runner_of(llm).plan_by(TreeOptions(cost=str(file)).saved_cost())

    yield plan
    runner_of(llm).drafter.planner = None
    runner_of(llm).drafter.drafts = True


def test_steep_costs_give_plain_steps_and_the_same_tokens(llm, reference, truth, counts, plan_by):
    plan_by(STEEP)
    with drafting("hidden", truth):
        answers = run_cases(llm, GROUPS["kinds"])
    assert_same(answers, reference["kinds"])
    assert counts.num_verified == 0 and counts.num_emitted == num_output(answers)


def test_flat_costs_give_trees_and_the_same_tokens(llm, reference, truth, counts, plan_by):
    plan_by(FLAT)
    with drafting("hidden", truth):
        answers = run_cases(llm, GROUPS["kinds"])
    assert_same(answers, reference["kinds"])
    assert counts.num_accepted > 0 and counts.num_moved_bytes > 0
    assert counts.num_request_steps < counts.num_emitted == num_output(answers)


def test_many_requests_share_a_budget(llm, reference, truth, counts, plan_by):
    # rows are free up to 24
    plan_by(CostCurve([1, 24, 25, 1024], [50.0, 50.1, 60.0, 5000.0]))
    with drafting("mixed", truth):
        answers = run_cases(llm, GROUPS["many"])
    assert_same(answers, reference["many"])
    assert counts.num_verified > 0 and counts.num_emitted == num_output(answers)


def test_the_cost_of_steps_is_measured_on_the_engine(llm, reference, truth, counts):
    from time import perf_counter

    from treedecode.vllm.measure import measure_steps

    runner = runner_of(llm)
    began = perf_counter()
    curve = measure_steps(runner)
    # its blocks were those of other requests
    assert llm.reset_prefix_cache()
    assert perf_counter() - began < MAX_SECONDS
    assert curve.rows[0] == 1 and curve.rows[-1] >= 4
    assert curve.ms(curve.rows[-1]) > curve.ms(1)
    assert runner.counts.num_request_steps == 0
    assert not any(name.startswith("treedecode") for name in (*runner.requests, *runner.input_batch.req_ids))
    with drafting("hidden", truth):
        assert_same(run_cases(llm, GROUPS["kinds"]), reference["kinds"])
