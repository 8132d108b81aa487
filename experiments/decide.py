r"""Choose actions by the return that is asked for: a Decision Transformer, learned from episodes good and bad.

    pip install gymnasium
    python experiments/decide.py                                # a pole on a cart, played by players of every skill
    python experiments/decide.py cloning --workdir runs/cloning
    python experiments/decide.py transformer --workdir runs/expert --data.root EPISODES.npz
    python experiments/decide.py torque --workdir runs/torque --data.root PENDULUM.npz

The first word is `transformer`, which is given the return to go, or `cloning`, the same model that is not, and does as
those did whom it learned from; or `torque`, whose actions are numbers, to swing a pendulum up. A file of arrays has
`obs` [N, S], `actions` [N] of kinds or [N, A] of numbers, `rewards` [N] and `episode_starts` [N]. The finished model
plays CartPole and is asked for returns of 500, 200 and 50 (--evaluators.0.asked), or Pendulum, for 0, −150 and −300.

Learned from 360 episodes whose mean return is 240.9, 2,000 steps, it got 500.0 ± 0.0 where 500 was asked for, 224.0 ±
22.5 of 200 and 53.6 ± 19.1 of 50 (20 episodes each, one seed, 10 minutes of two cores that were busy with other work,
2026-11-23); `cloning` got 427.3 ± 173.1, whatever is asked for. Drawn at temperature 1, actions of the first got 440.9
± 120.4, 170.2 ± 58.3 and 45.9 ± 20.3.

`torque`, learned from 90 episodes of one expert whose mean return is −152.3, got −136.9 ± 7.3 in Pendulum-v1 where −150
was asked for, −138.6 ± 7.8 of −300 and −163.7 ± 32.0 of 0 (means of 20 episodes, three seeds, 243 CPU seconds each on
one core of an AMD EPYC, 2026-11-30): asking steers little where one player played all. Of one seed the deviation of the
20 returns is 58 to 173.
"""

from dataclasses import replace

from flax_transformer.data.trajectory import DecisionData
from flax_transformer.models.multimodal.decision_transformer import DecisionConfig
from flax_transformer.nn import transformer_block
from flax_transformer.objective import ActionLoss, SquaredActionLoss
from flax_transformer.task.experiment import launch
from flax_transformer.task.recipe import Recipe
from flax_transformer.task.reinforcement_learning import Rollouts, TrajectoryParts
from flax_transformer.train import OptimizerConfig, ScheduleConfig, TrainConfig

MODEL = DecisionConfig(
    block=transformer_block(
        embed=64, heads=2, inner=256, norm_position="pre", activation="relu", dropout=0.1, init_std=0.02
    ),
    depth=3, states=4, actions=2, tanh=False, positions=1, dropout=0.1, unroll=True,
)  # fmt: skip


def experiment(examples: TrajectoryParts) -> Recipe:
    """Return a recipe, whose sizes of states and actions are those of the data."""
    return Recipe(
        model=MODEL,
        family="decision_transformer",
        data=DecisionData(),
        examples=examples,
        objective=ActionLoss(),
        evaluators=(Rollouts(),),
        optimizer=OptimizerConfig(
            name="adamw", learning_rate=1e-3, schedule=ScheduleConfig(name="cosine", warmup=100), weight_decay=1e-4,
            clip_norm=0.25,
        ),
        train=TrainConfig(steps=2_000, log_every=200, eval_every=500, checkpoint_every=1_000),
    )  # fmt: skip


def with_numbers(recipe: Recipe) -> Recipe:
    """Return a recipe for actions that are numbers, told in Pendulum-v1."""
    return replace(
        recipe,
        model=replace(recipe.model, tanh=True),
        objective=SquaredActionLoss(),
        evaluators=(Rollouts(environment="Pendulum-v1", asked=(0.0, -150.0, -300.0)),),
    )


EXPERIMENTS = {
    "transformer": experiment(TrajectoryParts()),
    "cloning": experiment(TrajectoryParts(condition=False)),
    "torque": with_numbers(experiment(TrajectoryParts())),
}

if __name__ == "__main__":
    launch(EXPERIMENTS)
