"""Small recipes of image to image and of images of noise; as a program with eight devices it trains two of them."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax_transformer.data.synthetic import (
    DrawnShapes,
    LabelledImageData,
    PaintedShapeData,
    ShapePairData,
    ShapeSetsData,
    SketchedShapes,
)
from flax_transformer.models.vision.feature_discriminator import FeatureDiscriminatorConfig
from flax_transformer.models.vision.image_to_image import (
    AdversarialConfig,
    BothWaysConfig,
    ImageToImageConfig,
    PatchDiscriminatorConfig,
    image_encoder,
)
from flax_transformer.models.vision.transgan import TransGANDiscriminatorConfig, TransGANGeneratorConfig
from flax_transformer.nn import TrunkConfig, transformer_block
from flax_transformer.objective import CycleLoss, ImageLoss, PairedLoss, SampleLoss
from flax_transformer.parallel import MeshConfig
from flax_transformer.task.experiment import train
from flax_transformer.task.gan import AtOnce, SampledImages
from flax_transformer.task.generated_image import SampleDistances, SampleGrids
from flax_transformer.task.image_input import Augment
from flax_transformer.task.image_to_image import ColourImages, PairedImages, UnpairedImages, UpscaleImages
from flax_transformer.task.image_translation import ImageTranslations
from flax_transformer.task.recipe import Recipe
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

SHAPES = SketchedShapes(train=24, held_out=6, size=12)
ENCODER = image_encoder(image=12, patch=4, embed=8, heads=2, depth=1, inner=8)
GENERATOR = ImageToImageConfig(encoder=ENCODER, features=2, mix=4)
JUDGE = PatchDiscriminatorConfig(encoder=ENCODER)
AUGMENT = Augment(shift=1, flip=0.5)


def recipe(**parts: Any) -> Recipe:
    """Return a recipe of a few steps, with two optimizers where there are two players, and a moving average."""
    common = {
        "model": GENERATOR,
        "data": ShapePairData(shapes=SHAPES),
        "examples": PairedImages(rows=8, augment=AUGMENT),
        "objective": ImageLoss(similarity=0.5),
        "evaluators": (ImageTranslations(count=2),),
        "optimizer": OptimizerConfig(learning_rate=1e-3, schedule=ScheduleConfig(name="constant")),
        "train": TrainConfig(steps=4, log_every=1, eval_every=4, checkpoint_every=2, ema=0.9),
    }
    return Recipe(**{**common, **parts})


RECIPES = {
    "regression": recipe(),
    "paired": recipe(
        model=AdversarialConfig(generator=GENERATOR, discriminator=JUDGE),
        objective=PairedLoss(error=ImageLoss(similarity=0.5), changes=("translation", "cutout")),
    ),
    "unpaired": recipe(
        model=AdversarialConfig(
            generator=BothWaysConfig(model=GENERATOR),
            discriminator=BothWaysConfig(model=replace(JUDGE, conditional=False)),
        ),
        data=ShapeSetsData(shapes=SHAPES),
        examples=UnpairedImages(rows=8),
        objective=CycleLoss(),
    ),
    "colour": recipe(data=PaintedShapeData(shapes=SHAPES), examples=ColourImages(rows=8, augment=AUGMENT)),
    "upscale": recipe(
        data=PaintedShapeData(shapes=replace(SHAPES, size=16)), examples=UpscaleImages(rows=8, scale=2)
    ),
    "noise": recipe(
        model=AdversarialConfig(
            generator=TransGANGeneratorConfig(embed=16, noise=4, depths=(1, 1), heads=2, cell=4, modulated=True),
            discriminator=TransGANDiscriminatorConfig(embed=4, depths=(1, 1), heads=2, cell=2, auxiliary=True),
        ),
        data=LabelledImageData(shapes=DrawnShapes(train=24, held_out=6, size=8)),
        examples=SampledImages(rows=8),
        objective=SampleLoss(changes=("translation", "cutout"), penalty="r1", auxiliary=0.5),
        evaluators=(SampleDistances(how=AtOnce()), SampleGrids(how=AtOnce(), columns=2, searched=10)),
    ),
}  # fmt: skip

FEATURES = replace(
    RECIPES["noise"],
    objective=replace(RECIPES["noise"].objective, auxiliary=0.0),
    model=AdversarialConfig(
        generator=TransGANGeneratorConfig(embed=16, noise=4, depths=(1, 1), heads=2, cell=6),
        discriminator=FeatureDiscriminatorConfig(
            trunk=TrunkConfig(block=transformer_block(embed=4, heads=2, inner=4, norm_position="pre"), depth=1),
            embed=8,
            layers=(0, 1),
        ),
        encoder=ENCODER,
    ),
    data=LabelledImageData(shapes=DrawnShapes(train=24, held_out=6, size=12)),
)
"""Judged by what an encoder says, which must be that of another run, as of "regression"."""


def records(folder: Path) -> list[dict]:
    """Read what a run has measured, but for its speed."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


def main() -> None:
    """Train on a mesh."""
    found = {}
    for name in ("paired", "noise"):
        with tempfile.TemporaryDirectory() as folder:
            train(replace(RECIPES[name], mesh=MeshConfig(data=4, fsdp=2)), folder)
            found[name] = records(Path(folder))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
