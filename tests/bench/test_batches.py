"""`bench-data`: batches a second of an experiment's data, as it is typed and as a function."""

import json

import pytest

from flax_transformer.bench.batches import bench_data

SHAPES = ["--data.shapes.train", "16", "--data.shapes.held-out", "8", "--rows", "4", "--augment.operations", "1"]


@pytest.mark.rotates
def test_threads_and_a_worker_are_measured(run, tmp_path):
    code, out, err = run(
        "bench", "data", "experiments/classify_images.py", "vit", "--workers", 0, 1, "--batches", 2, "--json",
        tmp_path / "a.json", "--", *SHAPES,
    )  # fmt: skip
    assert code == 0, err
    head, threads, worker = out.splitlines()
    assert head.split() == ["workers", "first", "batch", "batches/s", "rows/s", "CPU", "seconds"]
    assert threads.split()[0] == "threads"
    assert worker.split()[0] == "1"
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved["target"] == {"name": "experiments/classify_images.py:vit", "options": SHAPES, "batches": 2}
    for row, workers in zip(saved["results"], (0, 1), strict=True):
        assert row["workers"] == workers
        assert row["rows_per_second"] == pytest.approx(4 * row["batches_per_second"])
        assert row["first"] > 0
        assert row["cpu_seconds"] > 0


@pytest.mark.parametrize(
    ("name", "workers", "count", "message"),
    [
        ("experiments/classify_images.py:vit", (), 2, r"workers must be numbers .* got \(\) and 2"),
        ("experiments/classify_images.py:vit", (-1,), 2, r"got \(-1,\) and 2"),
        ("experiments/classify_images.py:vit", (0,), 0, "batches at least 1, got .* and 0"),
        ("transformer_tiny", (0,), 2, "those of an experiment's file, got transformer_tiny"),
        ("experiments/classify_images.py:none", (0,), 2, "it has no 'none'"),
    ],
)
def test_bad_input(name, workers, count, message):
    with pytest.raises(ValueError, match=message):
        bench_data(name, workers, count=count)
