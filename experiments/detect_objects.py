"""Find objects in pictures."""

from flax_transformer.data.image import SceneData
from flax_transformer.models.vision.detr import DetrConfig
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.nn import TrunkConfig
from flax_transformer.nn.placed import placed_block
from flax_transformer.objective import BatchStatistics, DetectionLoss
from flax_transformer.task.evaluator import Detections
from flax_transformer.task.example import DetectionImages
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig


def trunk(cross: bool, depth: int) -> TrunkConfig:
    """Make layers that look at a feature map, or queries' that look at it too."""
    return TrunkConfig(block=placed_block(embed=128, heads=4, inner=256, cross=cross), depth=depth)


EXPERIMENT = Recipe(
    model=DetrConfig(
        backbone=ResNetConfig(stem=32, widths=(32, 64, 128), depths=(1, 1, 1), block="basic"),
        encoder=trunk(cross=False, depth=2), decoder=trunk(cross=True, depth=3), queries=12,
    ),
    family="detr",
    data=SceneData(),
    examples=DetectionImages(rows=32, size=96),
    objective=BatchStatistics(of=DetectionLoss()),
    evaluators=(Detections(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=5e-4, schedule=ScheduleConfig(name="cosine", warmup=200), b2=0.999, eps=1e-8,
        weight_decay=1e-4, clip_norm=0.1,
    ),
    train=TrainConfig(steps=10_000, log_every=100, eval_every=1000, checkpoint_every=1000),
)  # fmt: skip

if __name__ == "__main__":
    launch(EXPERIMENT)
