"""The page of several runs holds what it was given, says what is missing, and shows it in a browser."""

import json
import re

import numpy as np
import pytest

from flax_transformer.atomic import write_file
from flax_transformer.report import AttentionMaps, ImageAttention, ImageMaps, TextAttention, Tiling
from flax_transformer.report.comparison import ComparedRun, Metric
from flax_transformer.report.comparison_page import Comparison, comparison_table, matched, render_comparison

BREAK = "document.title='broken'"
NASTY = f'</script><script>{BREAK}</script><img src=x onerror="{BREAK}"><!-- & {{{{js}}}}'


def records(scale=1.0, bleu=30.0, counts=True):
    found = []
    for step in (100, 200):
        told = {"tokens": 4_000.0} if counts else {}
        found.append({"step": step, "split": "train", "loss": scale * 400 / step, "tokens_per_second": 2_000.0, **told,
                      "seconds": 90.0, "cpu_seconds": 120.0})  # fmt: skip
        found.append({"step": step, "split": "validation", "loss": scale * 300 / step})
    return [*found, {"step": 200, "split": "test", "bleu": bleu}]


def attended(rows=("ein", "·Hund"), layers=2):
    weights = np.full((layers, 2, len(rows), 2), 0.5, np.float32)
    return TextAttention("a dog", " ".join(rows), (AttentionMaps("cross", weights, rows, ("a", "·dog")),))


def run(name, kind, seed=0, said="ein Hund", **changes):
    given = {
        "config": {"type": "m:Recipe", "model": {"type": f"m:{kind}"}, "train": {"seed": seed}},
        "records": records(), "parameters": 1_234_567, "flops": 8_560_000_000,
        "samples": [{"source": "a dog", "target": "ein Hund", "hypothesis": said}], "text_attention": [attended()],
    }  # fmt: skip
    return ComparedRun(name=name, **{**given, **changes})


RUNS = (
    run("base", "Transformer"),
    run("lstm-0", "Lstm", 0, "ein Haus", records=records(2.0, 20.0), text_attention=[attended(("ein", "·Haus"), 1)]),
    run("lstm-1", "Lstm", 1, "eine", records=records(2.2, 21.0)),
    run("old", "Gru", records=records(1.5, 25.0, counts=False), flops=None, samples=[], text_attention=[]),
)
COMPARISON = Comparison(runs=RUNS, metric=Metric("test", "bleu"))


def data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


@pytest.fixture
def show(chromium, tmp_path):
    """Open a comparison; nothing may complain or be fetched."""

    def open_(comparison, **options):
        chromium.open(write_file(tmp_path / "comparison.html", render_comparison(comparison)), **options)
        return chromium

    yield open_
    assert chromium.complaints() == []
    assert chromium.requests() == [(tmp_path / "comparison.html").resolve().as_uri()]


def test_the_page_has_every_run_and_its_group():
    page = data(render_comparison(COMPARISON))
    assert page["groups"] == ["base", "lstm", "old"]
    assert [(one["name"], one["group"]) for one in page["curves"]] == [
        ("base", 0), ("lstm-0", 1), ("lstm-1", 1), ("old", 2),
    ]  # fmt: skip
    bleu = [row[page["scores"]["metrics"].index(["test", "bleu"])] for row in page["scores"]["rows"]]
    assert bleu[0] == [30.0, None, 1]
    assert bleu[1] == [20.5, pytest.approx(0.5**0.5), 2]
    assert page["curves"][0]["splits"]["train"]["at"]["items"] == [4000.0, 8000.0]
    assert page["settings"] == [["model", ["Transformer", "Lstm", "Gru"]]]
    assert [view and len(view["maps"]) for view in page["pictures"][0]["views"]] == [1, 1, None]


def test_what_is_missing_is_said():
    notes = data(render_comparison(COMPARISON))["notes"]
    assert "Of old the FLOPs of a step are not known, so there are no curves over that." in notes
    assert "Of old how much it was trained on is not known, so there are no curves over that." in notes
    assert "There are no samples of old." in notes
    lone = Comparison(runs=(*RUNS[:1], run("b", "Gru", records=records()[:-1])), metric=Metric("test", "bleu"))
    assert "test bleu is missing for b." in data(render_comparison(lone))["notes"]


