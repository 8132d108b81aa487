r"""Classify images with one of five kinds of models: clothes, animals, or, out of the box, drawn shapes.

    python experiments/classify_images.py                                            # the compact Transformer, shapes
    python experiments/classify_images.py resnet --workdir runs/cifar --data.root CIFAR10

The first word is the model, made for small images: `cct` (a Transformer with convolutions before it), `vit`, `swin`,
`mixer` or `resnet`. The folder has images in any form: a folder for each class, perhaps within `train`, `validation`
and `test`, idx files as MNIST's, or what TFDS has prepared; images of several sizes take --size. What lacks a
validation split gives a tenth of the training images for it, or --data.holdout.

    python experiments/classify_images.py cct --workdir runs/fashion --data.root FASHION_MNIST --data.holdout 0.02 \
        --train.steps 6000 --train.ema 0.998 --train.eval-every 1500 --train.checkpoint-every 1500 \
        --optimizer.schedule.warmup 200 --augment.shift 1

reached 93.67 % test accuracy after 13 epochs, in 24 minutes of one core (one seed, 2026-11-26). With two
convolutions, which leave 49 places in place of 16, drop path 0.1 and shifts of two pixels it was 92.03 % in as long.

Of CIFAR-10 (as JPEG) it reached 85.78 % after 18 epochs, in 33 minutes of one core (one seed, 2026-11-26), with
--train.steps 6800, --train.eval-every 1700, --train.checkpoint-every 1700, and shifts of two pixels as the recipe has.

`cct_2_3x2` is the published model of 0.28 M parameters with 200 epochs of CIFAR-10, for an accelerator:

    python experiments/classify_images.py cct_2_3x2 --workdir runs/cifar200 --data.root CIFAR10 --data.holdout 0.02

in batches of 128 with RandAugment, of which one process makes 10,000 images a second (`--workers 6` made 15,000 beside
four other trainings on 16 cores), and which has not been run to its end. Without it and in batches of 512, with
--augment.operations 0 --rows 512 --optimizer.learning-rate 1.2e-3 --optimizer.schedule.warmup 1000
--train.steps 19150, 200 epochs took 8 minutes on an NVIDIA H200 beside other trainings and ended with 85.12 % of the
test images (one seed, 2026-11-26; as JPEG, published 89.17 % of lossless ones).

Steps of the others are by Muon: with the two convolutions, a run of 200 of them
ended with 83.7 % of 1,200 validation images of Fashion-MNIST, one by AdamW at a rate of 0.002 with 73.1 %.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.data.synthetic import LabelledImageData
from flax_transformer.models.head import with_head
from flax_transformer.models.vision.cct import cct, cct_2_3x2
from flax_transformer.models.vision.mixer import mixer
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.models.vision.swin import swin_encoder
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.objective import BatchStatistics, LabelLoss
from flax_transformer.task.classification import ImageLabels
from flax_transformer.task.experiment import launch
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import Augment
from flax_transformer.task.recipe import Recipe
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig, muon_cosine


def experiment(family: str, backbone: Any, pool: str, **changes: Any) -> Recipe:
    """Return the recipe for a model, whose size of images and classes are those of the data."""
    recipe = Recipe(
        model=with_head(backbone, outputs=2, pool=pool),
        family=family,
        data=LabelledImageData(),
        examples=LabelledImages(augment=Augment(shift=2, flip=0.5)),
        objective=LabelLoss(label_smoothing=0.1),
        evaluators=(ImageLabels(),),
        optimizer=muon_cosine(1e-2),
        train=TrainConfig(steps=300, log_every=50, eval_every=150, checkpoint_every=150, ema=0.99),
    )  # fmt: skip
    return replace(recipe, **changes)


CCT = with_fields(cct(embed=128, heads=4, depth=5, inner=256, image=32, stem=(32, 96)), drop_path=0.0, unroll=True)
VIT = with_fields(
    vit_encoder("tiny", 4, image=32, drop_path=0.1), embed=128, heads=4, inner=256, depth=6, out_bias=True, unroll=True
)
SWIN = swin_encoder(48, (2, 2, 2), (2, 4, 8), image=32, patch=2, window=4)
MIXER = replace(mixer(embed=128, depth=6, tokens=64, inner=256, image=32, patch=4), drop_path=0.1, unroll=True)
RESNET = ResNetConfig(small=True, stem=16, widths=(16, 32, 64), depths=(2, 2, 2), block="basic")

LONG = {
    "examples": LabelledImages(augment=Augment(shift=4, flip=0.5, operations=1, erase=0.25, mixup=0.2, cutmix=1.0)),
    "optimizer": OptimizerConfig(
        name="adamw", learning_rate=6e-4, schedule=ScheduleConfig(name="cosine", warmup=3_900, final=0.02), b2=0.999,
        eps=1e-8, weight_decay=0.06, clip_norm=1.0,
    ),
    "train": TrainConfig(steps=76_600, log_every=200, eval_every=3_830, checkpoint_every=3_830, ema=0.9995),
}  # fmt: skip

EXPERIMENTS = {
    "cct": experiment("cct", CCT, "weighted"),
    "cct_2_3x2": experiment("cct", cct_2_3x2().backbone, "weighted", **LONG),
    "vit": experiment("vit", VIT, "first"),
    "swin": experiment("swin", SWIN, "mean"),
    "mixer": experiment("mixer", MIXER, "mean"),
    "resnet": experiment("resnet", RESNET, "mean", objective=BatchStatistics(of=LabelLoss(label_smoothing=0.1))),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
