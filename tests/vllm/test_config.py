"""Options and arguments; these tests need no vLLM."""

from __future__ import annotations

import pytest

from treedecode.cost import CostCurve
from treedecode.drafters import DraftContext, MergedDrafter, SharedStore
from treedecode.vllm import TreeOptions, engine_args
from treedecode.vllm.config import is_tree_scheduler


def test_budget_zero_is_stock_vllm():
    assert engine_args(0) == {}


def test_arguments_of_an_engine():
    arguments = engine_args(16, drafter="suffix", max_depth=5)
    assert arguments["speculative_config"]["num_speculative_tokens"] == 16
    assert TreeOptions.of(arguments["additional_config"]) == TreeOptions(drafter="suffix", max_depth=5)
    assert TreeOptions.of({}) == TreeOptions()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"budget": -1}, ValueError, "budget must be at least 0, got -1"),
        ({"budget": 129}, ValueError, "budget must be at most 128, vLLM's limit of drafts per step, got 129"),
        ({"budget": 2.5}, TypeError, "budget must be an integer"),
        ({"drafter": "nothing"}, ValueError, "drafter must be one of merged, .* got 'nothing'"),
        ({"drafter": 3}, TypeError, "drafter must be a name"),
        ({"max_depth": 0}, ValueError, "max_depth must be at least 1, got 0"),
        ({"cost": 3}, TypeError, "cost must be auto, off or a path, got 3"),
        ({"width": 0}, ValueError, "width must be at least 1, got 0"),
        ({"branches": 0}, ValueError, "branches must be at least 1, got 0"),
        ({"shared_contexts": -1}, ValueError, "shared_contexts must be at least 0, got -1"),
        (
            {"shared_contexts": 9, "drafter": "prompt-lookup"},
            ValueError,
            "shared_contexts needs one of the drafters merged, recycling, suffix, got 'prompt-lookup': leave out",
        ),
    ],
)
def test_bad_values_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        engine_args(**arguments)


def test_who_follows_trees_under_a_grammar():
    assert is_tree_scheduler(engine_args()["scheduler_cls"]) and not is_tree_scheduler(None)
    assert not is_tree_scheduler("some.Scheduler") and not is_tree_scheduler(TreeOptions)


def test_a_shared_store_is_drafted_from_by_all_drafters_of_an_engine():
    store = SharedStore(100)
    store.leave(None, [0, 1, 2], 1)
    make = TreeOptions("suffix", shared_contexts=100).drafter_factory(store)
    first, second = make(), make()
    assert first is not second and first.name == "suffix"
    first.begin([1])
    tree = first.propose(DraftContext([1], 1, 4, 4))
    assert tree.token_tuple == (1, 2)


def test_a_drafter_of_vllm_takes_the_place_of_ours():
    given = {"method": "draft_model", "model": "some/model", "num_speculative_tokens": 9}
    arguments = engine_args(speculative_config=given, width=2, branches=4)
    assert arguments["speculative_config"] == given and arguments["async_scheduling"] is False
    assert TreeOptions.of(arguments["additional_config"]) == TreeOptions(width=2, branches=4)
    assert engine_args(0, speculative_config=given) == {}


@pytest.mark.parametrize(("method", "drafter"), [("ngram", "prompt-lookup"), ("suffix", "suffix")])
def test_methods_that_match_text_run_as_our_drafters(method, drafter):
    arguments = engine_args(speculative_config={"method": method, "num_speculative_tokens": 7})
    assert arguments == engine_args(7, drafter=drafter)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "some/model"}, '"method" of --speculative-config must be one of draft_model, .* got None'),
        ({"method": "eagle4"}, "must be one of draft_model, eagle, .* got 'eagle4'"),
        ({"method": "dflash"}, "do not support the speculative method 'dflash': .* use method eagle3"),
        ({"method": "ngram_gpu"}, "--drafter prompt-lookup"),
        ({"method": "ngram", "prompt_lookup_max": 4}, "leave prompt_lookup_max out"),
        ({"method": "mtp", "num_speculative_tokens": 129}, "budget must be at most 128"),
    ],
)
def test_bad_speculative_configs_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        engine_args(speculative_config=given)


@pytest.mark.parametrize("given", [{"treedecode": {"bugdet": 3}}, {"treedecode": "merged"}])
def test_bad_additional_config_is_named(given):
    with pytest.raises(ValueError, match="additional_config"):
        TreeOptions.of(given)


def test_a_drafter_of_ones_own():
    factory = TreeOptions(drafter="treedecode.drafters.merged:MergedDrafter").drafter_factory()
    assert factory is MergedDrafter


@pytest.mark.parametrize("path", ["no.such.module:make", "treedecode.drafters:missing", "json:JSONDecoder"])
def test_a_drafter_that_cannot_be_made(path):
    with pytest.raises(ValueError, match="cannot be made"):
        TreeOptions(drafter=path).drafter_factory()


def test_a_saved_cost(tmp_path):
    file = tmp_path / "cost.json"
    curve = CostCurve([1, 8], [1.0, 2.0])
    file.write_text(curve.to_json())
    assert TreeOptions(cost=str(file)).saved_cost() == curve
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # as editors on Windows write it
    assert TreeOptions(cost=str(file)).saved_cost() == curve
    assert TreeOptions().saved_cost() is TreeOptions(cost="off").saved_cost() is None


@pytest.mark.parametrize("content", [None, "{}", '{"rows": [1], "ms": [-1]}', '{"rows": "x", "ms": [1]}'])
def test_a_cost_that_cannot_be_read(tmp_path, content):
    file = tmp_path / "cost.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=r"cost must be auto, off or a file, and '.*cost.json' is none"):
        TreeOptions(cost=str(file)).saved_cost()
