"""Write text with experts: the language model of `language_model.py` with eight feed-forward layers in place of each.

    python experiments/mixture.py --workdir runs/mixture --data.text SHAKESPEARE/input.txt

RESULT
"""

from flax_transformer.data.text.plain import PlainText
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_experts, with_fields
from flax_transformer.objective import RouterLoss, TokenLoss
from flax_transformer.task.evaluator import TextLoss
from flax_transformer.task.example import TextWindows, Vocabulary
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig

EXPERIMENT = Recipe(
    model=with_experts(with_fields(gpt2_tiny(), inner=256), experts=8, capacity=1.25),
    data=PlainText(),
    examples=TextWindows(vocabulary=Vocabulary(unit="character"), rows=12, length=64),
    objective=RouterLoss(of=TokenLoss()),
    evaluators=(TextLoss(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=4e-3, schedule=ScheduleConfig(name="cosine", warmup=100, final=0.1), b1=0.9,
        b2=0.99, eps=1e-8, weight_decay=0.1, clip_norm=1.0,
    ),
    train=TrainConfig(steps=1_000, log_every=100, eval_every=500, checkpoint_every=500),
)  # fmt: skip

if __name__ == "__main__":
    launch(EXPERIMENT)
