"""A run folder is read as it is: whole, unfinished, cut short, with values that are no numbers."""

import json
import subprocess
import sys

import pytest

from flax_transformer.report import read_run
from flax_transformer.train.folder import FolderError, RunFolder

CONFIG = {
    "type": "there:Translation",
    "evaluators": [{"headline": "bleu"}],
    "train": {"type": "t:TrainConfig", "steps": 400},
}
TRAIN = [{"step": n, "split": "train", "loss": 4.0 / n} for n in (100, 200, 400)]
TEST = {"step": 400, "split": "test", "bleu": 30.0}
SAMPLE = {"source": "a", "target": "b", "hypothesis": "b"}


@pytest.fixture
def write(tmp_path):
    def write_(metrics=None, samples=None, config=CONFIG):
        files = {"metrics.jsonl": metrics, "samples.jsonl": samples}
        if config is not None:
            (tmp_path / "config.json").write_text(json.dumps(config))
        for name, lines in files.items():
            if lines is not None:
                text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
                (tmp_path / name).write_text(text)
        return RunFolder(tmp_path)

    return write_


def test_a_finished_run_needs_no_note(write, tmp_path):
    report = read_run(write([*TRAIN, TEST], [SAMPLE]))
    assert report.notes == ()
    assert (report.title, report.headline) == (tmp_path.name, "bleu")
    assert dict(report.facts) == {"experiment": "Translation", "steps": "400"}
    assert list(report.records) == [*TRAIN, TEST]
    assert list(report.samples) == [SAMPLE]


def test_an_unfinished_run_says_where_it_stands(write):
    report = read_run(write(TRAIN[:2], [SAMPLE]))
    assert report.notes == ("The run has not finished: it stands at step 200 of 400.",)
    assert list(report.samples) == []


def test_a_run_that_wrote_nothing_says_so(write):
    report = read_run(write(config={}))
    assert report.notes == ("There are no metrics yet.", "The run has not finished: it stands at step 0.")


@pytest.mark.parametrize("bad", ['{"step": 300, "spl', "[1, 2]", "null", '"text"', "\x00"])
def test_lines_that_cannot_be_read_are_counted_and_left_out(write, bad):
    report = read_run(write([*TRAIN, bad, TEST, bad], [SAMPLE, bad]))
    assert list(report.records) == [*TRAIN, TEST]
    assert list(report.samples) == [SAMPLE]
    assert report.notes == ("2 lines of metrics.jsonl could not be read.", "1 line of samples.jsonl could not be read.")


@pytest.mark.parametrize("step", [None, "3", True, 1.5])
def test_records_without_a_step_or_split_are_left_out(write, step):
    report = read_run(write([{"step": step, "split": "train", "loss": 1.0}, {"step": 1}, *TRAIN, TEST]))
    assert list(report.records) == [*TRAIN, TEST]


def test_values_that_are_no_numbers_are_named(write):
    report = read_run(write([*TRAIN, *({"step": n, "split": "train", "loss": None} for n in (500, 600)), TEST]))
    assert report.notes == ("train loss was not a finite number at step 500.",)


def test_a_folder_without_a_config_is_no_run(write):
    with pytest.raises(FolderError, match=r"is not a run folder: it has no config\.json"):
        read_run(write(TRAIN, config=None))


@pytest.mark.rotates
def test_importing_the_report_imports_no_matplotlib():
    code = "import sys, flax_transformer.report, flax_transformer.task.recipe; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr
