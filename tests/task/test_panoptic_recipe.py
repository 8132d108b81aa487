"""The recipe of a Mask2Former: a run, its numbers, what is made of its export, resumption, and eight devices."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import PIL.Image
import pytest
from fake_devices import on_eight

from flax_transformer import hub
from flax_transformer.task.experiment import train
from flax_transformer.task.segmentation import segment
from flax_transformer.train import Checkpoints, OptimizerConfig, RunFolder, TrainConfig
from tests.task import panoptic_recipe
from tests.task.image_recipes import records
from tests.task.panoptic_recipe import RECIPE

pytestmark = pytest.mark.rotates


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(RECIPE, folder)
    return folder


@pytest.mark.proves("mask2former", "train", "[`segment_images`](../experiments/segment_images.py)")
def test_a_run_is_tested_by_its_segments_and_its_export_finds_them(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = {"pq", "sq", "rq", "pq_things", "pq_stuff", "miou"}
    assert measured <= lines[-1].keys()
    assert any(measured <= line.keys() for line in lines if line["split"] == "validation")
    assert len((run / "samples.jsonl").read_text().splitlines()) == 2
    pretrained = hub.load(run / "export")
    assert [*pretrained.config["id2label"].values()] == [
        "ellipse", "rectangle", "triangle", "cross", "sky", "floor",
    ]  # fmt: skip
    image = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8))
    names = {*pretrained.config["id2label"].values()}
    for subtask in ("panoptic", "instance", "semantic"):
        (found,) = segment(pretrained, [image], 0.0, subtask)
        assert found.numbers.shape == (50, 70)
        assert {each.label for each in found.regions} <= names
        assert found.regions or subtask == "panoptic"  # of which little is sure yet


@pytest.mark.rotates
@pytest.mark.parity
def test_transformers_opens_the_export(run):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, report = transformers.Mask2FormerForUniversalSegmentation.from_pretrained(
        run / "export", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    processor = transformers.AutoImageProcessor.from_pretrained(run / "export", backend="pil")
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    theirs = processor(PIL.Image.fromarray(pixels), return_tensors="pt")
    with torch.no_grad():
        expected = model.eval()(pixel_values=theirs["pixel_values"])
    pretrained = hub.load(run / "export")
    inputs = pretrained.processor([PIL.Image.fromarray(pixels)])
    np.testing.assert_allclose(inputs["pixel_values"], theirs["pixel_values"].numpy(), atol=1e-5)
    found = pretrained(**inputs)
    for name in ("class_queries_logits", "masks_queries_logits"):
        np.testing.assert_allclose(found[name], expected[name].numpy(), atol=1e-5 * float(abs(expected[name]).max()))


def arrays_of(folder):
    """Return all that a run's newest checkpoint holds, by path."""
    with Checkpoints(RunFolder(folder).checkpoints, keep=None) as checkpoints:
        assert checkpoints.steps()[-1] == 20
        return jax.tree.map(np.asarray, checkpoints.restore(checkpoints.shapes())[0])


@pytest.mark.proves("mask2former", "train", "10 + 10 steps = 20, bit for bit; eight devices = one")
def test_ten_steps_and_ten_more_are_twenty(tmp_path):
    for steps, folder in ((20, "whole"), (10, "parts"), (20, "parts")):
        config = TrainConfig(steps=steps, log_every=5, eval_every=20, checkpoint_every=10)
        train(replace(RECIPE, evaluators=(), train=config), tmp_path / folder)
    whole, parts = arrays_of(tmp_path / "whole"), arrays_of(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for path, array in whole.items():
        np.testing.assert_array_equal(parts[path], array, err_msg=path)


def test_eight_devices_train_and_are_tested_as_one(run):
    one, (mesh, _) = records(run), on_eight(Path(panoptic_recipe.__file__))
    assert len(one) == len(mesh)
    for expected, found in zip(one, mesh, strict=True):
        for metric in expected.keys() & {"loss", "class_loss", "mask_loss", "dice_loss", "gradient_norm"}:
            np.testing.assert_allclose(found[metric], expected[metric], rtol=1e-4, atol=1e-6, err_msg=metric)
        for metric in expected.keys() & {"pq", "sq", "rq", "miou"}:
            np.testing.assert_allclose(found[metric], expected[metric], atol=2e-3, err_msg=metric)


def test_parts_of_a_batch_are_trained_in_turn(tmp_path):
    config = TrainConfig(steps=1, log_every=1, eval_every=1, checkpoint_every=1, accumulate=2)
    train(replace(RECIPE, evaluators=(), optimizer=OptimizerConfig(), train=config), tmp_path)
    losses = [line["loss"] for line in records(tmp_path) if line["split"] != "test"]
    assert len(losses) == 2
    assert np.isfinite(losses).all()


def test_fewer_queries_than_segments_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"more objects than the model has queries .*, got 4 in drawn image .*, 3"):
        train(replace(RECIPE, model=replace(RECIPE.model, queries=3)), tmp_path)
