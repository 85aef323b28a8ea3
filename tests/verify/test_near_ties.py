"""Rounding is told apart from errors: by a gap against what rounding was measured to do there."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.engines.tiny import GROUPED
from tests.verify.models import PROMPTS_OF_IDS, different, loaded
from treedecode.drawing import draw
from treedecode.engines.build import build_target
from treedecode.engines.candidates import top_candidates
from treedecode.engines.load import LoadedModel
from treedecode.engines.params import SamplingParams
from treedecode.engines.sampling import processed_probs
from treedecode.engines.target import Target
from treedecode.streams import keyed_uniforms
from treedecode.verify.local import verify_model
from treedecode.verify.plain import PlainModel
from treedecode.verify.results import Status
from treedecode.verify.rounding import Rounding, most_rounding
from treedecode.verify.rules import Drawn, Greedy
from treedecode.verify.settings import Settings

# 32 tokens: their rows are one product of the vocabulary, which is not one of those that are nudged
GREEDY = Settings(max_new_tokens=32, temperature=0)
PROMPT = PROMPTS_OF_IDS[0]
SAID, TWIN = 5, 6


def target_with_twins(dtype: torch.dtype, below: float = 0.0) -> Target:
    """Tokens ``SAID`` and ``TWIN`` have the same logit, but for a share of it, and are often the best."""
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(Qwen2Config(**GROUPED, tie_word_embeddings=False)).to(dtype).eval()
    with torch.no_grad():
        model.lm_head.weight[SAID] *= 3
        model.lm_head.weight[TWIN] = model.lm_head.weight[SAID] * (1 - below)
    return build_target(model, consume=False)


def nudged(patch: pytest.MonkeyPatch, dtype: torch.dtype, below: float, by: float) -> LoadedModel:
    """A model with twins, and the logit of ``TWIN`` raised in steps of several rows, as kernels for more rows may."""
    target = target_with_twins(dtype, below)
    original = target.logits

    def logits(features: torch.Tensor) -> torch.Tensor:
        made = original(features).clone()
        if 1 < len(features) < 32:
            made[:, TWIN] += by
        return made

    patch.setattr(target, "logits", logits)
    patch.setattr(target, "top", lambda features, count: top_candidates(logits(features), count))
    return loaded(target)


def test_exact_ties_are_exact() -> None:
    """CASES 13: the lowest id, in trees as in plain decoding."""
    report = verify_model(loaded(target_with_twins(torch.float32)), [PROMPT], GREEDY)
    assert report.exact and not report.num_near_ties


@pytest.mark.parametrize(
    ("dtype", "below", "by"), [(torch.float32, 1e-7, 1e-5), (torch.float64, 1e-14, 1e-12)]
)
def test_a_near_tie_is_no_error(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, below: float, by: float
) -> None:
    model = nudged(monkeypatch, dtype, below, by)
    report = verify_model(model, [PROMPT], GREEDY)
    assert report.exact and report.num_near_ties, report
    tied = [finding for finding in report.findings if finding.status is Status.NEAR_TIE]
    assert tied and all("near tie at token" in finding.detail for finding in tied)
    assert report.verdict.startswith("EXACT") and "near tie" in report.verdict


@pytest.mark.parametrize(("dtype", "below", "by"), [(torch.float32, 1e-3, 0.05), (torch.float64, 1e-8, 1e-6)])
def test_what_no_rounding_explains_is_an_error(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, below: float, by: float
) -> None:
    """Though the logits do move that far with the number of rows."""
    model = nudged(monkeypatch, dtype, below, by)
    report = verify_model(model, [PROMPT], GREEDY)
    assert "greedy, hostile drafts" in different(report)
    assert f"a near tie is within {most_rounding(dtype):.2g}" in report.differences[0].detail
    # unless the user says so
    wide = Settings(max_new_tokens=32, temperature=0, gap_tolerance=1.0, logprob_tolerance=1.0)
    report = verify_model(model, [PROMPT], wide)
    assert report.exact and report.num_near_ties


def test_rounding_is_measured_and_bounded() -> None:
    target = target_with_twins(torch.float32)
    measured = PlainModel(target).rounding(range(1, 40))
    assert 0 <= measured.noise < 1e-4 and measured.scale > 1
    unit = torch.finfo(torch.float32).eps
    assert Rounding(0.0, 8.0, torch.float32).tolerance == pytest.approx(8 * unit)
    assert Rounding(1e-5, 8.0, torch.float32).tolerance == pytest.approx(4e-5)
    assert Rounding(1.0, 8.0, torch.float32).tolerance == 1e-3
    assert Rounding(1.0, 8.0, torch.float64).tolerance == 1e-9
    assert Rounding(0.06, 8.0, torch.bfloat16).tolerance == pytest.approx(0.24)


def test_plain_rows_do_not_depend_on_how_they_are_computed() -> None:
    """All at once, one alone, or its last tokens in runs."""
    target = target_with_twins(torch.float64)
    plain, ids = PlainModel(target), list(range(1, 50))
    rows = list(plain.rows(ids[:9], ids[9:]))
    assert len(rows) == 40
    for place in (0, 17, 39):
        torch.testing.assert_close(rows[place], plain.row(ids[: 9 + place]), rtol=0, atol=1e-12)
    assert plain.rounding(ids).noise < 1e-12
    assert list(plain.rows(ids, [])) == []


def test_greedy_gaps_are_those_of_the_top_two() -> None:
    rule, row = Greedy(), torch.tensor([1.0, 3.0, 2.75])
    assert (rule.gap(row, 1, 0), rule.gap(row, 2, 0)) == (0.0, 0.25)
    assert rule.within(row, 2, 0, 0.25) and not rule.within(row, 2, 0, 0.2)
    assert "0.25 below the best logit" in rule.words(row, 2, 0)


def test_drawn_tokens_are_those_of_the_engine() -> None:
    generator = torch.Generator().manual_seed(0)
    for seed, options in enumerate([{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}] * 5):
        params = SamplingParams(0.9, seed=seed, **options)
        row = 3 * torch.randn(40, generator=generator, dtype=torch.float64)
        number = torch.from_numpy(keyed_uniforms(seed, [4]))
        said = int(draw(processed_probs(row[None], params), number))
        rule = Drawn(params)
        assert [token for token in range(40) if rule.gap(row, token, 4) == 0] == [said]
        assert rule.within(row, said, 4, 1e-12)
        assert sum(rule.within(row, token, 4, 1e-6) for token in range(40)) == 1
        assert all(rule.within(row, token, 4, 200.0) for token in range(40))


def test_a_number_at_the_edge_of_two_tokens_is_a_near_tie() -> None:
    """Logits such that the first token ends a little before, or after, the number."""
    params = SamplingParams(1.0, seed=3)
    number = float(keyed_uniforms(3, [0])[0])
    for off in (-1e-6, 1e-6):
        begin = number + off
        row = torch.tensor([begin, 1 - begin, 0.0], dtype=torch.float64).log().clamp(min=-50)
        rule, other = Drawn(params), int(off > 0)
        assert rule.gap(row, 1 - other, 0) == 0
        assert rule.gap(row, other, 0) == pytest.approx(1e-6, rel=1e-3)
        assert rule.within(row, other, 0, 1e-4) and not rule.within(row, other, 0, 1e-7)
        assert not rule.within(row, 2, 0, 1e-4)
        assert "not what the seed draws" in rule.words(row, other, 0)


def test_a_token_at_the_edge_of_a_filter_is_a_near_tie() -> None:
    """It may drop out of the top k, and what it had goes to others."""
    row = torch.tensor([2.0, 1.0, 1.0 - 1e-7, 0.0], dtype=torch.float64)
    for seed in range(20):
        rule = Drawn(SamplingParams(1.0, top_k=2, seed=seed))
        if rule.gap(row, 1, 0) == 0:
            assert rule.within(row, 2, 0, 1e-6) and not rule.within(row, 2, 0, 1e-8)
            assert not rule.within(row, 3, 0, 1e-6)
            return
    raise AssertionError("no seed draws the second token")