def test_samples_are_matched_by_source_reference_and_picture():
    sample = {"source": "which?", "target": "yes", "picture": "data:1"}
    assert len(matched([[sample], [{**sample, "hypothesis": "no"}]])) == 1
    for other in ({"source": "what?"}, {"target": "no"}, {"picture": "data:2"}):
        assert matched([[sample], [{**sample, **other}]]) == []


def test_the_table_has_aligned_columns_and_spreads():
    lines = comparison_table(COMPARISON).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["base", "lstm", "old"]
    assert len({len(line) for line in lines[:4]}) == 1
    assert "20.50 ± 0.71" in lines[2]
    assert lines[3].count("–") == 1
    assert lines[-1].startswith("± is the sample standard deviation of n runs")
    assert "±" not in comparison_table(Comparison(runs=RUNS[:2], metric=COMPARISON.metric))


@pytest.mark.rotates
def test_every_part_is_on_the_page(show):
    page = show(COMPARISON)
    text = page.text()
    for part in ("Scores", "20.50", "± 0.71", "missing", "Curves", "Cost", "8.56 G", "1,234,567", "3:00 min", "Samples",
                 "ein Haus", "✓ ein Hund", "Attention", "no cross attention to show", "Settings", "Lstm"):  # fmt: skip
        assert part in text, part
    assert page.run("document.querySelectorAll('.chart').length") == 2
    assert page.run("document.querySelectorAll('.chart svg path').length") == 8


@pytest.mark.rotates
def test_curves_are_drawn_over_what_is_chosen(show):
    page = show(COMPARISON)
    assert page.hover(*page.middle(".chart svg", 0.99)) == ("steps 200\nbase 1.5\nlstm-0 3\nlstm-1 3.3\nold 2.25")
    page.click("[aria-label='what lies along'] button:nth-child(2)")
    page.drawn()
    assert page.run("document.querySelectorAll('.chart svg path').length") == 6
    assert "not drawn over tokens: old" in page.text()
    assert page.hover(*page.middle(".chart svg", 0.99)).startswith("tokens 8 k\nbase 1.5")
    page.click("[aria-label='what lies along'] button:nth-child(4)")
    page.drawn()
    assert page.hover(*page.middle(".chart svg", 0.99)).startswith("time 3:00 min\n")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_lies_outside_the_page(show, width, dark):
    page = show(COMPARISON, width=width, dark=dark)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("getComputedStyle(document.querySelector('.chart path')).stroke") != "none"


def test_what_a_user_wrote_stays_text(show):
    bad = run(NASTY, NASTY, samples=[{"source": NASTY, "target": NASTY, "hypothesis": NASTY}], notes=(NASTY,))
    other = run("b", "Gru", samples=[{"source": NASTY, "target": NASTY, "hypothesis": "b"}])
    page = show(Comparison(runs=(bad, other), metric=Metric("test", "bleu"), title=NASTY))
    assert page.run("document.title") == NASTY
    assert page.run("document.querySelectorAll('img').length") == 0


def test_attention_over_an_image_is_beside_its_extent(show):
    tiles = Tiling(2, 2, 4, 4, ("class_token",))
    flat = np.full((1, 2, 5, 5), 0.2, np.float32)
    peaked = np.broadcast_to(np.array([0.1, 0.6, 0.1, 0.1, 0.1], np.float32), flat.shape)
    images = [
        ImageAttention("dark.png", np.full((8, 8, 3), 4, np.uint8), (ImageMaps("self", weights, tiles, tiles),))
        for weights in (peaked, flat)
    ]
    runs = tuple(run(name, name, images=[image]) for name, image in zip("ab", images, strict=True))
    page = show(Comparison(runs=runs, metric=Metric("test", "bleu")))
    assert "a\nmax 0.6 · uniform 0.2" in page.text()
    assert "b\nflat: max 0.2 · uniform 0.2" in page.text()
    shown = page.run("[...document.querySelectorAll('.sights img')].map((image) => image.src)")
    assert len(set(shown)) == 3
