"""Draw pictures pixel by pixel: ImageGPT, a decoder of colours, and what it has learned of classes by that.

python experiments/image_gpt.py                                           # drawn shapes
"""

from flax_transformer.data.image import DrawnShapes, LabelledData
from flax_transformer.models.vision.imagegpt import imagegpt
from flax_transformer.objective import TokenLoss
from flax_transformer.task.evaluator import Completions, LayerProbe, PixelBits
from flax_transformer.task.example import PixelSequences
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

EXPERIMENT = Recipe(
    model=imagegpt(96, 3, 4, colours=16, dropout=0.0),
    family="imagegpt",
    data=LabelledData(shapes=DrawnShapes(size=16, noise=0.0)),
    examples=PixelSequences(rows=32, size=14, colours=16),
    objective=TokenLoss(chunk=8_192),
    evaluators=(PixelBits(), LayerProbe(), Completions()),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=3e-3, schedule=ScheduleConfig(name="cosine", warmup=100, final=0.1), b1=0.9,
        b2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0,
    ),
    train=TrainConfig(steps=300, log_every=50, eval_every=300, checkpoint_every=300),
)  # fmt: skip

if __name__ == "__main__":
    launch(EXPERIMENT)
