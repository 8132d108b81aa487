r"""Turn images into others by a Vision Transformer with a head of pixels: one drawing into another, colours, sizes.

    python experiments/image_to_image.py                                            # sketches into painted shapes
    python experiments/image_to_image.py regression --workdir runs/emoji --data.root EMOJI --size 32
    python experiments/image_to_image.py paired --workdir runs/paired --data.root EMOJI --size 32
    python experiments/image_to_image.py unpaired --workdir runs/unpaired --data.root FOLDER --size 64
    python experiments/image_to_image.py colour --workdir runs/colour --data.root FOLDER --size 64
    python experiments/image_to_image.py upscale --workdir runs/upscale --data.root FOLDER --size 64 --scale 2

The first word says what is learned. `regression`: the images of a folder of two folders, paired by their names, the
first into the second (`--backward`: the second into the first), by the absolute error and SSIM. `paired`: the same with
a discriminator beside it, as pix2pix has it. `unpaired`: two folders of images of which nothing is known, as CycleGAN
has it. `colour`: any folder of images, from grey; `upscale`: the same, from images made smaller. Without a folder
shapes are sketched and painted.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.data.synthetic import PaintedShapeData, ShapePairData, ShapeSetsData
from flax_transformer.models.vision.image_to_image import (
    AdversarialConfig,
    BothWaysConfig,
    ImageToImageConfig,
    PatchDiscriminatorConfig,
    image_encoder,
)
from flax_transformer.objective import CycleLoss, ImageLoss, PairedLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.image_input import Augment
from flax_transformer.task.image_to_image import ColourImages, PairedImages, UnpairedImages, UpscaleImages
from flax_transformer.task.image_translation import ImageTranslations
from flax_transformer.task.recipe import Recipe
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig, muon_cosine

GENERATOR = ImageToImageConfig(encoder=image_encoder(image=32, patch=4, embed=128, heads=4, depth=6))
JUDGE = image_encoder(image=32, patch=4, embed=96, heads=3, depth=2)
AUGMENT = Augment(shift=4, flip=0.5)
ADAM = OptimizerConfig(
    name="adam", learning_rate=3e-4, schedule=ScheduleConfig(name="cosine", warmup=50, final=0.05), b1=0.5, b2=0.99,
    eps=1e-8, clip_norm=1.0,
)  # fmt: skip


def experiment(**parts: Any) -> Recipe:
    """Return a recipe, whose sizes of images are those of the data."""
    common = {
        "model": GENERATOR,
        "data": ShapePairData(),
        "examples": PairedImages(rows=32, augment=AUGMENT),
        "objective": ImageLoss(similarity=0.5),
        "evaluators": (ImageTranslations(),),
        "optimizer": muon_cosine(3e-3),
        "train": TrainConfig(steps=800, log_every=50, eval_every=200, checkpoint_every=200, ema=0.99),
    }
    return Recipe(**{**common, **parts})


EXPERIMENTS = {
    "regression": experiment(),
    "paired": experiment(
        model=AdversarialConfig(generator=GENERATOR, discriminator=PatchDiscriminatorConfig(encoder=JUDGE)),
        objective=PairedLoss(error=ImageLoss(similarity=0.5), changes=("translation", "cutout")),
    ),
    "unpaired": experiment(
        model=AdversarialConfig(
            generator=BothWaysConfig(model=replace(GENERATOR, encoder=replace(GENERATOR.encoder, depth=4))),
            discriminator=BothWaysConfig(model=PatchDiscriminatorConfig(encoder=JUDGE, conditional=False)),
        ),
        data=ShapeSetsData(),
        examples=UnpairedImages(rows=16, augment=AUGMENT),
        objective=CycleLoss(),
        optimizer=ADAM,
    ),
    "colour": experiment(data=PaintedShapeData(), examples=ColourImages(rows=32, augment=AUGMENT)),
    "upscale": experiment(data=PaintedShapeData(), examples=UpscaleImages(rows=32, augment=AUGMENT)),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
