"""Actions by the return that is asked for: a run on episodes of a file, resumed exactly, and how a model plays."""

import json
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.trajectory import DecisionData, StepRows
from flax_transformer.models.multimodal.decision_transformer import TrajectoryPrediction
from flax_transformer.nn import with_fields
from flax_transformer.task.experiment import train
from flax_transformer.task.reinforcement_learning import play
from flax_transformer.train.loop import TrainConfig
from flax_transformer.train.schedule import ScheduleConfig
from tests.task.test_classify_images import experiments


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """Steps whose action is what the return still to come says."""
    random, count = np.random.default_rng(0), 400
    starts = np.arange(count) % 8 == 0
    good = np.repeat(random.random(count // 8) < 0.5, 8)
    path = tmp_path_factory.mktemp("data") / "some.npz"
    states = random.normal(size=(count, 3)).astype(np.float32)
    np.savez(path, obs=states, actions=good.astype(int), rewards=good * 1.0, episode_starts=starts)
    return path


def short(episodes, steps, **changes):
    recipe = experiments("decide")["transformer"]
    return replace(
        recipe,
        model=with_fields(recipe.model, embed=16, inner=16, depth=1),
        data=DecisionData(root=str(episodes)),
        examples=replace(recipe.examples, rows=16, length=4, **changes),
        evaluators=(),
        optimizer=replace(recipe.optimizer, learning_rate=1e-2, schedule=ScheduleConfig(name="constant")),
        train=TrainConfig(steps=steps, log_every=1, eval_every=10, checkpoint_every=10),
    )


def records(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


@pytest.mark.proves("decision_transformer", "train", "[`decide`](../experiments/decide.py), resumed bit for bit")
@pytest.mark.slow
def test_actions_are_learned_by_the_return_and_not_without(episodes, tmp_path):
    train(short(episodes, 40), tmp_path / "whole")
    train(short(episodes, 20), tmp_path / "parts")
    train(short(episodes, 40), tmp_path / "parts")
    whole, parts = records(tmp_path / "whole"), records(tmp_path / "parts")
    assert [each for each in whole if each["step"] > 20] == [each for each in parts if each["step"] > 20]
    assert [each["accuracy"] for each in whole if each["split"] == "validation"][-1] > 0.95
    exported = hub.load(tmp_path / "whole/export")
    assert exported.config["architectures"] == ["DecisionTransformerModel"]
    assert (exported.config["state_dim"], exported.config["act_dim"], exported.config["return_scale"]) == (3, 2, 8.0)


@pytest.mark.slow
def test_cloning_is_not_told_the_return(episodes, tmp_path):
    train(short(episodes, 40, condition=False), tmp_path)
    assert [each["accuracy"] for each in records(tmp_path) if each["split"] == "validation"][-1] < 0.95


@jax.tree_util.register_static
@dataclass(frozen=True)
class Balancer:
    """A model that pushes where the pole leans, or where it does not, as the return says."""

    def hidden_states(self, *, states, actions, returns, times):
        return states, returns

    def output(self, hidden):
        states, returns = hidden
        lean = states @ jnp.array([0.02, 0.05, 1.0, 0.25])
        right = jnp.where(returns[..., 0] > 0.1, lean, -lean)
        return TrajectoryPrediction(jnp.stack([-right, right], -1) * 1e3, None, None)


@pytest.mark.parametrize("sample", [False, True])
def test_a_model_plays_by_the_return_it_is_asked_for(sample):
    pytest.importorskip("gymnasium")
    rows = StepRows(length=5, kinds=2, mean=(0.0,) * 4, std=(1.0,) * 4, scale=500.0)
    key = jax.random.key(0) if sample else None
    good, bad = (play(Balancer(), rows, "CartPole-v1", asked, 3, key=key) for asked in (800.0, 40.0))
    assert (good == 500).all()
    assert (bad < 30).all()
