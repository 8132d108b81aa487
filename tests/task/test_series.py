"""Series of runs: each is made once, and what they measured is joined."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flax_transformer.data.synthetic import DrawnShapes, LabelledImageData, numbers
from flax_transformer.data.text.parallel import TextCorpus
from flax_transformer.nn import with_fields
from flax_transformer.task import series
from flax_transformer.task.series import read_test, step_seconds
from flax_transformer.train.folder import RunFolder
from tests.recipe import tiny_translation

pytestmark = pytest.mark.rotates

ROOT = Path(__file__).parents[2]


def opened(name):
    """Import an experiment's file."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"experiments/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script():
    return opened("compare_vision")


@pytest.mark.slow
def test_a_series_trains_what_is_missing_and_joins_all(script, tmp_path, capsys):
    data = LabelledImageData(shapes=DrawnShapes(train=20, held_out=8, size=8))
    asked = script.Comparison(
        workdir=str(tmp_path), data=data, models=("cct",), images=(8, 60_000), seeds=(0,), tera=1e-9, rows=4
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
    assert (tmp_path / "comparison.md").read_text().startswith("| model | steps | 8 images | 20 images |\n")
    assert (tmp_path / "comparison.png").stat().st_size > 10_000
    assert read_test(RunFolder(tmp_path)) is None


@pytest.mark.slow
def test_every_model_has_one_budget(script):
    data = LabelledImageData(shapes=DrawnShapes(train=64, held_out=8, size=16))
    found = script.experiments(script.Comparison(data=data, models=("vit", "resnet"), seeds=(3,), tera=1.0, rows=32))
    assert list(found) == ["vit-64-3", "resnet-64-3"]
    for recipe in found.values():
        workload = script.from_experiment("it", recipe, script.Size())
        total = workload.facts(["train"]).flops["train"].model * recipe.train.steps
        assert total == pytest.approx(1e12, rel=0.02)


@pytest.fixture(scope="module")
def architectures():
    return opened("compare_architectures")


def words(root, count=40):
    """Write a small corpus of number words."""
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr")):
        source = numbers(count, seed=1, split=split)
        pairs = [source[i] for i in range(count)]
        for side, language in (("source", "en"), ("target", "de")):
            (root / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))
    return TextCorpus(root=str(root))


def test_what_is_compared_by_default_begins_with_nothing(architectures):
    made = architectures.recipes(architectures.Comparison())
    assert {"transformer", "luong", "ctc"} < set(made)
    assert "finetune" not in made
    with pytest.raises(ValueError, match=r"models must be of transformer, .*, got finetune"):
        architectures.Comparison(models=("finetune",))


def test_a_budget_is_measured_once_and_gives_each_model_its_steps(architectures, tmp_path, monkeypatch, capsys):
    measured = []

    def seconds(recipe):
        measured.append(type(recipe.model).__name__)
        return 0.5 if measured[-1] == "Seq2SeqConfig" else 0.25

    monkeypatch.setattr(series, "step_seconds", seconds)
    asked = architectures.Comparison(
        workdir=str(tmp_path), models=("transformer", "luong"), seeds=(0, 7), minutes=2.0, tokens=512
    )
    found = architectures.experiments(asked)
    assert list(found) == ["transformer-0", "luong-0", "transformer-7", "luong-7"]
    assert [recipe.train.steps for recipe in found.values()] == [240, 480, 240, 480]
    assert [recipe.train.seed for recipe in found.values()] == [0, 0, 7, 7]
    assert {recipe.optimizer.schedule.warmup for recipe in found.values()} == {48, 96}
    assert {recipe.examples.batch.tokens for recipe in found.values()} == {512}
    assert {(recipe.optimizer.name, recipe.optimizer.schedule.name) for recipe in found.values()} == {
        ("muon", "linear")
    }
    assert architectures.experiments(asked) == found
    assert len(measured) == 2
    architectures.experiments(replace(asked, minutes=4.0))
    assert len(measured) == 2
    architectures.experiments(replace(asked, tokens=1_024))
    assert len(measured) == 4
    assert "luong: 0.25 s a step, 480 steps" in capsys.readouterr().out


def test_students_learn_from_the_corpus_of_their_teacher(architectures):
    asked = architectures.Comparison(
        models=("lstm", "luong"), students=("luong",), taught="there", data=TextCorpus(root="here"), steps=20
    )
    found = architectures.experiments(asked)
    assert (found["lstm-0"].data.root, found["lstm-0"].data.validation) == ("here", "val")
    assert (found["luong-0"].data.root, found["luong-0"].data.validation) == ("there", "validation")
    with pytest.raises(ValueError, match="students and taught go together"):
        replace(asked, taught="")
    with pytest.raises(ValueError, match=r"models must be of transformer, .*, got gru"):
        replace(asked, models=("gru",))


def test_a_step_is_measured_without_its_compiling(tmp_path):
    assert 0 < step_seconds(tiny_translation(), batches=2) < 5


@pytest.mark.slow
def test_a_series_that_is_cut_goes_on_and_ends_with_its_page(architectures, tmp_path, capsys, monkeypatch):
    asked = architectures.Comparison(
        workdir=str(tmp_path / "series"), data=words(tmp_path), models=("lstm", "luong"), steps=4, tokens=512,
        buckets=1, merges=20, average=1,
    )  # fmt: skip
    small = {name: with_fields(recipe.model, embed=16) for name, recipe in architectures.recipes(asked).items()}
    made = architectures.recipes
    monkeypatch.setattr(
        architectures, "recipes", lambda asked: {n: replace(r, model=small[n]) for n, r in made(asked).items()}
    )
    found = architectures.experiments(asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flax_transformer.task.recipe._Run.finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            architectures.run(asked)
    assert read_test(RunFolder(tmp_path / "series/lstm-0")) is None
    architectures.run(asked)
    said = capsys.readouterr().out
    assert "resuming from step 4" in said
    for name in found:
        assert read_test(RunFolder(tmp_path / "series" / name))["step"] == 4
    assert (tmp_path / "series/comparison.txt").read_text().splitlines()[1].startswith("lstm-0")
    assert (tmp_path / "series/comparison.html").stat().st_size > 30_000
    architectures.run(asked)
    assert "resuming" not in capsys.readouterr().out


def interrupted(*arguments):
    raise KeyboardInterrupt
