"""Runs beside each other: seeds are joined, spreads are those of statistics, what is missing stays missing."""

import statistics

import pytest

from flax_transformer.report.comparison import (
    ComparedRun,
    Metric,
    choose_metric,
    common,
    flattened,
    grouped,
    measured,
    positions,
    settings,
)

pytestmark = pytest.mark.proves("report", "several runs on one page: seeds joined, curves over four axes")


def config(seed=0, kind="Transformer", objective="TokenLoss", **changes):
    return {
        "type": "here:Recipe", "model": {"type": f"there:{kind}", "width": 8}, "objective": {"type": f"o:{objective}"},
        "train": {"type": "t:TrainConfig", "seed": seed, "steps": 20}, **changes,
    }  # fmt: skip


def trained(step, loss=2.0, **more):
    return {"step": step, "split": "train", "loss": loss, **more}


def run(name, *, test=None, records=None, **changes):
    found = [trained(10), trained(20)] if records is None else records
    found = [*found, *([] if test is None else [{"step": 20, "split": "test", **test}])]
    return ComparedRun(name=name, config=config(**changes), records=found)


def test_runs_that_differ_in_the_seed_alone_are_one_group_with_the_spread_of_a_sample():
    values = [30.0, 31.5, 33.0]
    runs = [run(f"lstm-{seed}", test={"bleu": value}, seed=seed) for seed, value in enumerate(values)]
    groups = grouped([*runs, run("gru", test={"bleu": 1.0}, kind="Gru")])
    assert [(group.name, len(group.runs)) for group in groups] == [("lstm", 3), ("gru", 1)]
    assert groups[0].score(Metric("test", "bleu")) == (statistics.mean(values), statistics.stdev(values), 3)
    assert groups[1].score(Metric("test", "bleu")) == (1.0, None, 1)


def test_another_setting_parts_runs_of_one_seed():
    runs = [run("a"), run("b", train={"seed": 0, "steps": 21})]
    assert [group.name for group in grouped(runs)] == ["a", "b"]


def test_groups_have_names_of_their_own():
    runs = [
        run("x/run-0"),
        run("x/run-1", seed=1),
        run("y0", kind="Other"),
        run("9", kind="Last"),
        run("8", kind="Last"),
    ]
    assert [group.name for group in grouped(runs)] == ["x", "y0", "9, 8"]
    clash = [run("a-0"), run("a-1", seed=1), run("a", kind="Other")]
    assert [group.name for group in grouped(clash)] == ["a-0, a-1", "a"]


def test_only_what_differs_is_a_setting_and_what_one_has_not_is_none():
    groups = grouped([run("a", extra=1), run("b", seed=4, kind="Gru")])
    assert settings(groups) == {"extra": ["1", None], "model": ["Transformer", "Gru"]}


def test_folders_are_told_by_their_last_parts_where_these_differ():
    at = lambda *folders: grouped([run(folder, data={"root": folder}) for folder in folders])  # noqa: E731
    assert settings(at("/home/me/cats", "/home/me/dogs")) == {"data.root": ["cats", "dogs"]}
    assert settings(at("/old/cats", "/new/cats")) == {"data.root": ["/old/cats", "/new/cats"]}


def test_settings_are_spelled_by_their_paths():
    given = {"type": "m:A", "f": {"function": "m:relu"}, "t": [1, 2], "e": [{"type": "m:B", "on": True}], "n": None}
    assert flattened(given) == {
        "experiment": "A", "f": "relu", "t": "1, 2", "e.0": "B", "e.0.on": "yes", "n": "none"
    }  # fmt: skip


def test_a_loss_is_common_only_to_runs_of_one_objective():
    validated = [{"step": 20, "split": "validation", "loss": 1.0, "perplexity": 2.7}]
    same = [run("a", records=validated), run("b", records=validated, kind="Gru")]
    assert [metric.name for metric in common(same)] == ["loss", "perplexity"]
    other = [same[0], run("c", records=validated, objective="ClassLoss")]
    assert common(other) == []
    with pytest.raises(ValueError, match="a metric in common to be compared, got none: a has loss, perplexity; c has"):
        choose_metric(other)


def test_the_metric_is_the_headline_of_all_or_what_is_asked_for():
    runs = [run("a", test={"chrf": 1.0, "bleu": 2.0}), run("b", test={"chrf": 1.0, "bleu": 2.0, "accuracy": 0.5})]
    assert choose_metric(runs) == ("test", "chrf")
    assert choose_metric(runs, headlines=["accuracy", "bleu"]) == ("test", "bleu")
    assert choose_metric(runs, "accuracy") == ("test", "accuracy")
    with pytest.raises(ValueError, match="must be one that the runs have, chrf, bleu, accuracy, got 'blue'"):
        choose_metric(runs, "blue")
    with pytest.raises(ValueError, match="nothing has been measured yet by c"):
        choose_metric([run("c")])


def test_speeds_and_what_is_no_number_are_not_measures():
    found = measured([run("a", test={"bleu": 1.0, "sentences_per_second": 9.0, "chrf": None})])
    assert found == [("test", "bleu")]


def test_places_are_exact_sums_of_what_windows_have_counted():
    window = {"tokens_per_second": 9.0, "seconds": 2.0, "cpu_seconds": 3.0}
    records = [
        trained(10, tokens=100.0, **window),
        {"step": 10, "split": "validation", "loss": 1.0},
        trained(20, tokens=60.0, **window),
    ]
    one = ComparedRun(name="a", config={}, records=records, flops=1_000)
    assert one.unit == "tokens"
    assert positions(one) == {
        "step": [10, 10, 20], "items": [100.0, 100.0, 160.0], "seconds": [2.0, 2.0, 4.0], "cpu": [3.0, 3.0, 6.0],
        "flops": [10_000, 10_000, 20_000],
    }  # fmt: skip


def test_a_run_that_has_not_counted_in_one_window_has_no_sum():
    records = [trained(10, tokens_per_second=9.0, seconds=2.0), trained(20, tokens=9.0, tokens_per_second=9.0)]
    found = positions(ComparedRun(name="old", config={}, records=records))
    assert found["items"] == found["seconds"] == found["flops"] == [None, None]
    assert found["step"] == [10, 20]


def test_fractions_are_told_in_percent():
    runs = [run("a", test={"accuracy": 0.5, "bleu": 0.5}), run("a-1", test={"accuracy": 0.25, "bleu": 0.5}, seed=1)]
    (group,) = grouped(runs)
    assert group.score(Metric("test", "accuracy"))[0] == 37.5
    assert group.score(Metric("test", "bleu"))[0] == 0.5
