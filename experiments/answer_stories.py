"""Answer questions about stories: the tasks of bAbI, all learned together.

python experiments/answer_stories.py universal --workdir runs/stories --data.root BABI/en-10k.tar.gz
"""

from typing import Any

from flax_transformer.data.text.story import StoryTasks
from flax_transformer.models.head import with_head
from flax_transformer.models.text.story import StoryConfig
from flax_transformer.nn import EmbeddingConfig, HaltingConfig, TrunkConfig, UniversalConfig, transformer_block
from flax_transformer.objective import LabelLoss, PonderLoss
from flax_transformer.task.evaluator import TaskErrors
from flax_transformer.task.example import StoryQuestions
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.optimizer import OptimizerConfig
from flax_transformer.train.schedule import ScheduleConfig


def experiment(
    kind: type[TrunkConfig], depth: int, embed: int, inner: int, objective: Any = LabelLoss(), **trunk: Any
) -> Recipe:
    """Give the recipe for a trunk, whose words and answers are those of the data."""
    block = transformer_block(embed=embed, heads=4, inner=inner, dropout=0.1)
    reader = StoryConfig(
        embedding=EmbeddingConfig(vocab=1, embed=embed, position="none", dropout=0.1),
        trunk=kind(block=block, depth=depth, **trunk),
        position="sinusoidal" if kind is TrunkConfig else "none",
    )
    return Recipe(
        model=with_head(reader, outputs=2, pool="first"),
        data=StoryTasks(),
        examples=StoryQuestions(),
        objective=objective,
        evaluators=(TaskErrors(),),
        optimizer=OptimizerConfig(
            learning_rate=1e-3, schedule=ScheduleConfig(name="cosine", warmup=500), clip_norm=1.0
        ),
        train=TrainConfig(steps=18_000, log_every=200, eval_every=3_000, checkpoint_every=1_000),
    )


EXPERIMENTS = {
    "transformer": experiment(TrunkConfig, 4, 48, 216),
    "universal": experiment(UniversalConfig, 5, 96, 384),
    "adaptive": experiment(UniversalConfig, 6, 96, 384, PonderLoss(of=LabelLoss()), halting=HaltingConfig()),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
