"""Tell what is on a picture, by one of five kinds of models: clothes, animals, or, out of the box, drawn shapes.

    python experiments/classify_images.py                                            # the compact Transformer, shapes
    python experiments/classify_images.py resnet --workdir runs/cifar --data.root CIFAR10

The first word is the model: `cct` (a Transformer with convolutions before it), `vit`, `swin`, `mixer` or `resnet`.
`FOLDER` has pictures in any form: a folder for each class, perhaps within `train`, `validation` and `test`, idx files
as MNIST's, or what TFDS has prepared; pictures of several sizes take --size.
"""

from dataclasses import replace
from typing import Any

from flax_transformer.data.image import LabelledData
from flax_transformer.models.head import with_head
from flax_transformer.models.vision.cct import cct
from flax_transformer.models.vision.mixer import mixer
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.models.vision.swin import swin_encoder
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.objective import BatchStatistics, LabelLoss
from flax_transformer.task.evaluator import PictureLabels
from flax_transformer.task.example import Augment, LabelledImages
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig


def experiment(family: str, backbone: Any, pool: str, **changes: Any) -> Recipe:
    """Give the recipe for a model, whose size of pictures and classes are those of the data."""
    recipe = Recipe(
        model=with_head(backbone, outputs=2, pool=pool),
        family=family,
        data=LabelledData(),
        examples=LabelledImages(augment=Augment(shift=2, flip=0.5)),
        objective=LabelLoss(label_smoothing=0.1),
        evaluators=(PictureLabels(),),
        optimizer=OptimizerConfig(
            name="adamw", learning_rate=1e-3, schedule=ScheduleConfig(name="cosine", warmup=50), b2=0.99, eps=1e-8,
            weight_decay=0.05, clip_norm=1.0,
        ),
        train=TrainConfig(steps=400, log_every=50, eval_every=200, checkpoint_every=200, ema=0.99),
    )  # fmt: skip
    return replace(recipe, **changes)


CCT = cct(embed=128, heads=4, depth=4, inner=256, image=32, stem=(64,), pool=False)
VIT = with_fields(
    vit_encoder("tiny", 4, image=32, drop_path=0.1), embed=128, heads=4, inner=256, depth=6, out_bias=True
)
SWIN = swin_encoder(48, (2, 2, 2), (2, 4, 8), image=32, patch=2, window=4)
MIXER = replace(mixer(embed=128, depth=6, tokens=64, inner=256, image=32, patch=4), drop_path=0.1)
RESNET = ResNetConfig(small=True, stem=16, widths=(16, 32, 64), depths=(2, 2, 2), block="basic")

EXPERIMENTS = {
    "cct": experiment("cct", CCT, "weighted"),
    "vit": experiment("vit", VIT, "first"),
    "swin": experiment("swin", SWIN, "mean"),
    "mixer": experiment("mixer", MIXER, "mean"),
    "resnet": experiment("resnet", RESNET, "mean", objective=BatchStatistics(of=LabelLoss(label_smoothing=0.1))),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
