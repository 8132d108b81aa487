"""Series of runs: each is made once, and what they measured is joined."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flax_transformer.data.image import DrawnShapes, LabelledData
from flax_transformer.task.series import read_test
from flax_transformer.train.folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("compare_vision", ROOT / "experiments/compare_vision.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_series_trains_what_is_missing_and_joins_all(script, tmp_path, capsys):
    data = LabelledData(shapes=DrawnShapes(train=20, held_out=8, size=8))
    asked = script.Comparison(
        workdir=str(tmp_path), data=data, models=("cct",), pictures=(8, 60_000), seeds=(0,), tera=1e-9, rows=4
    )
    script.compare(asked)
    assert capsys.readouterr().out.count("test accuracy") == 2
    first = {folder: read_test(RunFolder(tmp_path / folder)) for folder in ("cct-8-0", "cct-20-0")}
    script.compare(replace(asked, seeds=(0, 1)))
    said = capsys.readouterr().out
    assert said.count("test accuracy") == 2
    assert "cct-8-0" not in said
    rows = json.loads((tmp_path / "comparison.json").read_text())
    assert [(row["pictures"], row["seeds"], row["steps"]) for row in rows] == [(8, 2, 1), (20, 2, 1)]
    second = read_test(RunFolder(tmp_path / "cct-8-1"))["accuracy"]
    assert rows[0]["accuracy"] == pytest.approx((first["cct-8-0"]["accuracy"] + second) / 2)
    assert (tmp_path / "comparison.md").read_text().startswith("| model | steps | 8 pictures | 20 pictures |\n")
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
    assert read_test(RunFolder(tmp_path)) is None


@pytest.mark.slow
def test_every_model_has_one_budget(script):
    data = LabelledData(shapes=DrawnShapes(train=64, held_out=8, size=16))
    found = script.experiments(script.Comparison(data=data, models=("vit", "resnet"), seeds=(3,), tera=1.0, rows=32))
    assert list(found) == ["vit-64-3", "resnet-64-3"]
    for recipe in found.values():
        workload = script.from_experiment("it", recipe, script.Size())
        total = workload.facts(["train"]).flops["train"].model * recipe.train.steps
        assert total == pytest.approx(1e12, rel=0.02)
