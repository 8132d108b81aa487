import copy
import json
import re

import pytest

from flax_transformer.bench.record import changes, compare, load, save
from flax_transformer.bench.report import render

STEP = {"median": 1.0, "low": 0.95, "high": 1.1}
PROGRAM = {
    "step": STEP, "trace": 0.1, "lower": 0.1, "compile": 2.0, "compile_cached": None, "first": 1.0, "recompiles": 0,
    "peak_bytes": 1000, "temporary_bytes": 500, "items": 10, "unit": "images", "items_per_second": 10.0,
    "flops": 5e9, "flops_again": 0, "flops_notes": [], "notes": [], "causes": [],
    "flops_modules": {"": 100}, "memory_modules": {},
    "flops_per_second": 5e9, "mfu": 0.5, "leaves": 3, "steps": 20, "dispatch": STEP, "overhead": STEP,
}  # fmt: skip
RECORD = {
    "target": {"name": "t", "dtype": "float32", "shape": {"rows": 2}, "mesh": {}, "parameters": 12},
    "environment": {
        "device": "cpu", "devices": 1, "cpu": "x", "cores": 2, "jax": "1", "jaxlib": "1", "flax": "1", "python": "3",
        "variables": {}, "date": "2026-01-01", "commit": "abc",
    },
    "peak": {"flops": 1e10, "source": "s"}, "programs": {"train": PROGRAM},
}  # fmt: skip


def changed(**values):
    record = copy.deepcopy(RECORD)
    record["programs"]["train"] |= values
    return record


def verdict(record, quantity="step"):
    return next(v for _, name, _, v in changes(RECORD, record) if name == quantity)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"median": 1.5, "low": 1.4, "high": 1.6}, "SLOWER"),
        ({"median": 1.09, "low": 1.05, "high": 1.2}, "same within the spread"),  # inside the old range
        ({"median": 1.5, "low": 0.9, "high": 2.0}, "same within the spread"),  # too noisy itself
        ({"median": 0.5, "low": 0.4, "high": 0.6}, "faster"),
        (STEP, "same within the spread"),
    ],
)
def test_only_what_leaves_the_spread_is_a_difference(step, expected):
    new = changed(step=step)
    assert verdict(new) == expected
    assert ("REGRESSION: train step" in compare(RECORD, new)) == (expected == "SLOWER")
    assert ("no regression" in compare(RECORD, new)) == (expected != "SLOWER")


@pytest.mark.parametrize(("size", "expected"), [(1100, "MORE"), (1005, "same"), (900, "less")])
def test_memory_has_no_noise(size, expected):
    assert verdict(changed(peak_bytes=size), "memory") == expected


def test_compile_times_have_a_ratio_and_no_verdict():
    assert ("train", "compile", 3.0, "") in changes(RECORD, changed(compile=6.0))
    assert "compile from the cache" not in compare(RECORD, changed(compile_cached=1.0))  # it was not measured before
    assert "no regression" in compare(RECORD, changed(compile=6.0))


def test_recompiling_is_a_regression():
    assert "REGRESSION: train compiled 4 programs after its first run" in compare(RECORD, changed(recompiles=4))


def test_other_shapes_are_refused_with_both():
    other = copy.deepcopy(RECORD)
    other["target"]["shape"] = {"rows": 4}
    with pytest.raises(ValueError, match=r"same target and shapes compare, got shape \{'rows': 2\} and \{'rows': 4\}"):
        compare(RECORD, other)


def test_other_environments_are_warned_of_by_name():
    other = copy.deepcopy(RECORD)
    other["environment"] |= {"jax": "2", "date": "2027"}
    said = compare(RECORD, other)
    assert "WARNING: the environments differ" in said
    assert "jax: 1 → 2" in said
    assert "date" not in said
    assert "WARNING" not in compare(RECORD, RECORD)


def test_programs_measured_once_only_are_left_out():
    both = copy.deepcopy(RECORD)
    both["programs"]["decode"] = PROGRAM
    assert {program for program, *_ in changes(RECORD, both)} == {"train"}


def test_json_comes_back_as_it_was(tmp_path):
    save(RECORD, tmp_path / "a.json")
    assert load(tmp_path / "a.json") == RECORD
    assert set(json.loads((tmp_path / "a.json").read_text())) == set(RECORD)


@pytest.mark.parametrize(("text", "message"), [(None, "there is no file"), ("{", "is not JSON"), ("[1]", "no result")])
def test_files_that_are_no_result_are_named(tmp_path, text, message):
    path = tmp_path / "b.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=f"{path.name}.*{message}|{message}.*{path.name}"):
        load(path)


def test_the_table_says_what_it_measured_against():
    said = render(RECORD)
    for part in ("t   12 parameters", "50.0 %", "10.0 GFLOP/s", "MFU", "recompilations"):
        assert part in said
    assert "images a second" in said
    assert "  computed again" not in said
    other = render(changed(items=None, items_per_second=None, flops_again=10**9, flops_notes=["a loop is not known"]))
    assert re.search("images a second +–", other)
    assert re.search("computed again +1.00 G", other)
    assert "train: a loop is not known" in other
    assert "by module" not in said


def test_the_table_says_whose_flops_and_memory_it_is():
    """The largest in all columns first; those beyond the table together."""
    many = {f"Block/part{i}": 10 for i in range(12)} | {"Head": 1880, "": 1000}
    rows = render(changed(flops_modules=many, memory_modules={"Head": 3 * 10**6, "(arguments)": 10**6})).splitlines()
    at = next(i for i, row in enumerate(rows) if row.startswith("by module"))
    assert rows[at].split() == ["by", "module", "train", "FLOPs", "train", "memory"]
    assert rows[at + 1].split() == ["Head", "1.88", "k", "63", "%", "3.00", "MB", "75", "%"]
    assert rows[at + 2].split() == ["(no", "module)", "1.00", "k", "33", "%", "–"]
    assert rows[at + 3].split()[0] == "(arguments)"
    assert rows[at + 13].split() == ["3", "more", "30.0", "1", "%", "–"]


def test_the_table_says_what_attention_said_and_what_compiled_again():
    said = render(changed(notes=["no ring"], causes=["x: float32[1] → float32[2]"], recompiles=1))
    assert "train: no ring" in said
    assert said.endswith("FAULT: compiled again after the first run, since\n  train: x: float32[1] → float32[2]")
