import json
import math

import pytest

from flax_transformer.train.metrics import JsonLines, TensorBoard, Tracker, Writers
from flax_transformer.train.progress import Live, Plain, Silent, duration, make_progress, number, spelled


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_floats_keep_full_precision_and_lines_appear_at_once(tmp_path):
    writer = JsonLines(tmp_path / "m.jsonl")
    writer.write(1, "train", {"loss": 0.1 + 0.2, "bad": math.nan, "worse": math.inf})
    assert lines(tmp_path / "m.jsonl") == [{"step": 1, "split": "train", "loss": 0.1 + 0.2, "bad": None, "worse": None}]
    writer.close()


def test_a_resumed_run_drops_what_it_writes_again(tmp_path):
    path = tmp_path / "m.jsonl"
    with path.open("w") as file:
        for step, split in ((5, "train"), (10, "train"), (10, "validation"), (10, "test"), (15, "train")):
            file.write(json.dumps({"step": step, "split": split, "loss": 1.0}) + "\n")
        file.write('{"step": 15, "spl')
    writer = JsonLines(path, after=10)
    writer.write(15, "train", {"loss": 2.0})
    writer.close()
    found = [(line["step"], line["split"], line["loss"]) for line in lines(path)]
    assert found == [(5, "train", 1.0), (10, "train", 1.0), (10, "validation", 1.0), (15, "train", 2.0)]


def test_tensorboard_gets_every_metric(tmp_path):
    writer = Writers([TensorBoard(tmp_path), JsonLines(tmp_path / "m.jsonl")])
    writer.write(3, "validation", {"loss": 0.5, "bleu": 30.0})
    writer.close()
    (events,) = tmp_path.glob("events*")
    data = events.read_bytes()
    assert b"validation/loss" in data
    assert b"validation/bleu" in data
    assert len(lines(tmp_path / "m.jsonl")) == 1


def test_all_writers_are_closed_also_when_one_cannot_be():
    closed = []

    class Writing:
        def __init__(self, name, full):
            self.name, self.full = name, full

        def write(self, step, split, metrics):
            pass

        def close(self):
            closed.append(self.name)
            if self.full:
                raise OSError(f"no space for {self.name}")

    with pytest.raises(OSError, match="no space for lines"):
        Writers([Writing("lines", True), Writing("board", False), Writing("tracker", False)]).close()
    assert closed == ["lines", "board", "tracker"]


def test_a_tracker_that_is_not_installed_says_how_to_install_it(tmp_path):
    with pytest.raises(ValueError, match=r"pip install 'flax-transformer\[no_such_tracker\]'"):
        Tracker("no_such_tracker", "project", tmp_path)


@pytest.mark.parametrize(
    ("seconds", "spelled"),
    [
        (0.0, "0s"),
        (42.4, "42s"),
        (59.6, "1m00s"),
        (185.0, "3m05s"),
        (3599.7, "1h00m"),
        (7620.0, "2h07m"),
        (9e4, "25h00m"),
    ],
)
def test_durations(seconds, spelled):
    assert duration(seconds) == spelled


@pytest.mark.parametrize(
    ("value", "spelled"),
    [(0.123456, "0.1235"), (3e-5, "3e-05"), (999.94, "999.9"), (12345.6, "12,346"), (-5000.0, "-5,000")],
)
def test_numbers(value, spelled):
    assert number(value) == spelled


def test_a_pipe_gets_plain_lines(capsys):
    progress = make_progress(800, 0)
    assert type(progress) is Plain
    progress.step(100, {"loss": 2.5, "tokens_per_second": 12345.0, "learning_rate": 1e-3})
    progress.say("step 100  validation  loss 2")
    progress.close()
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("step 100/800  loss 2.5  tokens/s 12,345  lr 0.001  left ")
    assert out[1] == "step 100  validation  loss 2"
    assert "\x1b" not in "".join(out)


def test_nothing_is_said_by_other_processes(capsys):
    progress = make_progress(800, 0, first=False)
    assert type(progress) is Silent
    progress.step(100, {"loss": 2.5})
    progress.say("text")
    assert capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar_and_lines_above_it(capsys):
    progress = Live(800, 100)
    progress.step(200, {"loss": 2.5})
    progress.say("step 200  validation  [loss] 2")
    progress.close()
    assert "step 200  validation  [loss] 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("accuracy", 0.9377, "93.77 %"),
        ("ap", 0.0015, "0.15 %"),
        ("ap_small", 0.5, "50 %"),
        ("forth_r1", 0.25, "25 %"),
        ("recall", 1.0, "100 %"),
        ("exact_match", 12.5, "12.5 %"),
        ("wer", 104.0, "104 %"),
        ("bleu", 34.8, "34.8"),
        ("loss", 0.57, "0.57"),
        ("perplexity", 2.0, "2"),
        ("tokens_per_second", 900.0, "900"),
        ("gap", 0.5, "0.5"),
    ],
)
def test_people_are_told_one_unit(name, value, told):
    assert spelled(name, value) == told
