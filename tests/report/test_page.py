"""The page holds what it was given, in any text, and shows it in a browser."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from flax_transformer.report import AttentionMaps, Report, TextAttention, render, write_page
from flax_transformer.report.page import pack_maps
from flax_transformer.train.profile import Operation

BREAK = "document.title='broken'"
NASTY = f'</script><script>{BREAK}</script><img src=x onerror="{BREAK}"><!-- & \u2028 {{{{js}}}}'
random = np.random.default_rng(0)


def maps(name="cross", layers=2, heads=3, rows=("ein", "·Hund", "</s>"), columns=("a", "·dog")):
    weights = random.random((layers, heads, len(rows), len(columns))).astype(np.float32)
    return AttentionMaps(name, weights / weights.sum(-1, keepdims=True), rows, columns, caption=f"caption of {name}")


def records(steps=(100, 200, 300, 400)):
    rows = []
    for i, step in enumerate(steps):
        values = {"loss": 4.0 / (i + 1), "learning_rate": 0.001 * i, "gradient_norm": 0.5 + i, "tokens_per_second": 9e3}
        rows.append({"step": step, "split": "train", **values})
    rows.append({"step": 200, "split": "validation", "loss": 2.5, "perplexity": 12.0})
    rows.append({"step": 400, "split": "validation", "loss": 1.5, "perplexity": 4.0})
    return [*rows, {"step": 400, "split": "test", "bleu": 37.4, "exact_match": 12.5}]


def sample(**changes):
    given = {
        "source": "a dog",
        "target": "ein Hund",
        "hypothesis": "ein Haus",
        "tokens": ("ein", "·Haus", "</s>"),
        "logprobs": (-0.01, -1.6094379, -0.2),
    }
    return {**given, **changes}


REPORT = Report(
    title="numbers",
    facts={"parameters": "1,234"},
    records=records(),
    samples=[sample(), sample(source="a cat", target="eine Katze", hypothesis="eine Katze", tokens=("eine", "·Katze"))],
    text_attention=[
        TextAttention("a dog", "ein Hund", (maps("encoder self"), maps("cross"))),
        TextAttention("a cat", "Katze", (maps(),)),
    ],
    config={"type": "here:Thing", "train": {"type": "there:TrainConfig", "steps": 400, "act": {"function": "m:relu"}}},
    headline="bleu",
    profile=[
        Operation(module="Causal/trunk", name="dot_general", seconds=0.003, count=1200),
        Operation(module="", name="copy", seconds=0.001, count=2),
    ],
)


def data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))


def test_a_profile_is_shares_of_the_whole_and_the_longest_operations():
    found = data(render(REPORT))["profile"]
    assert found["modules"] == [["Causal/trunk", 0.75], ["(no module)", 0.25]]
    assert found["operations"][0] == ["Causal/trunk", "dot_general", 0.003, 0.75, 1200]
    many = [Operation(module="M", name=str(i), seconds=1.0, count=1) for i in range(23)]
    found = data(render(replace(REPORT, profile=many)))["profile"]
    assert (len(found["operations"]), found["more"]) == (20, 3)
    assert data(render(replace(REPORT, profile=None)))["profile"] is None


def test_weights_are_kept_to_half_a_step_of_16_bits():
    given = REPORT.text_attention[0].maps[1]
    kept = data(render(REPORT))["pictures"][0]["maps"][1]
    values = np.frombuffer(base64.b64decode(kept["weights"]), "<u2").reshape(given.weights.shape) / 65535
    assert np.abs(values - given.weights).max() <= 0.5 / 65535 + 1e-7
    assert (kept["rows"], kept["columns"]) == (list(given.rows), list(given.columns))


def test_a_head_has_the_rank_that_keeps_nine_tenths_of_its_singular_values():
    weights = np.zeros((1, 3, 4, 4), np.float32)
    weights[0, 0] = np.eye(4)
    weights[0, 1] = 0.25  # all look alike
    weights[0, 2, :, :2] = [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert pack_maps(AttentionMaps("encoder", weights, tuple("abcd"), tuple("abcd")))["ranks"] == [[4, 1, 2]]


def test_series_are_columns_in_the_order_of_steps_and_the_last_record_of_a_step_counts():
    page = data(render(replace(REPORT, records=[*records((300, 100)), {"step": 100, "split": "train", "loss": None}])))
    assert page["series"]["train"] == {
        "step": [100, 300],
        "loss": [None, 4.0],
        "learning_rate": [None, 0.0],
        "gradient_norm": [None, 0.5],
        "tokens_per_second": [None, 9000.0],
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "text", True, [1]])
def test_what_is_no_number_is_a_gap(value):
    report = Report(title="x", records=[{"step": 1, "split": "train", "loss": value}], config={"rate": value})
    assert data(render(report))["series"]["train"] == {"step": [1], "loss": [None]}


def test_a_long_run_is_thinned_and_says_so():
    page = data(render(replace(REPORT, records=records(range(0, 25_000, 10)))))
    steps = page["series"]["train"]["step"]
    assert len(steps) <= 1_001
    assert (steps[0], steps[-1]) == (0, 24_990)
    assert page["notes"] == ["Of 2,500 train records the page holds one in 3, and the last one."]


def test_samples_are_spread_and_the_least_sure_are_among_them():
    many = [sample(source=str(i), logprobs=(-0.1 - (i == 777), -0.1)) for i in range(1_000)]
    found = data(render(replace(REPORT, samples=many)))["samples"]
    sources = [int(one["source"]) for one in found["shown"]]
    assert found["total"] == 1_000
    assert len(sources) <= 40
    assert 777 in sources
    assert sources == sorted(sources)
    assert max(np.diff(sources)) <= 50


def base_sized():
    """A page of the base model: 6 layers, 8 heads, sentences of 40 tokens, a long run."""
    long = tuple(f"·word{i}" for i in range(40))
    kinds = [maps(kind, 6, 8, long, long) for kind in ("encoder self", "decoder self", "cross")]
    picture = TextAttention("a " * 40, "b " * 40, tuple(kinds))
    samples = [sample(source="a " * 40, tokens=long, logprobs=(-0.1,) * 40)] * 3_000
    return replace(REPORT, text_attention=[picture] * 3, records=records(range(0, 100_000, 50)), samples=samples)


def test_a_base_model_fits_in_three_megabytes():
    assert 1e6 < len(render(base_sized()).encode()) <= 3e6


def test_pictures_beyond_the_budget_are_left_out_and_it_says_so():
    report = base_sized()
    page = data(render(replace(report, text_attention=report.text_attention * 3)))
    assert 3 <= len(page["pictures"]) < 9
    assert any("left out" in note for note in page["notes"])


def nasty_report():
    texts = (NASTY, f"·{NASTY}", "\ud83d")
    return Report(
        title=NASTY,
        facts={NASTY: NASTY},
        notes=(NASTY,),
        records=[*records(), {"step": 1, "split": NASTY, NASTY: 1.0}],
        samples=[sample(source=NASTY, target=NASTY + "!", hypothesis=NASTY, tokens=texts)],
        text_attention=[TextAttention(NASTY, NASTY, (maps(NASTY, rows=texts, columns=texts[:2]),))],
        config={NASTY: NASTY, "inner": {NASTY: [NASTY], "type": NASTY}},
        headline=NASTY,
    )


def test_text_cannot_end_the_data_early():
    page = render(nasty_report())
    assert page.count("</script>") == 2
    assert "<img" not in page
    found = data(page)
    assert found["title"] == NASTY
    assert found["samples"]["shown"][0]["tokens"] == [NASTY, f"·{NASTY}", "?"]


def test_the_configuration_names_no_folders_of_this_machine():
    page = render(replace(REPORT, config={"data": {"root": "/home/me/cats"}, "files": ["/home/me/a.txt", "b/c.txt"]}))
    assert data(page)["config"] == {"data": {"root": "cats"}, "files": ["a.txt", "b/c.txt"]}
    assert "/home/me" not in page


def test_the_file_is_whole(tmp_path):
    path = write_page(tmp_path / "report.html", REPORT)
    assert path.read_text() == render(REPORT)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


# ---- in a browser ----------------------------------------------------------------------------------------------------


def test_every_part_is_on_the_page(show):
    text = show(REPORT).text()
    parts = "numbers,37.4,BLEU,Curves,gradient norm,Samples,ein Haus,the same,Attention,caption of cross,Metrics"
    for part in ("1,234", *parts.split(","), "Configuration"):
        assert part in text, part
    assert "1.5 at 400" in text  # validation loss, last
    for part in ("Profile", "dot_general", "Causal/trunk", "75.0 %", "1,200"):
        assert part in text, part
    assert show(REPORT).run("document.querySelectorAll('.chart svg path').length") == 6


def test_hovering_a_curve_gives_its_values(show):
    page = show(REPORT)
    assert page.hover(*page.middle(".chart svg", 0.98)) == "step 400\ntrain 1\nvalidation 1.5"
    assert page.hover(*page.middle(".chart svg", 0.2)) == "step 100\ntrain 4"
    assert page.hover(5, 5) == ""


def test_hovering_a_heat_map_gives_the_weight(show):
    page = show(REPORT)
    weights = REPORT.text_attention[0].maps[1].weights
    box = page.run("(() => { const c = document.querySelector('.map canvas'); c.scrollIntoView({block: 'center'});"
                   "const b = c.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })()")  # fmt: skip
    # The cells of a 3 × 2 map end at the canvas' lower right corner and are at most 40 pixels wide.
    assert page.hover(box[2] - 12, box[3] - 12) == f"</s> → ·dog\nweight {weights[1, 0, 2, 1]:.4f}"
    assert page.hover(box[2] - 12, box[3] - 92) == f"ein → ·dog\nweight {weights[1, 0, 0, 1]:.4f}"
    assert f"ein attends to ·dog with weight {weights[1, 0, 0, 1]:.4f} · uniform 0.5000" in page.text()
    assert page.hover(5, 5) == ""


def test_the_overview_and_the_keys_choose(show):
    page = show(REPORT)
    page.click("[aria-label='layer 1, head 3']")
    page.run("document.querySelector('.map canvas').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.press(key)
    tip = page.run("document.getElementById('tip').textContent")
    assert tip == f"·Hund → ·dog\nweight {REPORT.text_attention[0].maps[1].weights[0, 2, 1, 1]:.4f}"
    page.click("[aria-label='layer 1, mean of heads']")
    assert "cross, layer 1, mean of heads" in page.text()
    page.run("document.querySelector('.chart svg').focus()")
    page.press("End")
    assert page.run("document.getElementById('tip').textContent").startswith("step 400")


def test_hovering_a_token_gives_its_probability(show):
    page = show(REPORT)
    assert page.hover(*page.middle(".tokens span:nth-child(2)")) == "·Haus\nprobability 0.2\nlog-probability -1.609"
    shades = page.run(
        "[...document.querySelectorAll('.tokens')[0].children].map(t => getComputedStyle(t).backgroundColor)"
    )
    blue = [int(shade.strip("rgba()").split(",")[2]) if shade != "rgba(0, 0, 0, 0)" else 255 for shade in shades]
    assert blue[1] < blue[2] < blue[0]  # the orange of what is improbable


@pytest.mark.parametrize("dark", [False, True])
def test_text_on_colours_can_be_read(show, dark):
    """Digits of a confusion and tokens of any probability have a contrast of 4.5 at least, also after a change."""
    counts = [[97 - 8 * t * (t + 1) // 2 if t == p else t + 1 for p in range(5)] for t in range(5)]
    counts[3] = [0, 90, 0, 10, 0]
    sure = sample(
        tokens=tuple(f"t{i}" for i in range(21)), logprobs=[float(np.log(max(i / 20, 1e-9))) for i in range(21)]
    )
    report = replace(REPORT, samples=[sure], confusion={"classes": [f"c{i}" for i in range(5)], "counts": counts})
    for first in (dark, not dark):
        page = show(report, dark=first)
        page.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        ])  # fmt: skip
        page.drawn()
        found = page.run("""[...document.querySelectorAll('.confusion td, .tokens span')].map((cell) => {
          const own = getComputedStyle(cell), card = getComputedStyle(cell.closest('.card')).backgroundColor;
          return [own.color, own.backgroundColor === 'rgba(0, 0, 0, 0)' ? card : own.backgroundColor, cell.textContent];
        })""")
        assert len(found) == 5 * 6 + 21
        for ink, ground, text in found:
            assert contrast(ink, ground) >= 4.5, (ink, ground, text)


def contrast(*colours):
    """WCAG 2's contrast ratio of two opaque CSS colours."""
    light = []
    for colour in colours:
        values = np.array([float(each) / 255 for each in re.findall(r"[\d.]+", colour)[:3]])
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        light.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_a_model_that_generates_nothing_has_no_output(show):
    """An encoder's text has neither an output nor a legend of probabilities; orders need something to order by."""
    encoder = replace(REPORT, samples=[{"source": "a dog"}, {"source": "a cat"}])
    page = show(encoder)
    labels = "[...document.querySelectorAll('.sample .label')].map((label) => label.innerText)"
    assert page.run(labels) == ["source", "source"]
    for absent in ("output", "probability", "other than the reference"):
        assert (
            absent not in page.run("document.querySelector('.samples').parentElement.innerText").split("Attention")[0]
        )
    assert page.run("document.querySelector('.samples').previousElementSibling.className") != "bar"
    page = show(replace(REPORT, samples=[{"source": "a dog", "hypothesis": ""}]))
    assert page.run(labels) == ["source", "output"]
    assert "(empty)" in page.text()
    assert page.run("document.querySelectorAll('.ramp').length") == 1  # that of attention
    assert show(REPORT).run("document.querySelectorAll('.ramp').length") == 2


@pytest.mark.rotates
@pytest.mark.parametrize("steps", [(60,), (0,)])
@pytest.mark.parametrize("value", [3.2, 0.0, -1.0])
@pytest.mark.parametrize("log", [False, True])
def test_a_curve_of_one_point_has_a_marker_and_its_number(show, steps, value, log):
    page = show(Report(title="x", records=[{"step": steps[0], "split": "validation", "loss": value}]))
    if log:
        page.click("[aria-label='vertical scale'] button:nth-child(2)")
        page.drawn()
    box, (x, y, radius) = page.run("""(() => {
      const svg = document.querySelector('.chart svg'), dot = svg.querySelector('circle.alone');
      return [[svg.clientWidth, svg.clientHeight], ['cx', 'cy', 'r'].map((name) => Number(dot.getAttribute(name)))];
    })()""")
    assert 52 <= x <= box[0] - radius
    assert radius <= y <= box[1] - radius
    assert radius >= 4
    assert page.run("document.querySelector('.chart .single').textContent") == f"{value:g}"


@pytest.mark.parametrize("values", [(1.0643, 1.0652), (0.12345601, 0.12345655), (999.1, 999.4), (-3.00001, -3.00002)])
def test_ticks_of_a_narrow_range_can_be_told_apart(show, values):
    page = show(Report(title="x", records=[
        {"step": step, "split": "validation", "loss": value} for step, value in enumerate(values)
    ]))  # fmt: skip
    said = page.run("[...document.querySelectorAll('.chart text[text-anchor=end]')].map((text) => text.textContent)")
    numbers = [text for text in said if "." in text]
    assert len(set(numbers)) == len(numbers) >= 2


