r"""Write text: train a decoder-only Transformer on characters or byte pairs.

    python experiments/language_model.py --workdir runs/shakespeare --data.text SHAKESPEARE/input.txt
    …
    validation loss 1.7570 a token, 2.535 bits a character

Without `--data.text` the corpus is the sources of Python's own standard library. The model is that of nanoGPT's
configuration for a CPU: 4 layers, 128 wide, 64 characters of context, 12 windows a batch, 2,000 steps; nanoGPT reports
1.88 on Shakespeare. Its learning rate of 1e-3 gave 1.900 here, 2e-3 gave 1.813, and 4e-3, the default, 1.757: on two
CPU cores, one run each, in under two minutes (2026-11-21); three seeds of the default have 1.766 ± 0.009 (2026-11-29).

    python experiments/language_model.py mini --workdir runs/shakespeare_mini --data.text SHAKESPEARE/input.txt
    …
    validation loss 1.4694 a token, 2.120 bits a character

is nanoGPT's configuration for a GPU, in bfloat16: 6 layers, 384 wide, 256 characters of context, 64 windows a batch,
dropout 0.2; nanoGPT reports 1.4697. Of its 5,000 steps the best by validation loss, 1,750, is kept (one NVIDIA H200,
beside two other trainings, in 206 s; seed 0, 2026-11-26).

    python experiments/language_model.py long --workdir runs/long --data.text SHAKESPEARE/input.txt
    python experiments/language_model.py long --workdir runs/longer --data.text SHAKESPEARE/input.txt \
        --warm-start runs/long --length 16384 --rows 1 --train.steps 40 --optimizer.learning-rate 0.002 \
        --optimizer.schedule.warmup 4 --train.log-every 5 --train.eval-every 20 --train.checkpoint-every 20

is a Llama of 2 heads with rotary positions, which reads 2,048 characters at once, and then goes on with longer texts: a
new run begins with the parameters of another. The validation loss was 1.629 a character after 800 steps, in 9 CPU
minutes, 1.673 of texts of 16,384 characters after 40 more, in 9, and 1.778 of 65,536 after 8 more (at a rate of 0.001,
after 1 step of warmup), in 26: to so small a model longer texts are no help. One seed, one core of an AMD EPYC beside
other work, 2026-11-30.
"""

from typing import Any

from flax_transformer.data.text.plain import PlainText
from flax_transformer.models.text.gpt2 import gpt2_mini, gpt2_tiny
from flax_transformer.models.text.llama import llama_tiny
from flax_transformer.nn import Precision
from flax_transformer.objective import TokenLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.opened import VocabularyConfig
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.text_generation import Continuations, TextLoss, TextWindows
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig, muon_cosine


def experiment(model: Any, optimizer: OptimizerConfig, train: TrainConfig, family: str = "gpt2", **size: int) -> Recipe:
    """Return the recipe for a model, whose vocabulary is the characters of the text."""
    return Recipe(
        model=model,
        family=family,
        data=PlainText(),
        examples=TextWindows(vocabulary=VocabularyConfig(unit="character"), **size),
        objective=TokenLoss(),
        evaluators=(Continuations(), TextLoss()),
        optimizer=optimizer,
        train=train,
    )


def adamw(rate: float) -> OptimizerConfig:
    """Return the optimizer of nanoGPT's configurations."""
    return OptimizerConfig(
        name="adamw", learning_rate=rate, schedule=ScheduleConfig(name="cosine", warmup=100, final=0.1), b1=0.9,
        b2=0.99, eps=1e-8, weight_decay=0.1, clip_norm=1.0,
    )  # fmt: skip


EXPERIMENTS = {
    "tiny": experiment(
        gpt2_tiny(),
        adamw(4e-3),
        TrainConfig(steps=2_000, log_every=100, eval_every=500, checkpoint_every=500),
        rows=12,
        length=64,
    ),
    "mini": experiment(
        gpt2_mini(precision=Precision(compute="bfloat16")),
        adamw(1e-3),
        TrainConfig(steps=5_000, log_every=100, eval_every=250, checkpoint_every=250, keep_best=True),
        rows=64,
        length=256,
    ),
    "long": experiment(
        llama_tiny(),
        muon_cosine(5e-3),
        TrainConfig(steps=800, log_every=50, eval_every=200, checkpoint_every=200),
        family="llama",
        rows=2,
        length=2048,
    ),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
