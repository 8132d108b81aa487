"""`flax-transformer report` and `attention` on runs whole and unfinished, and on folders that are none."""

import io
import json
import re
import shutil
from contextlib import redirect_stdout

import numpy as np
import pytest
from PIL import Image

from flax_transformer.task.experiment import train
from flax_transformer.task.report import write_report
from flax_transformer.train.folder import RunFolder
from tests.recipe import tiny_translation

pytestmark = pytest.mark.rotates

EXPERIMENT = tiny_translation(samples=3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("report") / "run", io.StringIO()
    with redirect_stdout(said):
        train(EXPERIMENT, folder)
    return folder, said.getvalue()


@pytest.fixture(scope="module")
def finished(trained):
    return trained[0]


@pytest.fixture
def workdir(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def data(path):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    return json.loads(text.group(1))


def test_a_run_ends_with_its_report(finished):
    page = data(finished / "report.html")
    assert page["title"] == "run"
    assert page["notes"] == ["BLEU is not given: no reference has 4 tokens, so that there are no 4-grams to match."]
    assert page["series"]["train"]["step"] == [2, 4]
    assert set(page["series"]) == {"train", "validation", "test"}
    assert page["samples"]["total"] == 6
    assert page["config"] == json.loads((finished / "config.json").read_text())
    assert [maps["name"] for maps in page["pictures"][0]["maps"]] == ["encoder self", "decoder self", "cross"]
    assert [(maps["layers"], maps["heads"]) for maps in page["pictures"][0]["maps"]] == [(2, 2), (1, 2), (1, 2)]
    assert len(page["pictures"]) == 3


def test_the_end_of_a_run_tells_of_the_report(trained):
    folder, said = trained
    assert f"report: {folder / 'report.html'}\n" in said


def test_the_report_can_be_made_again(run, workdir):
    first = data(workdir / "report.html")
    (workdir / "report.html").unlink()
    assert run("report", workdir) == (0, f"{workdir / 'report.html'}\n", "")
    assert data(workdir / "report.html") == first


def test_an_unfinished_run_is_sampled_on_the_spot(run, workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (workdir / "metrics.jsonl").write_text("".join(line for line in lines if '"test"' not in line) + '{"step": 6, "sp')
    assert run("report", workdir)[0] == 0
    page = data(workdir / "report.html")
    assert page["notes"] == [
        "1 line of metrics.jsonl could not be read.",
        "The run has not finished: it stands at step 4 of 4.",
        "The samples are by the newest checkpoint, 3 of 6 test sentences.",
    ]
    assert page["samples"]["total"] == 3
    assert len(page["pictures"]) == 3


def test_a_run_without_a_checkpoint_has_its_curves(run, workdir):
    shutil.rmtree(workdir / "checkpoints")
    assert run("report", workdir)[0] == 0
    page = data(workdir / "report.html")
    assert page["series"]["train"]["step"] == [2, 4]
    assert page["pictures"] is page["samples"] is None
    (note,) = page["notes"]
    assert note.startswith("There are no samples and no attention: there are no checkpoints: no folder")


def test_a_damaged_checkpoint_leaves_the_curves(run, workdir):
    for path in (workdir / "checkpoints" / "4").rglob("*"):
        if path.is_file() and path.stat().st_size > 2_000:
            path.write_bytes(b"x" * path.stat().st_size)
    assert run("report", workdir)[0] == 0
    page = data(workdir / "report.html")
    assert page["series"]["train"]["step"] == [2, 4]
    assert page["notes"][0].startswith("There are no samples and no attention: ")


@pytest.mark.parametrize(
    "lines", ["", '{"source": 3}\n', '{"source": "a", "tokens": ["nowhere"]}\n', '{"tokens": 5}\n']
)
def test_strange_samples_break_nothing(run, workdir, lines):
    (workdir / "samples.jsonl").write_text(lines)
    assert run("report", workdir)[0] == 0
    assert data(workdir / "report.html")["series"]["train"]["step"] == [2, 4]


def test_runs_of_other_experiments_have_their_curves(run, workdir):
    for name in ("flax_transformer.task.experiment:Experiment", "__main__:Reverse"):
        config = {"type": name, "train": {"type": "flax_transformer.train.loop:TrainConfig", "steps": 4}}
        (workdir / "config.json").write_text(json.dumps(config))
        assert run("report", workdir)[0] == 0
        page = data(workdir / "report.html")
        assert page["facts"][0] == ["experiment", name.split(":")[1]]
        assert page["pictures"] is page["samples"] is None
        assert page["notes"] == []


def test_a_folder_that_is_no_run_is_said_to_be_none(run, tmp_path):
    assert run("report", tmp_path) == (1, "", f"error: {tmp_path} is not a run folder: it has no config.json\n")
    assert run("attention", tmp_path, "one") == (1, "", f"error: no config.json in {tmp_path}\n")


def test_a_checkpoint_gets_no_report(run, workdir):
    for command in ("report", "show"):
        code, out, err = run(command, workdir / "export")
        assert (code, out) == (1, "")
        assert err == (
            f"error: {workdir / 'export'} is not a run folder but a checkpoint: its config.json has "
            "model_type='marian'\n"
        )
    assert not (workdir / "export" / "report.html").exists()


def test_paths_in_a_report_are_those_below_its_folders(run, workdir, monkeypatch, tmp_path):
    config = json.loads((workdir / "config.json").read_text())
    (workdir / "config.json").write_text(json.dumps({**config, "data": {**config["data"], "root": "/data/mine"}}))
    samples = [{"source": "/data/mine/cat/1.png", "target": f"{tmp_path}/x.png", "hypothesis": "y"}]
    (workdir / "samples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in samples))
    monkeypatch.chdir(tmp_path)
    page = data(write_report(RunFolder(workdir), notes=[f"There is no {tmp_path}/run/model.json."]))
    assert [(each["source"], each["target"]) for each in page["samples"]["shown"]] == [("cat/1.png", "x.png")]
    assert page["notes"] == ["There is no run/model.json."]


def test_attention_writes_a_page_and_pictures(run, workdir):
    code, out, err = run("attention", workdir, "three hundred five")
    names = ["attention.html", "encoder-self.png", "decoder-self.png", "cross.png"]
    assert (code, out.splitlines(), err) == (0, [str(workdir / "attention" / name) for name in names], "")
    page = data(workdir / "attention" / "attention.html")
    assert page["pictures"][0]["source"] == "three hundred five"
    assert page["series"] is page["config"] is None
    assert page["samples"]["shown"][0]["tokens"] == page["pictures"][0]["maps"][2]["rows"]
    for name in names[1:]:
        with Image.open(workdir / "attention" / name) as image:
            assert np.asarray(image.convert("L")).std() > 1


def test_attention_goes_where_it_is_told_and_shows_the_layer_asked_for(run, workdir, tmp_path):
    code, out, _ = run("attention", workdir, "seven", "--output", tmp_path / "a" / "b", "--layer", 2)
    assert code == 0
    assert [line.split("/")[-1] for line in out.splitlines()] == ["attention.html", "encoder-self.png"]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["attention.html", "encoder-self.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), "the sentence must not be empty, got ''"),
        (("seven " * 300,), "a sentence must have fewer than 128 tokens to be drawn, got "),
        (("seven", "--layer", 3), "layer must be between 1 and 2, got 3"),
    ],
)
def test_what_cannot_be_drawn_is_said(run, workdir, arguments, message):
    code, out, err = run("attention", workdir, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {message}")
    assert not (workdir / "attention").exists()


def test_attention_needs_a_checkpoint(run, workdir):
    shutil.rmtree(workdir / "checkpoints")
    code, out, err = run("attention", workdir, "seven")
    assert (code, out) == (1, "")
    assert err == f"error: there are no checkpoints: no folder {workdir / 'checkpoints'}\n"
