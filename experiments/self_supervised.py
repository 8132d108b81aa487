r"""Learn what images have in common without their labels, by one of twelve methods, and see what it is worth.

    python experiments/self_supervised.py                                       # SimCLR, of drawn shapes
    python experiments/self_supervised.py dino --workdir runs/dino --data.root CIFAR10

The first word is the method: `simclr`, `moco` (v2, with a queue), `moco3`, `byol`, `dino`, `ibot` compare views of an
image; `mae` and `simmim` restore masked patches, `beit` names them; `jigsaw`, `relative` and `rotation` are asked about
the image. The folder has images in any form, as `classify_images.py` takes them, whose labels are in no batch of
training: evaluators alone see them, in validation (nearest neighbours among validation images) and in the end (nearest
neighbours and a linear probe of 1 % and 10 % of the labels). `export` is a ViT, for `mae` a masked autoencoder, for
`beit` a BEiT, that `transformers` opens, and that a classifier begins with:

    python experiments/finetune_image.py probe --init runs/dino/export --data.root CIFAR10 --data.limit 450
    python experiments/finetune_image.py --init runs/dino/export --data.root CIFAR10 --data.limit 4500

have a probe of 1 % of the labels, and all parameters trained on 10 % of them.

    python experiments/self_supervised.py jigsaw --workdir runs/jigsaw --data.root CIFAR10 --data.holdout 0.02 \
        --model.encoder.patches.patch 8 8 --model.encoder.depth 4 --optimizer.name muon \
        --optimizer.learning-rate 0.005 --optimizer.b2 0.99 --train.steps 1800 --train.eval-every 600 \
        --train.checkpoint-every 600 --train.log-every 100

names 97.06 % of the orders of the quarters of CIFAR-10's 10,000 test images (chance is 4.2 %) after 4.7 epochs: edges
that go on in each other say it. A linear probe of its vectors reaches 19.12 % with 1 % of the labels and 34.56 % with
10 %, nearest neighbours 19.47 % (the same encoder from scratch on those labels, all trained: 36.04 % and 51.83 %),
at an effective rank of 45.9 of 128 (one seed, 5 CPU minutes, 3 by the clock, on two cores of an AMD EPYC, 2026-11-27).
With the same options and 4,000 steps, 17 CPU minutes, `simclr` has probes of 51.2 % and 61.8 %, `moco3` 47.6 % and
59.0 %, three seeds; from scratch 36.0 % and 55.3 %. `dino` and `mae` have 38.7 % and 47.5 %, 33.4 % and 44.8 % after
1,500, three seeds each (docs/self_supervision.md has the table). The other methods have been run for a few steps
only, not measured.
"""

from dataclasses import fields, replace
from typing import Any

from flax_transformer.data.synthetic import LabelledImageData
from flax_transformer.models.head import with_head
from flax_transformer.models.restore import RestorerConfig
from flax_transformer.models.vision.beit import beit_base_patch16
from flax_transformer.models.vision.view_encoder import ProjectorConfig, ViewEncoderConfig
from flax_transformer.models.vision.vit import ViTConfig, vit_encoder
from flax_transformer.models.vision.vit_mae import MAEConfig, MAEEncoderConfig
from flax_transformer.nn import TrunkConfig, transformer_block, with_fields
from flax_transformer.objective import (
    BYOL_CHANGES,
    BEiTLoss,
    BYOLLoss,
    DINOLoss,
    IBOTLoss,
    MAELoss,
    MoCoLoss,
    MoCoV3Loss,
    Momentum,
    PatchOrderLoss,
    RelativePositionLoss,
    RotationLoss,
    SimCLRLoss,
    SimMIMLoss,
    ViewChange,
    Views,
)
from flax_transformer.task.experiment import launch
from flax_transformer.task.feature_evaluator import EmbeddingMap, EmbeddingRank, LinearProbe, NearestNeighbours
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.self_supervision import UnlabelledImages
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

WIDTH = 128
VIT = with_fields(
    vit_encoder("tiny", 4, image=32), embed=WIDTH, heads=4, inner=256, depth=6, out_bias=True, unroll=True
)
"""0.8 million parameters, of 64 patches."""