def test_numbers_beside_two_single_points_do_not_overlap(show):
    page = show(Report(title="x", records=[
        {"step": 60, "split": split, "loss": loss} for split, loss in (("train", 3.2), ("validation", 3.2))
    ]))  # fmt: skip
    first, second = page.run(
        "[...document.querySelectorAll('.chart .single')].map((text) => text.getBoundingClientRect().y)"
    )
    assert abs(first - second) >= 11


def test_samples_can_be_sorted_and_sifted(show):
    page = show(replace(REPORT, samples=[*REPORT.samples, *[sample(source=f"number {i}") for i in range(20)]]))
    count = "document.querySelectorAll('.sample').length"
    assert page.run(count) == 8
    page.click(".more")
    assert page.run(count) == 22
    page.click("[aria-label='order of samples'] button:nth-child(3)")
    assert page.run(count) == 21
    assert "eine Katze" not in page.text()


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_follow_the_system(show, dark):
    page = show(REPORT, dark=dark)
    luminance = "getComputedStyle(document.body).{}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
    ground, ink = (page.run(luminance.format(name)) for name in ("backgroundColor", "color"))
    assert (ground < ink) == dark
    assert abs(ground - ink) > 450
    corner = "document.querySelector('.heads canvas').getContext('2d').getImageData(0, 0, 1, 1).data[0]"
    strong = REPORT.text_attention[0].maps[1].weights[0, 0, 0, 0]
    first, last = (26, 170) if dark else (255, 12)
    assert page.run(corner) == pytest.approx(first + (last - first) * np.sqrt(strong), abs=1)


