"""Where a run's time goes: what is counted adds up, and a report tells it of all parts of a run."""

import json
import time

import pytest

from flax_transformer.report import read_run
from flax_transformer.train import time_budget
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.time_budget import NAMES, PARTS, TimeBudget, counted, goodput
from tests.train.test_loop import Stream, every, run

pytestmark = pytest.mark.proves("training", "share of time in steps, compiling, waiting, evaluating, saving")


def test_seconds_go_where_they_are_spent(monkeypatch):
    clock = iter([0.0, 2.0, 5.0, 10.0, 11.0, 13.0, 20.0])
    processors = iter([4.0, 11.0, 12.0])
    monkeypatch.setattr(time_budget.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time_budget.time, "process_time", lambda: next(processors))
    counted = TimeBudget()
    with counted.on("saving"):
        pass
    counted.add("compiling", 1.5)
    assert counted.take() == {
        "seconds": 10.0, "cpu_seconds": 7.0, "compiling_seconds": 1.5, "waiting_seconds": 0.0,
        "evaluating_seconds": 0.0, "saving_seconds": 3.0,
    }  # fmt: skip
    with pytest.raises(KeyError), counted.on("waiting"):
        raise KeyError
    parts = {f"{part}_seconds": 2.0 * (part == "waiting") for part in PARTS}
    assert counted.take() == {"seconds": 10.0, "cpu_seconds": 1.0, **parts}


def test_a_run_tells_what_it_waited_for(tmp_path):
    class Slow(Stream):
        def __next__(self):
            time.sleep(0.02)
            return super().__next__()

    run(tmp_path, every(5), Slow())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["split"] == "train"]
    assert len(trained) == 4
    for line in trained:
        assert line["waiting_seconds"] >= 5 * 0.02
        assert sum(line[f"{part}_seconds"] for part in PARTS) <= line["seconds"]
    assert trained[0]["compiling_seconds"] > 0
    assert trained[1]["saving_seconds"] > 0
    (tmp_path / "config.json").write_text(json.dumps({"type": "there:Own"}))
    report = read_run(RunFolder(tmp_path))
    assert report.facts["time"] == goodput(trained)
    assert not set(NAMES) & {name for line in report.records for name in line}


def test_what_is_counted_is_exact_and_no_curve_of_its_own(tmp_path):
    run(tmp_path, every(5), Stream())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (unit,) = {counted(line) for line in lines if line["split"] == "train"}
    assert unit == "items"
    assert [line[unit] for line in lines if line["split"] == "train"] == [5.0 * len(next(Stream()))] * 4
    (tmp_path / "config.json").write_text(json.dumps({"type": "there:Own"}))
    assert not any(unit in line for line in read_run(RunFolder(tmp_path)).records)
    assert counted({"items_per_second": 3.0}) is None


def test_nothing_is_told_of_a_run_that_measured_nothing():
    assert goodput([{"loss": 1.0}, {"seconds": "long"}]) is None