def views(model: ViTConfig = VIT, *, predictor: bool = False, **projector: Any) -> ViewEncoderConfig:
    """Put a projector on the encoder, and perhaps a predictor."""
    head = ProjectorConfig(embed=WIDTH, outputs=64, **projector)
    more = ProjectorConfig(embed=64, outputs=64) if predictor else None
    return ViewEncoderConfig(encoder=model, projector=head, predictor=more, pool="mean")


def answers(count: int) -> ViewEncoderConfig:
    """Put one layer of so many classes on the encoder."""
    return ViewEncoderConfig(encoder=VIT, projector=ProjectorConfig(embed=WIDTH, outputs=count, layers=1), pool="mean")


def experiment(model: Any, objective: Any, **changes: Any) -> Recipe:
    """Return the recipe of a method, whose size of images is that of the data."""
    recipe = Recipe(
        model=model,
        family="vit",
        data=LabelledImageData(),
        examples=UnlabelledImages(rows=128),
        objective=objective,
        evaluators=(NearestNeighbours(), LinearProbe(), EmbeddingRank(), EmbeddingMap()),
        optimizer=OptimizerConfig(
            name="adamw", learning_rate=1e-3, schedule=ScheduleConfig(name="cosine", warmup=30), b2=0.999, eps=1e-8,
            weight_decay=0.05, clip_norm=1.0,
        ),
        train=TrainConfig(steps=300, log_every=25, eval_every=100, checkpoint_every=300),
    )  # fmt: skip
    return replace(recipe, **changes)


TWO = Views(changes=BYOL_CHANGES)
CROPS = Views(area=(0.4, 1.0), changes=BYOL_CHANGES, local=2, local_size=16, local_area=(0.1, 0.4))
DINO = ProjectorConfig(
    embed=WIDTH, outputs=64, hidden=256, layers=3, norm="none", activation="gelu", prototypes=1024
)  # fmt: skip
AUTOENCODER = MAEConfig(
    encoder=MAEEncoderConfig(
        **{each.name: getattr(VIT, each.name) for each in fields(VIT)} | {"position": "fixed"}, mask_ratio=0.75
    ),
    decoder=TrunkConfig(
        block=with_fields(
            transformer_block(
                embed=64, heads=4, inner=128, norm_eps=1e-12, norm_position="pre", activation="gelu", init_std=0.02
            ),
            out_bias=True,
        ),
        depth=2,
    ),
)
BEIT = with_head(
    with_fields(
        beit_base_patch16(image=32).backbone, patch=(4, 4), grid=(8, 8), embed=WIDTH, heads=4, inner=256, depth=6,
        drop_path=0.0, unroll=True, mask_token=True,
    ),
    outputs=256, pool="every", skip=1, norm=1e-12,
)  # fmt: skip
RESTORER = RestorerConfig(backbone=replace(VIT, mask_token=True), embed=WIDTH, stride=4)
PIXELS = UnlabelledImages(rows=128, uses=("fill-mask",))

EXPERIMENTS = {
    "simclr": experiment(views(), SimCLRLoss(views=Views(changes=(ViewChange(),)))),
    "moco": experiment(views(groups=4), MoCoLoss(queue=2_048)),
    "moco3": experiment(views(predictor=True, last_norm=True), MoCoV3Loss(views=TWO)),
    "byol": experiment(views(predictor=True), BYOLLoss(views=TWO, momentum=Momentum(start=0.99))),
    "dino": experiment(
        ViewEncoderConfig(encoder=VIT, projector=DINO),
        DINOLoss(views=CROPS, momentum=Momentum(start=0.99), warmup_temperature=0.02, warmup_steps=100),
    ),
    "ibot": experiment(
        ViewEncoderConfig(encoder=replace(VIT, mask_token=True), projector=DINO),
        IBOTLoss(views=CROPS, momentum=Momentum(start=0.99), warmup_temperature=0.02, warmup_steps=100),
    ),
    "mae": experiment(AUTOENCODER, MAELoss(), family="vit_mae", examples=PIXELS),
    "beit": experiment(BEIT, BEiTLoss(), family="beit", examples=PIXELS),
    "simmim": experiment(RESTORER, SimMIMLoss(), examples=PIXELS),
    "jigsaw": experiment(answers(24), PatchOrderLoss()),
    "relative": experiment(answers(8), RelativePositionLoss()),
    "rotation": experiment(answers(4), RotationLoss(), examples=UnlabelledImages(rows=64)),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