@pytest.mark.rotates
@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_page_is_wider_than_its_window(show, width):
    for report in (base_sized(), nasty_report()):
        page = show(report, width=width, height=740)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run("document.querySelector('.map canvas').getBoundingClientRect().width") > 100


def test_text_stays_text(show):
    page = show(nasty_report())
    assert page.run("document.title") != "broken"
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.text().count("<img src=x onerror=") >= 8


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"records": []}, "No numbers have been written yet"),
        ({"samples": []}, "None: they are written when a run ends"),
        ({"text_attention": []}, "No samples"),
        ({"notes": ("The run has not finished.",)}, "The run has not finished."),
        ({"records": [{"step": 3, "split": "train", "loss": 1.25}]}, "1.25 at 3"),
        ({"records": [{"step": 3, "split": "train", "loss": None}]}, "No numbers have been written yet"),
        ({"samples": [{}, {"source": 3, "tokens": None, "logprobs": "x"}]}, "Samples"),
        ({"records": None, "samples": None, "text_attention": None, "config": None}, "numbers"),
    ],
)
def test_what_is_missing_is_said_and_breaks_nothing(show, changes, says):
    page = show(replace(REPORT, **changes))
    assert says in page.text()
    assert ("Curves" in page.text()) == (changes.get("records", REPORT.records) is not None)
