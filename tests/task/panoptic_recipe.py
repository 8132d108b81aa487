"""A small recipe of a Mask2Former; as a program it trains on a mesh of eight devices, or as options say."""

import json
import runpy
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from flax_transformer.data.synthetic import HorizonScenes, SceneSegmentData
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.convnext import ConvNextConfig
from flax_transformer.models.vision.deformable import deformable_block
from flax_transformer.models.vision.mask2former import Mask2FormerConfig, masked_block
from flax_transformer.models.vision.pixel_decoder import PixelDecoderConfig
from flax_transformer.nn import TrunkConfig
from flax_transformer.objective import MaskSetLoss
from flax_transformer.parallel import MeshConfig
from flax_transformer.task.experiment import launch, train
from flax_transformer.task.panoptic_segmentation import PanopticEvaluator, PanopticImages
from flax_transformer.train import OptimizerConfig, TrainConfig
from tests.task.image_recipes import records

EXPERIMENTS = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "segment_images.py"))["EXPERIMENTS"]
WIDTHS = (8, 8, 8, 8)
SIZES = {"embed": 32, "heads": 2, "inner": 16}
RECIPE = replace(
    EXPERIMENTS["mask2former"],
    model=Mask2FormerConfig(
        backbone=BackboneConfig(
            backbone=ConvNextConfig(patch=2, widths=WIDTHS, depths=(1, 1, 1, 1), layer_scale=None), stages=(1, 2, 3, 4),
            widths=WIDTHS, norm_eps=1e-6,
        ),
        pixels=PixelDecoderConfig(
            channels=WIDTHS, encoder=TrunkConfig(block=deformable_block(**SIZES), depth=1), outputs=8
        ),
        decoder=TrunkConfig(block=masked_block(**SIZES), depth=1), queries=5,
    ),
    data=SceneSegmentData(shapes=HorizonScenes(train=24, held_out=5, size=40, objects=2)),
    examples=PanopticImages(rows=8, size=32, crop=0.5),
    objective=MaskSetLoss(points=16),
    evaluators=(PanopticEvaluator(count=2, threshold=0.0, overlap=0.0),),
    optimizer=OptimizerConfig(clip_norm=1.0),
    train=TrainConfig(steps=2, log_every=1, eval_every=2, checkpoint_every=2),
)  # fmt: skip


def main() -> None:
    """Train on a mesh, or in a folder, perhaps as one of several processes."""
    if sys.argv[1:]:
        launch(RECIPE)
    with tempfile.TemporaryDirectory() as folder:
        train(replace(RECIPE, mesh=MeshConfig(data=4, fsdp=2)), folder)
        print(json.dumps(records(Path(folder))))


if __name__ == "__main__":
    main()
