r"""Learn from the images of ImageNet without their labels, at the sizes of the papers, on a slice of TPUs.

    flax-transformer plan experiments/self_supervised_imagenet.py:moco3 --topology v5e:8x8 --mesh.data 64
    python experiments/self_supervised_imagenet.py moco3 --workdir gs://BUCKET/moco3 --data.root IMAGENET \
        --mesh.data 64

The first word is the method: `moco3`, a ViT-B/16 with batches of 4,096 (Chen et al. 2021, 300 epochs), or `dino`, a
ViT-S/16 with two crops of 224 and eight of 96 pixels and batches of 1,024 (Caron et al. 2021, 300 epochs). They have
not been trained; `plan` reads no images and needs no TPU, and says that they fit: 5.07 and 1.78 GiB a chip
(2026-11-27). The small ones of self_supervised.py train on a laptop.
"""

from flax_transformer.data.synthetic import LabelledImageData
from flax_transformer.models.vision.view_encoder import ProjectorConfig, ViewEncoderConfig
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import with_fields, with_precision
from flax_transformer.objective import BYOL_CHANGES, DINOLoss, MoCoV3Loss, Momentum, Views
from flax_transformer.task.experiment import launch
from flax_transformer.task.feature_evaluator import EmbeddingRank, LinearProbe, NearestNeighbours
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.self_supervision import Features, UnlabelledImages
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

EPOCH = 1_281_167
"""Images of training."""
FIRST = Features(pool="first")


def recipe(model: ViewEncoderConfig, objective: MoCoV3Loss | DINOLoss, rows: int, rate: float, decay: float) -> Recipe:
    """Return a recipe of 300 epochs, 40 or 10 of them warming up, that computes in bfloat16."""
    steps = 300 * EPOCH // rows
    return Recipe(
        model=with_precision(with_fields(model, remat="attention"), compute="bfloat16"),
        family="vit",
        data=LabelledImageData(),
        examples=UnlabelledImages(rows=rows, size=224),
        objective=objective,
        evaluators=(NearestNeighbours(features=FIRST), LinearProbe(features=FIRST), EmbeddingRank(features=FIRST)),
        optimizer=OptimizerConfig(
            name="adamw", learning_rate=rate, schedule=ScheduleConfig(name="cosine", warmup=steps // 15), b2=0.999,
            eps=1e-8, weight_decay=decay, clip_norm=3.0,
        ),
        train=TrainConfig(steps=steps, log_every=100, eval_every=5_000, checkpoint_every=1_000),
    )  # fmt: skip


def moco3(rows: int = 4_096) -> Recipe:
    """Return MoCo v3 of a ViT-B/16, with its two heads of 4,096 units."""
    encoder = vit_encoder("base", 16, image=224)
    head = ProjectorConfig(embed=768, hidden=4_096, layers=3, outputs=256, last_norm=True)
    predictor = ProjectorConfig(embed=256, hidden=4_096, layers=2, outputs=256, last_norm=True)
    views = Views(area=(0.08, 1.0), changes=BYOL_CHANGES)
    objective = MoCoV3Loss(views=views, momentum=Momentum(start=0.99, steps=300 * EPOCH // rows))
    model = ViewEncoderConfig(encoder=encoder, projector=head, predictor=predictor)
    return recipe(model, objective, rows, 1.5e-4 * rows / 256, 0.1)


def dino(rows: int = 1_024) -> Recipe:
    """Return DINO of a ViT-S/16, with two large and eight small crops and 65,536 prototypes."""
    encoder = vit_encoder("small", 16, image=224)
    head = ProjectorConfig(
        embed=384, hidden=2_048, layers=3, outputs=256, norm="none", activation="gelu", prototypes=65_536
    )
    views = Views(area=(0.25, 1.0), changes=BYOL_CHANGES, local=8, local_size=96, local_area=(0.05, 0.25))
    objective = DINOLoss(
        views=views, momentum=Momentum(start=0.996, steps=300 * EPOCH // rows), teacher_temperature=0.07,
        warmup_temperature=0.04, warmup_steps=30 * EPOCH // rows,
    )  # fmt: skip
    return recipe(ViewEncoderConfig(encoder=encoder, projector=head), objective, rows, 5e-4 * rows / 256, 0.04)


EXPERIMENTS = {"moco3": moco3(), "dino": dino()}

if __name__ == "__main__":
    launch(EXPERIMENTS)
