"""Write text with experts: the language model of `language_model.py` with eight feed-forward layers in place of each.

    python experiments/mixture.py --workdir runs/mixture --data.text SHAKESPEARE/input.txt

    …
    validation loss 2.3938 a token, 3.453 bits a character

Each expert is half as wide as the layer it stands for, and a token goes to two of eight: as many multiplications a
token as the dense model, but for places that stay empty, and three times its parameters. In 300 steps on Tiny
Shakespeare that is not yet worth it: the dense model has 2.309 (`language_model.py --train.steps 300`), one of eight
experts as wide as the layer, in Switch's form, 2.508. The load evens out (the balance loss falls to 2.096; 2 is even)
and 4.4 % of visits find no place. One run each on two CPU cores, beside other work (2026-11-23); longer ones have not
been made.
"""

from flax_transformer.data.text.plain import PlainText
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_experts, with_fields
from flax_transformer.objective import RouterLoss, TokenLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.text_generation import TextLoss, TextWindows
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

EXPERIMENT = Recipe(
    model=with_experts(with_fields(gpt2_tiny(), inner=256), experts=8, capacity=1.25),
    data=PlainText(),
    examples=TextWindows(vocabulary=VocabularyConfig(unit="character"), rows=12, length=64),
    objective=RouterLoss(of=TokenLoss()),
    evaluators=(TextLoss(),),
    optimizer=OptimizerConfig(
        name="adamw", learning_rate=4e-3, schedule=ScheduleConfig(name="cosine", warmup=100, final=0.1), b1=0.9,
        b2=0.99, eps=1e-8, weight_decay=0.1, clip_norm=1.0,
    ),
    train=TrainConfig(steps=300, log_every=50, eval_every=300, checkpoint_every=300),
)  # fmt: skip

if __name__ == "__main__":
    launch(EXPERIMENT)
