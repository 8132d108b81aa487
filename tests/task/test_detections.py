"""A detector from generated scenes to the command: what a run keeps, what it exports, what is found and drawn."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import SHAPES, SceneData, ShapeScenes
from flax_transformer.metric.average_precision import average_precision
from flax_transformer.models.vision.detr import DetrConfig
from flax_transformer.models.vision.detr_block import detr_block
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.nn import TrunkConfig
from flax_transformer.task.detection import DetectionEvaluator, DetectionImages, detect
from flax_transformer.task.experiment import train
from flax_transformer.task.spec import Spec
from flax_transformer.task.start import load_start
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig

pytestmark = pytest.mark.rotates

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "hub" / "golden"


def trunk(*, cross):
    return TrunkConfig(block=detr_block(embed=8, heads=2, inner=8, cross=cross), depth=1)


RECIPE = replace(
    runpy.run_path(str(ROOT / "experiments" / "detect_objects.py"))["EXPERIMENT"],
    model=DetrConfig(
        backbone=ResNetConfig(stem=4, widths=(8,), depths=(1,), block="basic"), encoder=trunk(cross=False),
        decoder=trunk(cross=True), queries=6,
    ),
    data=SceneData(shapes=ShapeScenes(train=4, held_out=3, size=40)),
    examples=DetectionImages(rows=2, size=32),
    evaluators=(DetectionEvaluator(count=2),),
    optimizer=OptimizerConfig(),
    train=TrainConfig(steps=2, log_every=2, eval_every=2, checkpoint_every=2),
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train(RECIPE, folder)


@pytest.mark.proves("detr", "train", "[`detect_objects`](../experiments/detect_objects.py)")
def test_a_run_is_tested_by_average_precision_and_keeps_pictures_with_true_and_found_boxes(finished):
    folder, _ = finished
    test = json.loads(folder.joinpath("metrics.jsonl").read_text().splitlines()[-1])
    assert test["split"] == "test"
    assert 0 <= test["ap"] <= test["ap50"] <= 1
    samples = [json.loads(line) for line in folder.joinpath("samples.jsonl").read_text().splitlines()]
    scenes = RECIPE.data.open().splits["test"]
    assert [each["source"] for each in samples] == [scenes["name"][i] for i in (0, 2)]
    for sample, i in zip(samples, (0, 2), strict=True):
        objects = scenes["objects"][i]
        assert sample["objects"] == [
            {"label": SHAPES[label], "box": box}
            for label, box in zip(objects.classes.tolist(), objects.boxes.tolist(), strict=True)
        ]
        assert sample["size"] == [40, 40]
        kept = PIL.Image.open(folder / sample["picture"])
        np.testing.assert_array_equal(np.asarray(kept), np.asarray(scenes["image"][i]))
        scores = [each["score"] for each in sample["found"]]
        assert scores == sorted(scores, reverse=True)
        assert min(scores) >= 0.05


def test_what_is_exported_finds_what_the_run_has_measured(finished):
    folder, model = finished
    exported = hub.load(folder / "export")
    assert exported.model.cfg == replace(model.cfg, backbone=replace(model.cfg.backbone, frozen=True))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(exported.model), jax.tree.leaves(model))
    records = [json.loads(line) for line in folder.joinpath("metrics.jsonl").read_text().splitlines()]
    for split in ("validation", "test"):
        scenes = RECIPE.data.open().splits[split]
        found = detect(exported, [scenes["image"][i] for i in range(3)], threshold=0.0)
        assert [len(each) for each in found] == [RECIPE.model.queries] * 3
        record = next(each for each in records if each["split"] == split)
        again = average_precision(*in_pixels(found, scenes))
        assert {name: record[name] for name in again} == pytest.approx(again, abs=1e-6)


def in_pixels(found, scenes):
    """Return what was found and what is there as `average_precision` takes them."""
    found = [
        {
            "scores": np.array([one.probability for one in each]),
            "labels": np.array([SHAPES.index(one.label) for one in each]),
            "boxes": np.array([one.box for one in each]),
        }
        for each in found
    ]
    return found, [{"labels": each.classes, "boxes": each.boxes} for each in scenes["objects"]]


def test_more_objects_than_queries_are_refused_by_the_picture_before_training(tmp_path):
    most = max(len(each) for split in RECIPE.data.open().splits.values() for each in split["objects"])
    few = replace(RECIPE, model=replace(RECIPE.model, queries=most - 1))
    says = rf"than the model has queries \(--model.queries\), got {most} in drawn image \d+ \(\w+\), {most - 1} queries"
    with pytest.raises(ValueError, match=says):
        train(few, tmp_path)
    assert not (tmp_path / "checkpoints").is_dir() or not list((tmp_path / "checkpoints").iterdir())
    assert not (tmp_path / "export").exists()


def test_training_may_end_with_the_detector_of_the_best_validation(tmp_path, capsys):
    config = TrainConfig(steps=3, log_every=1, eval_every=1, checkpoint_every=1, keep_best=True, monitor="ap")
    train(replace(RECIPE, train=config), tmp_path)
    records = [json.loads(line) for line in tmp_path.joinpath("metrics.jsonl").read_text().splitlines()]
    seen = [(each["ap"], -each["loss"], each["step"]) for each in records if each["split"] == "validation"]
    best = max(seen)[2]
    assert best == 3 or f"the final model is that of step {best}, the best by ap" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"train.monitor must be one of loss, .*, ap, got 'accuracy'"):
        replace(RECIPE, train=replace(config, monitor="accuracy"))


def test_training_begins_with_a_detector_of_other_classes(finished):
    folder, model = finished
    spec = Spec(uses=("object-detection",), classes=("cell", "platelet"), image=(32, 40, 3))
    known = load_start(str(folder / "export"), spec, RECIPE.model, seed=0).model
    assert known.cfg.classes == 2
    assert known.scores.output.kernel.shape == (8, 3)
    for part in ("backbone", "encoder", "boxes"):
        jax.tree.map(np.testing.assert_array_equal, *(jax.tree.leaves(getattr(each, part)) for each in (known, model)))


def test_pictures_are_nothing_for_a_checkpoint_that_reads_text():
    spec = Spec(uses=("classification",), classes=("cell", "platelet"), image=(32, 40, 3))
    with pytest.raises(ValueError, match=r"bert reads text, the data are images"):
        load_start(str(GOLDEN / "bert"), spec, None, seed=0)


def test_the_command_prints_and_draws_what_is_found(finished, tmp_path, run):
    folder, _ = finished
    picture, drawn = tmp_path / "street.png", tmp_path / "boxes.png"
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)).save(picture)
    code, out, _ = run("detect", folder, picture, "--threshold", "0", "--output", drawn)
    assert code == 0
    *found, last = out.splitlines()
    assert last == str(drawn)
    assert PIL.Image.open(drawn).size == (500, 300)
    rows = [line.split("\t") for line in found]
    assert len(rows) == RECIPE.model.queries
    assert {row[1] for row in rows} <= set(SHAPES)
    assert [len(row) for row in rows] == [6] * len(rows)
    code, out, _ = run("detect", folder, picture, "--threshold", "1")
    assert (code, out) == (0, "nothing is found above 1\n")


def test_what_cannot_work_is_said_in_a_sentence(finished, tmp_path, run):
    folder, _ = finished
    picture, text = tmp_path / "a.png", tmp_path / "a.txt"
    PIL.Image.new("RGB", (8, 8)).save(picture)
    text.write_text("no image")
    for arguments, message in [
        ((folder, picture, "--threshold", "2"), "threshold must be from 0 to 1, got 2"),
        ((folder, text), "a.txt"),
        ((folder, tmp_path / "none.png"), "none.png"),
        ((GOLDEN / "vit", picture), "to detect objects takes a checkpoint that can"),
        ((GOLDEN / "gpt2", picture), "to detect objects takes a checkpoint that can"),
        ((GOLDEN / "detr", picture), "an image needs an image processor"),
    ]:
        code, _, said = run("detect", *arguments)
        assert code == 1
        assert message in said
    few = replace(RECIPE, model=replace(RECIPE.model, queries=2))
    with pytest.raises(ValueError, match="an image must not have more objects than the model has queries"):
        train(few, tmp_path / "few")
