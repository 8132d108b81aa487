"""The recipe of semantic segmentation: a run, its numbers, and what is made of its export."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from flax_transformer import hub
from flax_transformer.data.synthetic import SceneMapData, ShapeScenes
from flax_transformer.models.vision.segformer import SegFormerConfig, with_mlp_head
from flax_transformer.nn import transformer_block
from flax_transformer.task.experiment import train
from flax_transformer.task.segmentation import segment
from flax_transformer.task.semantic_segmentation import SegmentationEvaluator, SegmentationImages
from flax_transformer.train import OptimizerConfig, TrainConfig

pytestmark = pytest.mark.rotates

ROOT = Path(__file__).parents[2]
ENCODER = SegFormerConfig(
    first=transformer_block(embed=8, heads=1, inner=8, norm_eps=1e-5, norm_position="pre", activation="gelu"),
    widths=(8,), depths=(1,), stage_heads=(1,), inners=(8,), windows=(7,), strides=(4,), reductions=(2,),
)  # fmt: skip
RECIPE = replace(
    runpy.run_path(str(ROOT / "experiments" / "segment_images.py"))["EXPERIMENTS"]["segformer"],
    model=with_mlp_head(ENCODER, 2, embed=8),
    data=SceneMapData(shapes=ShapeScenes(train=4, held_out=3, size=40)),
    examples=SegmentationImages(rows=2, size=32, crop=0.5),
    evaluators=(SegmentationEvaluator(count=2),),
    optimizer=OptimizerConfig(),
    train=TrainConfig(steps=2, log_every=2, eval_every=2, checkpoint_every=2),
)  # fmt: skip


@pytest.mark.proves("segformer", "train", "[`segment_images`](../experiments/segment_images.py)")
def test_a_run_is_tested_by_its_maps_and_its_export_makes_them(tmp_path):
    train(RECIPE, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {"miou", "pixel_accuracy", "class_accuracy"} <= lines[-1].keys()
    assert any("miou" in line for line in lines if line["split"] == "validation")
    samples = (tmp_path / "run/samples.jsonl").read_text().splitlines()
    assert len(samples) == 2
    pretrained = hub.load(tmp_path / "run/export")
    assert pretrained.config["id2label"]["0"] == "ground"
    image = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8))
    (found,) = segment(pretrained, [image])
    assert found.numbers.shape == (50, 70)
    assert {each.label for each in found.regions} <= {"ground", "ellipse", "rectangle", "triangle", "cross"}
