"""``treedecode plan``: the figures of the design, its tables, data, pictures, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree
from datetime import UTC, datetime

import pytest

import treedecode as td
from treedecode.calibration import Calibration, Conditions, save
from treedecode.cli.plan_cost import CostOptions


@pytest.fixture
def planned(run):
    def planned(*args):
        ran = run("plan", "--json", *args)
        assert (ran.code, ran.err) == (0, "")
        return json.loads(ran.out)

    return planned


@pytest.fixture
def cost_file(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(td.CostCurve([1, 4, 8, 64], [50.0, 55.0, 90.0, 400.0]).to_json())
    return path


def test_the_reference_tree_on_an_h100(planned):
    """Ridge 295, break-even 29, and 640 tokens at batch 64 that are 2.2 times the ridge."""
    plan = planned("--tree", "reference", "--batch", "64", "--hardware", "h100", "--rank-probs", "0.7,0.15")
    tree = plan["tree"]
    assert plan["ridge_tokens"] == pytest.approx(295.2, abs=0.05)
    assert tree["expected_tokens"] == pytest.approx(3.28, abs=0.005)
    assert (tree["verified_tokens"], tree["break_even_batch"], tree["kind"]) == (640, 29, "tree")
    assert tree["past_ridge"] == pytest.approx(2.2, abs=0.05)
    assert tree["speedup"] == pytest.approx(3.2801 * 295.224 / 640, rel=1e-3)
    # 10 B rows cost 3.28 times a plain step at 10 B = 3.28 x 295
    assert tree["last_paying_batch"] == 96
    assert tree["plain_ms"] == pytest.approx(16e9 / 3.35e12 * 1e3)


def test_a_chain_of_four_on_an_h100(planned):
    tree = planned("--tree", "chain:4", "--batch", "64")["tree"]
    assert tree["expected_tokens"] == pytest.approx(2.77, abs=0.005)
    assert (tree["verified_tokens"], tree["break_even_batch"], tree["kind"]) == (320, 59, "chain")


def test_the_decision_reverses(planned):
    plan = planned()
    assert plan["decision"] == [
        {"kind": "tree", "first_batch": 1, "last_batch": 44},
        {"kind": "chain", "first_batch": 45, "last_batch": 250},
        {"kind": "nothing", "first_batch": 251, "last_batch": 256},
    ]
    assert [entry["batch"] for entry in plan["batches"]] == list(range(1, 257))
    one, many = plan["batches"][0], plan["batches"][63]
    assert one["best"]["speedup"] > one["tree"]["speedup"]
    assert many["chain"]["speedup"] > many["tree"]["speedup"]
    # the best tree of a batch is the first nodes of the planned one
    num_nodes = many["best"]["num_drafted"] + 1
    assert plan["planned"]["parents"][:num_nodes] == list(td.TreeShape.chain(num_nodes - 1).parents)


def test_what_people_read(run):
    ran = run("plan", "--batch", "64")
    assert (ran.code, ran.err) == (0, "")
    facts = {
        words[0]: words[1]
        for words in (re.split(r"\s{2,}", line) for line in ran.out.splitlines())
        if words[1:]
    }
    assert facts["expected tokens"] == "3.28"
    assert facts["verified tokens"] == "640"
    assert facts["ridge"] == "295"
    assert facts["break-even"] == "batch 29"
    assert facts["speed-up"] == "1.51x"
    assert "2.2x  past the ridge" in ran.out
    assert "NVIDIA H100 Tensor Core GPU datasheet" in ran.out
    assert "Best: wide tree at batch 1-44, chain at batch 45-250, nothing at batch 251-256." in ran.out
    rows = [
        line.split() for line in ran.out.splitlines() if re.match(r"\s*\d+ (wide tree|chain|nothing)", line)
    ]
    assert [int(row[0]) for row in rows] == [1, 2, 4, 8, 16, 32, 44, 45, 64, 128, 250, 251, 256]
    assert rows[8] == ["64", "chain", "4", "4", "2.77", "320", "1.08", "2.56x", "2.56x", "1.51x"]
    assert not any(line != line.rstrip() for line in ran.out.splitlines())


def test_a_limit_that_binds_is_said(run):
    assert "--max-drafted allows more" in run("plan", "--max-drafted", "64").out
    assert "--max-drafted allows more" not in run("plan", "--max-drafted", "400").out


def test_other_hardware_and_weights(planned):
    given = planned("--tflops", "100", "--tb-per-s", "1")
    assert given["ridge_tokens"] == pytest.approx(100.0)
    assert given["cost"]["source"] == "given by the user"
    assert planned("--weight-bytes", "0.5")["ridge_tokens"] == pytest.approx(295.224 / 4, rel=1e-5)
    by_params = planned("--params", "8B", "--weight-bytes", "0.5")
    by_bytes = planned("--model-bytes", "4e9", "--weight-bytes", "0.5")
    assert by_params["tree"]["plain_ms"] == pytest.approx(4e9 / 3.35e12 * 1e3)
    assert by_params == by_bytes


def test_kv_cache_leaves_room_for_more_rows(planned):
    bare = planned("--batch", "64")
    cached = planned("--batch", "64", "--context", "4096", "--kv-bytes-per-token", "131072")
    extra = 64 * 4096 * 131072 / 3.35e12 * 1e3
    assert cached["tree"]["plain_ms"] == pytest.approx(bare["tree"]["plain_ms"] + extra)
    assert cached["batches"][63]["best"]["num_drafted"] > bare["batches"][63]["best"]["num_drafted"]


def test_acceptance_by_depth(planned):
    plan = planned("--tree", "chain:3", "--rank-probs", "0.8/0.5,0.2")
    assert plan["rank_probs"] == [[0.8], [0.5, 0.2]]
    assert plan["tree"]["expected_tokens"] == pytest.approx(1 + 0.8 + 0.4)
    # one list holds at every depth
    assert planned("--tree", "chain:2", "--rank-probs", "0.5")["tree"]["expected_tokens"] == pytest.approx(
        1.75
    )


def test_measured_cost(planned, run, cost_file):
    plan = planned("--cost", cost_file, "--tree", "chain:3", "--max-batch", "16", "--batch", "2")
    assert plan["ridge_tokens"] is plan["tree"]["break_even_batch"] is plan["tree"]["past_ridge"] is None
    assert plan["tree"]["step_ms"] == pytest.approx(90.0)
    assert plan["tree"]["speedup"] == pytest.approx(2.533 * (50 + 5 / 3) / 90)
    text = run("plan", "--cost", cost_file).out
    assert "measured up to 64 rows" in text
    assert "ridge" not in text


def test_measured_cost_by_context(planned, tmp_path):
    path = tmp_path / "surface.json"
    path.write_text(td.CostSurface([1, 8], [0, 1000], [[10.0, 20.0], [30.0, 80.0]]).to_json())
    assert planned("--cost", path)["tree"]["plain_ms"] == pytest.approx(10.0)
    assert planned("--cost", path, "--context", "1000")["tree"]["plain_ms"] == pytest.approx(30.0, rel=0.05)


def test_a_context_that_was_not_measured_is_said(run, tmp_path):
    path = tmp_path / "surface.json"

    def said(*args):
        return " ".join(run("plan", "--cost", path, *args).out.split())

    path.write_text(td.CostSurface([1, 8], [64, 1000], [[10.0, 20.0], [30.0, 80.0]]).to_json())
    assert "times at 64 to 1000 tokens of context, extrapolated for 9999" in said("--context", "9999")
    assert "times at 64 to 1000 tokens of context, taken as they are for 10" in said("--context", "10")
    assert "tokens of context" not in said("--context", "1000")
    path.write_text(td.CostSurface([1, 8], [64], [[10.0, 20.0]]).to_json())
    assert "times at 64 tokens of context, taken as they are for 9999" in said("--context", "9999")


def test_cost_of_a_calibration(planned, run, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    conditions = Conditions.here(tmp_path, "cpu", "float32", "fused", "blocked", "int8")
    surface = td.CostSurface([1, 10, 32], [16, 1024], [[10.0, 15.0, 30.0], [12.0, 24.0, 60.0]])
    path = save(Calibration(conditions, surface, datetime.now(UTC), 7, 0.02), tmp_path / "calibration.json")
    tree = planned("--cost", path, "--context", "1024")["tree"]
    assert (tree["plain_ms"], tree["step_ms"]) == pytest.approx((12.0, 24.0))
    assert tree["speedup"] == pytest.approx(3.2801 / 2, rel=1e-4)
    text = run("plan", "--cost", path).out
    assert f"{tmp_path.name} in float32 on {conditions.cpu}" in text


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PDF"])
def test_pictures(run, tmp_path, suffix):
    path = tmp_path / f"plan{suffix}"
    ran = run("plan", "--plot", path)
    assert (ran.code, ran.err) == (0, f"plot: {path}\n")
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()]
    assert path.read_bytes().startswith(magic)


def test_the_picture_shows_what_the_tables_say():
    from treedecode.cli.plan import make_plan
    from treedecode.cli.plan_plot import make_figure
    from treedecode.cli.tree_text import read_tree

    cost = CostOptions(None, None, None, None, None, None, 0, None, None).resolve()
    plan = make_plan(read_tree("reference"), [[0.7, 0.15]], cost, 64, 64, 256)
    gains, sizes = make_figure(plan).axes
    lines = {line.get_label(): line for line in gains.lines}
    assert list(lines["best tree"].get_ydata()) == [choice.speedup for choice in plan.swept.best]
    assert list(lines["best chain"].get_ydata()) == [choice.speedup for choice in plan.swept.chains]
    assert list(lines["reference (10 nodes)"].get_ydata()) == [choice.speedup for choice in plan.given]
    assert lines["plain decoding"].get_ydata()[0] == 1.0
    words = {text.get_text() for text in gains.texts}
    assert words == {"break-even: 29", "ridge: 295 rows", "wide tree", "chain", "nothing"}
    marks = [line.get_xdata()[0] for line in gains.lines if line.get_linestyle() == ":"]
    assert marks == pytest.approx([29.52, 295.2], abs=0.05)
    assert sizes.get_xscale() == "log"


def test_a_page_needs_nothing_else(run, tmp_path):
    path = tmp_path / "plan.html"
    ran = run("plan", "--plot", path, "--tree", "chain:4", "--batch", "64")
    page = path.read_text()
    picture = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    assert xml.etree.ElementTree.fromstring(picture).tag.endswith("svg")
    assert ran.out.strip() in page
    assert not re.search(r"(src|href)=\"https?:", page)


@pytest.mark.parametrize(
    "args",
    [
        ("--max-batch", "1"),
        ("--max-drafted", "0"),
        ("--tree", "chain:0"),
        ("--rank-probs", "0"),
        ("--rank-probs", "1"),
        ("--max-batch", "4096", "--max-drafted", "8"),
        ("--hardware", "l40s", "--params", "70B", "--max-batch", "3"),
    ],
)
def test_extremes(run, tmp_path, args):
    ran = run("plan", "--plot", tmp_path / "plan.png", *args)
    assert ran.code == 0
    assert "Best: " in ran.out


def test_matplotlib_is_optional(run, monkeypatch, tmp_path):
    for name in ("matplotlib", "matplotlib.axes", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "treedecode.cli.plan_plot", raising=False)
    assert run("plan").code == 0
    ran = run("plan", "--plot", tmp_path / "plan.png")
    assert (ran.code, ran.out) == (2, "")
    assert (
        ran.err
        == "treedecode: --plot needs matplotlib, which is not installed: pip install 'treedecode[plot]'\n"
    )


def test_help_teaches(run):
    ran = run("plan", "--help")
    assert ran.code == 0
    assert "treedecode plan --tree chain:4 --batch 64" in ran.out
    assert "mi300x" in ran.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tree", "oak"], ["--tree", "oak", "leaf-siblings:4x3"]),
        (["--tree", "widths:2,x"], ["--tree", "widths:2,2,1"]),
        (["--rank-probs", ""], ["--rank-probs", "0.7,0.15"]),
        (["--rank-probs", "0.7;0.1"], ["--rank-probs", "0.7;0.1"]),
        (["--rank-probs", "0.7,0.5"], ["--rank-probs", "sum to at most 1", "1.2"]),
        (["--rank-probs", "1.5"], ["--rank-probs", "[0, 1]", "1.5"]),
        (["--rank-probs", "nan"], ["--rank-probs", "[0, 1]", "nan"]),
        (["--rank-probs", "0.7/"], ["--rank-probs"]),
        (["--batch", "0"], ["--batch", "1 to 4096", "0"]),
        (["--batch", "1..256"], ["--batch", "integer", "1..256"]),
        (["--max-batch", "100000"], ["--max-batch", "4096"]),
        (["--max-drafted", "-1"], ["--max-drafted", "-1"]),
        (["--max-drafted", "5000"], ["--max-drafted", "1024"]),
        (["--hardware", "abacus"], ["--hardware", "abacus", "h100", "mi300x", "--tflops"]),
        (["--hardware", ""], ["--hardware", "h100"]),
        (["--hardware", "h100", "--tflops", "1", "--tb-per-s", "1"], ["--hardware", "--tflops"]),
        (["--tflops", "100"], ["--tb-per-s is missing"]),
        (["--tb-per-s", "1"], ["--tflops is missing"]),
        (["--tflops", "0", "--tb-per-s", "1"], ["--tflops", "above 0"]),
        (["--tflops", "nan", "--tb-per-s", "1"], ["--tflops", "above 0", "nan"]),
        (["--tflops", "1", "--tb-per-s", "inf"], ["--tb-per-s", "above 0", "inf"]),
        (["--tflops", "1e-300", "--tb-per-s", "1e300"], ["bytes_per_s", "finite", "inf"]),
        (["--tflops", "1e290", "--tb-per-s", "1e-300"], ["the ridge", "finite", "inf"]),
        (["--params", "1e308"], ["milliseconds of a step", "finite", "inf"]),
        (["--params", "many"], ["--params", "number"]),
        (["--params", "-8B"], ["--params", "above 0", "-8B"]),
        (["--params", "8B", "--model-bytes", "16e9"], ["--params", "--model-bytes"]),
        (["--weight-bytes", "0"], ["--weight-bytes", "above 0"]),
        (["--context", "100"], ["--context", "--kv-bytes-per-token"]),
        (["--kv-bytes-per-token", "100"], ["--context", "--kv-bytes-per-token"]),
        (["--context", "-1"], ["--context", "at least 0"]),
        (["--cost", "/no/such/file"], ["--cost", "/no/such/file", "No such file"]),
        (["--cost", "/"], ["--cost", "directory"]),
        (["--plot", "/no/such/folder/plan.png"], ["--plot", "/no/such/folder/plan.png", "No such file"]),
        (["--plot", "plan.gif"], ["--plot", ".png, .svg, .pdf, .html", "plan.gif"]),
        (["--plot", ""], ["--plot"]),
        (["second"], ["second"]),
    ],
)
def test_bad_input(run, args, words):
    ran = run("plan", *args)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("treedecode: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["expected JSON"]),
        (b"{", ["expected JSON"]),
        (b"caf\xe9", ["utf-8"]),
        (b"[]", ["rows"]),
        (b'{"rows": [1, 2], "ms": [2.0, 1.0]}', ["must not fall"]),
        (b'{"rows": [1], "ms": ["x"]}', ["times must be numbers"]),
        (b'{"rows": [1], "ms": ["10"]}', ["times must be numbers", "'10'"]),
        (b'{"schema_version": 99}', ["schema_version 1", "99"]),
    ],
)
def test_bad_cost_files(run, tmp_path, content, words):
    path = tmp_path / "cost.json"
    path.write_bytes(content)
    ran = run("plan", "--cost", path)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert all(word in line for word in ["--cost", str(path), *words]), line


@pytest.mark.parametrize("flag", ["--hardware", "--tflops", "--params", "--model-bytes", "--weight-bytes"])
def test_a_measurement_and_a_roofline(run, cost_file, flag):
    ran = run("plan", "--cost", cost_file, flag, "h100" if flag == "--hardware" else "1")
    assert ran.code == 2
    assert flag in ran.err and "--cost" in ran.err
