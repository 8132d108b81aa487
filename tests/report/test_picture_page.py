"""Samples with images or probabilities: classes and predictions, the most wrong first, boxes, strips, confusions."""

import json
import re

import numpy as np
import pytest

from flax_transformer.report import Report, read_run, render
from flax_transformer.report.sample import save_image, write_confusion
from flax_transformer.train.folder import RunFolder

pytestmark = pytest.mark.proves("report", "images of samples, boxes, confusions")

CLASSES = ("cat", "dog", "</script><img src=x onerror=\"document.title='broken'\">")
PREDICTED = [(0, 0, 0.9), (0, 1, 0.4), (1, 0, 0.8), (2, 2, 0.3)]
"""True class, class told, score."""
FOUND = {
    "size": [20, 10],
    "objects": [{"label": "cat", "box": [1, 1, 9, 9]}],
    "found": [
        {"label": "cat", "score": 0.9, "box": [1, 1, 8, 9]},
        {"label": "dog", "score": 0.2, "box": [9, 1, 19, 9]},
    ],
}


@pytest.fixture
def run(tmp_path):
    """A folder of a run that classified four images."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "test", "accuracy": 0.5}\n')
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    write([
        {"picture": save_image(tmp_path, str(i), pixels[i]), "source": f"image {i}", "target": CLASSES[true],
         "hypothesis": CLASSES[told], "score": score, "scores": {CLASSES[told]: score}}
        for i, (true, told, score) in enumerate(PREDICTED)
    ], tmp_path)  # fmt: skip
    truth, told, _ = zip(*PREDICTED, strict=True)
    write_confusion(tmp_path, CLASSES, truth, told)
    return tmp_path


def write(samples, root):
    (root / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def lines(root):
    return [json.loads(line) for line in (root / "samples.jsonl").read_text().splitlines()]


CARDS = "[...document.querySelectorAll('.picture')].map(card => card.innerText)"


def test_the_most_wrong_come_first_and_a_count_leads_to_its_pictures(show, run):
    page = show(read_run(RunFolder(run)))
    assert (
        page.run("Promise.all([...document.images].map(image => image.decode())).then(() => document.images.length)")
        == 4
    )
    assert [re.search(r"image \d", card)[0][-1] for card in page.run(CARDS)] == ["2", "1", "3", "0"]
    assert page.run(CARDS)[0].startswith("✗ cat 0.80\nreference: dog")
    assert page.run("[...document.querySelectorAll('.confusion tbody td')].map(cell => cell.innerText)") == [
        "1", "1", "·", "50.0 %", "1", "·", "·", "0.0 %", "·", "·", "1", "100.0 %",
    ]  # fmt: skip
    page.click("[aria-label='dog predicted as cat']")
    assert [card.splitlines()[0] for card in page.run(CARDS)] == ["✗ cat 0.80"]
    assert page.run("document.title") != "broken"


def test_texts_have_bars_of_probabilities_as_images_do(show, run):
    """The same cards, without an image; a count of the confusion leads to them, too."""
    without = [{**{name: sample[name] for name in sample if name != "picture"}, "source": f"text {i}"}
               for i, sample in enumerate(lines(run))]  # fmt: skip
    write(without, run)
    page = show(read_run(RunFolder(run)))
    assert "Texts" in page.text()
    assert "4 of the test texts" in page.text()
    assert page.run("document.images.length") == 0
    assert [card.splitlines()[0] for card in page.run(CARDS)] == ["text 2", "text 1", "text 3", "text 0"]
    assert page.run("[...document.querySelectorAll('.chances')].map((bars) => bars.innerText.split('\\n').at(-1))") == [
        "0.80", "0.40", "0.30", "0.90",
    ]  # fmt: skip
    widths = page.run("[...document.querySelectorAll('.chances i')].map((bar) => bar.style.width)")
    assert widths == ["80%", "40%", "30%", "90%"]
    page.click("[aria-label='dog predicted as cat']")
    assert [card.splitlines()[0] for card in page.run(CARDS)] == ["text 2"]


def test_what_was_recognised_is_no_class(show, run):
    """A transcript has a reference, and no probabilities."""
    names = ("picture", "source", "target")
    write([{**{name: sample[name] for name in names}, "hypothesis": ""} for sample in lines(run)[:2]], run)
    page = show(read_run(RunFolder(run)))
    assert page.run(CARDS)[0].startswith("✗ (empty)\nreference: cat")
    assert "the output, and the reference where it differs" in page.text()
    assert "probabilit" not in page.text()


def test_boxes_are_drawn_above_a_score(show, run):
    write([{**lines(run)[0], **FOUND}], run)
    page = show(read_run(RunFolder(run)))
    coloured = "[...document.querySelectorAll('.picture rect')].filter(r => !/#000|#fff/.test(r.style.stroke) "
    coloured += "&& !/rgb.(0, 0, 0|255, 255, 255)/.test(r.style.stroke)).length"
    assert page.run(coloured) == 1
    assert "1 detected, 1 annotated" in page.text()
    page.run("(() => { const s = document.querySelector('[type=range]'); s.value = 0.1; s.oninput(); })()")
    assert page.run(coloured) == 2


def test_a_strip_has_its_caption(show, run):
    write([{"picture": lines(run)[0]["picture"], "caption": "Half of it, and the rest."}], run)
    assert "Half of it, and the rest." in show(read_run(RunFolder(run))).text()


@pytest.mark.parametrize("changes", [
    {"score": "x", "scores": [1], "target": None, "hypothesis": 3},
    {"size": [0, 3], "found": [{}]},
    {"size": [3, 3], "objects": "x", "found": [1, {}, {"box": [1, 2, 3]}, {"box": [None] * 4}, {"box": [3, 3, 1, 1]}]},
])  # fmt: skip
def test_fields_of_another_kind_break_nothing(show, run, changes):
    write([{**lines(run)[0], **changes}], run)
    assert len(show(read_run(RunFolder(run))).run(CARDS)) == 1


def test_a_picture_that_is_not_there_is_said_to_be_missing(run):
    (run / "samples/1.png").unlink()
    report = read_run(RunFolder(run))
    assert report.notes == ("1 image of samples could not be read.",)
    assert len(report.samples) == 3


def test_pictures_beyond_the_budget_are_left_out_and_it_says_so():
    page = render(Report(title="x", samples=[{"picture": "data:image/png;base64," + "A" * 2_000_000}] * 5))
    assert len(page) < 7e6
    assert "Images of samples left out, to keep the page small: 3." in page


def test_many_classes_are_listed_by_their_mistakes(show, tmp_path):
    counts = np.eye(40, dtype=int) + np.eye(40, k=3, dtype=int) * 2
    confusion = {"classes": [f"class {i}" for i in range(40)], "counts": counts.tolist()}
    page = show(Report(title="x", confusion=confusion))
    assert page.run("document.querySelectorAll('.confusion').length") == 0
    assert "class 0\tclass 3\t2\t66.7 %" in page.text()
