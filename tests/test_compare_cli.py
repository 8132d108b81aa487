"""`flax-transformer compare` on runs whole, unfinished, old and of other programs, and on what cannot be compared."""

import json
import re
import shutil
from contextlib import redirect_stdout
from io import StringIO

import pytest

from flax_transformer.bench.comparison import step_flops
from flax_transformer.bench.experiment import from_experiment
from flax_transformer.bench.workload import Size
from flax_transformer.task.experiment import train
from flax_transformer.train.folder import RunFolder
from tests.recipe import tiny_translation

pytestmark = pytest.mark.rotates

EXPERIMENT = tiny_translation(samples=3)
OTHER = tiny_translation(samples=3, log_every=1)  # of the same compiled programs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare")
    with redirect_stdout(StringIO()):
        for name, experiment in {"a-0": EXPERIMENT, "a-1": tiny_translation(samples=3, seed=1), "b": OTHER}.items():
            train(experiment, root / name)
    return root


@pytest.fixture
def runs(finished, tmp_path):
    return [shutil.copytree(finished / name, tmp_path / name) for name in ("a-0", "a-1", "b")]


def data(path):
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    return json.loads(text.group(1))


def test_runs_are_on_one_page_and_in_a_table(run, runs, tmp_path):
    out = tmp_path / "new" / "page.html"
    code, said, err = run("compare", *runs, "--out", out)
    assert (code, err) == (0, "")
    head, *rows = said.splitlines()
    assert head.split()[:2] == ["test", "chrf"]
    assert [row.split()[0] for row in rows[:2]] == ["a", "b"]
    assert said.endswith(f"\n\n{out}\n")
    page = data(out)
    assert page["notes"] == []
    assert page["groups"] == ["a", "b"]
    assert [cost["runs"] for cost in page["cost"]] == [2, 1]
    assert page["samples"]["total"] == 6
    assert all(None not in sample["rows"] for sample in page["samples"]["shown"])
    assert len(page["pictures"]) == 3
    assert [maps["name"] for maps in page["pictures"][0]["views"][1]["maps"]] == [
        "encoder self", "decoder self", "cross",
    ]  # fmt: skip
    assert page["settings"] == [["train.log_every", ["2", "1"]]]
    where = page["curves"][0]["splits"]["train"]["at"]
    assert where["items"] == [sum(counts(runs[0])[: at + 1]) for at in range(2)]
    assert where["flops"] == pytest.approx([2 * page["cost"][0]["flops"], 4 * page["cost"][0]["flops"]], rel=1e-5)


def counts(workdir):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line["tokens"] for line in lines if line["split"] == "train"]


def test_flops_of_a_step_are_those_of_its_longest_batch_without_the_data(runs):
    vocab = json.loads((runs[0] / "model.json").read_text())["embedding"]["vocab"]
    known = from_experiment("it", EXPERIMENT, Size(vocab=vocab)).facts(["train"])
    assert step_flops(RunFolder(runs[0])) == known.flops["train"].model


def test_an_old_run_without_counts_samples_or_a_model_is_shown_as_far_as_it_goes(run, runs):
    old = runs[2]
    lines = [json.loads(line) for line in (old / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("tokens", None)
        line.pop("cpu_seconds", None)
    (old / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (old / "model.json").unlink()
    (old / "samples.jsonl").unlink()
    assert run("compare", *runs, "--out", old / "page.html")[0] == 0
    page = data(old / "page.html")
    assert page["notes"] == [
        "b: parameters and the FLOPs of a step are not known: it has no model.json.",
        "Of b the FLOPs of a step are not known, so there are no curves over that.",
        "Of b how much it was trained on is not known, so there are no curves over that.",
        "There are no samples of b.",
    ]
    assert page["cost"][1]["parameters"] is page["cost"][1]["cpu"] is None
    assert page["curves"][2]["splits"]["train"]["at"]["items"] == [None] * 4


def test_an_unfinished_run_is_compared_by_what_all_have(run, runs):
    lines = (runs[2] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (runs[2] / "metrics.jsonl").write_text("".join(line for line in lines if '"test"' not in line))
    assert run("compare", *runs, "--out", runs[0] / "page.html")[0] == 0
    page = data(runs[0] / "page.html")
    assert page["metric"] == ["validation", "loss"]
    assert "b: The run has not finished: it stands at step 4 of 4." in page["notes"]
    code, said, _ = run("compare", *runs, "--metric", "chrf", "--out", runs[0] / "page.html")
    assert (code, said.split()[:2]) == (0, ["test", "chrf"])
    assert "test chrf is missing for b." in data(runs[0] / "page.html")["notes"]


def test_a_run_without_a_checkpoint_has_no_attention_and_says_why(run, runs):
    shutil.rmtree(runs[2] / "checkpoints")
    assert run("compare", *runs, "--out", runs[0] / "page.html")[0] == 0
    page = data(runs[0] / "page.html")
    assert [view is None for view in page["pictures"][0]["views"]] == [False, True]
    assert any(note.startswith("b: no attention is shown: there are no checkpoints") for note in page["notes"])


def own(workdir, name, **test):
    """Write the folder of a program that is not here."""
    root = workdir / name
    root.mkdir()
    (root / "config.json").write_text(json.dumps({"type": f"mine:{name}"}))
    (root / "metrics.jsonl").write_text(json.dumps({"step": 3, "split": "test", **test}) + "\n")
    return root


def test_runs_of_other_programs_are_compared_by_a_metric_in_common(run, runs, tmp_path):
    strangers = [own(tmp_path, "Sorter", accuracy=0.5), own(tmp_path, "Painter", accuracy=0.25, bleu=3.0)]
    code, said, _ = run("compare", *strangers, "--out", tmp_path / "page.html")
    assert code == 0
    assert [line.split()[:2] for line in said.splitlines()[1:3]] == [["Sorter", "50.00"], ["Painter", "25.00"]]
    assert data(tmp_path / "page.html")["samples"] is None
    code, said, err = run("compare", runs[0], strangers[0], "--out", tmp_path / "none.html")
    assert (code, said) == (1, "")
    assert err.startswith("error: runs must have a metric in common to be compared, got none: a-0 has chrf, ")
    assert err.endswith("; Sorter has accuracy\n")
    assert not (tmp_path / "none.html").exists()


def test_what_cannot_be_compared_is_one_sentence(run, runs, tmp_path):
    def refused(*arguments):
        code, said, err = run("compare", *arguments)
        assert (code, said) == (1, "")
        return err

    assert refused(runs[0]) == "error: there must be at least two runs to compare, got 1\n"
    assert refused(runs[0], runs[0]) == f"error: a run is compared with others, got {runs[0]} more than once\n"
    assert refused(runs[0], tmp_path) == f"error: {tmp_path} is not a run folder: it has no config.json\n"
    assert refused(runs[0], "gs://b/run") == "error: a run folder is a path, got gs://b/run; a bucket must be mounted\n"
    assert "must be one that the runs have, chrf, " in refused(runs[0], runs[1], "--metric", "f1")


def test_folders_of_one_name_are_told_apart(run, runs, tmp_path):
    twins = [shutil.copytree(runs[0], tmp_path / group / "run") for group in ("one", "two")]
    assert run("compare", *twins, "--out", tmp_path / "page.html")[0] == 0
    assert [one["name"] for one in data(tmp_path / "page.html")["curves"]] == ["one/run", "two/run"]
