"""Actions by the return that is asked for: a run on episodes of a file, resumed exactly, and how a model plays."""

import json
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.trajectory import DecisionData, EpisodeWindows, StepRows, read_episodes
from flax_transformer.models.multimodal.decision_transformer import (
    DecisionTransformer,
    TrajectoryPrediction,
    decision_transformer,
)
from flax_transformer.nn import with_fields
from flax_transformer.objective import ActionLoss, SquaredActionLoss
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


@pytest.mark.rotates
@pytest.mark.parametrize("sample", [False, True])
def test_a_model_plays_by_the_return_it_is_asked_for(sample):
    pytest.importorskip("gymnasium")
    rows = StepRows(length=5, kinds=2, mean=(0.0,) * 4, std=(1.0,) * 4, scale=500.0)
    key = jax.random.key(0) if sample else None
    good, bad = (play(Balancer(), rows, "CartPole-v1", asked, 3, key=key) for asked in (800.0, 40.0))
    assert (good == 500).all()
    assert (bad < 30).all()


@jax.tree_util.register_static
@dataclass(frozen=True)
class Twister:
    """A model that says the same number whatever it sees."""

    torque: float

    def hidden_states(self, *, states, actions, returns, times):
        return states

    def output(self, hidden):
        return TrajectoryPrediction(jnp.full((*hidden.shape[:-1], 1), self.torque), None, None)


@pytest.mark.parametrize(("said", "done"), [(0.5, 1.0), (-3.0, -2.0)])
def test_numbers_are_told_to_the_environment_in_its_scale_and_within_its_limits(said, done):
    gymnasium = pytest.importorskip("gymnasium")
    rows = StepRows(length=5, kinds=1, mean=(0.0,) * 3, std=(1.0,) * 3, scale=300.0, action_scale=(2.0,))
    expected = []
    for seed in range(2):
        made = gymnasium.make("Pendulum-v1")
        made.reset(seed=90_001 + seed)
        expected.append(sum(made.step(np.array([done], np.float32))[1] for _ in range(200)))
    np.testing.assert_allclose(play(Twister(said), rows, "Pendulum-v1", 0.0, 2), expected, rtol=1e-6)


def test_numbers_are_inputs_and_labels_in_one_scale(tmp_path):
    random = np.random.default_rng(0)
    actions = random.normal(size=(6, 2)).astype(np.float32)
    np.savez(tmp_path / "some.npz", obs=random.normal(size=(6, 3)), actions=actions, rewards=np.ones(6),
             episode_starts=[1, 0, 0, 0, 1, 0])  # fmt: skip
    windows = EpisodeWindows(read_episodes(tmp_path), 3)
    rows = StepRows(length=3, kinds=2, mean=(0.0,) * 3, std=(1.0,) * 3, action_scale=(2.0, 4.0))
    batch = rows([windows[1], windows[5], None])
    np.testing.assert_allclose(batch["labels"][0], actions[1:4] / [2, 4], rtol=1e-6)
    np.testing.assert_array_equal(batch["labels"], batch["inputs"]["actions"])
    assert (batch["labels"][1, 1:] == 0).all()
    assert batch["weights"].sum(1).tolist() == [3, 1, 0]


@pytest.mark.rotates
def test_a_loss_is_of_kinds_or_of_numbers():
    model = DecisionTransformer(with_fields(decision_transformer(3, 2), embed=8, inner=8, depth=1), rngs=nnx.Rngs(0))
    batch = jax.tree.map(jnp.asarray, DecisionTransformer.example_batch(model.cfg, 2, 4))
    said = model.output(model.hidden_states(**batch["inputs"])).actions
    numbers = {**batch, "labels": said + 0.5, "weights": jnp.ones((2, 4))}
    np.testing.assert_allclose(SquaredActionLoss()(model, numbers)[0], 8 * 0.25, rtol=1e-5)
    with pytest.raises(ValueError, match="must be numbers, got kinds, of which ActionLoss"):
        SquaredActionLoss()(model, batch)
    with pytest.raises(ValueError, match="must be of a few kinds, got numbers, of which SquaredActionLoss"):
        ActionLoss()(model, numbers)


@pytest.mark.slow
def test_torque_is_learned_and_exported_with_its_scale(tmp_path):
    random = np.random.default_rng(0)
    states = random.normal(size=(400, 3)).astype(np.float32)
    np.savez(tmp_path / "some.npz", obs=states, actions=3 * np.tanh(states[:, :1]), rewards=np.ones(400),
             episode_starts=np.arange(400) % 8 == 0)  # fmt: skip
    recipe = replace(short(tmp_path / "some.npz", 60), objective=SquaredActionLoss())
    train(replace(recipe, model=replace(recipe.model, tanh=True)), tmp_path / "run")
    losses = [each["loss"] for each in records(tmp_path / "run") if each["split"] == "validation"]
    assert losses[-1] < 0.05 < np.var(np.tanh(states[:, 0]))
    exported = hub.load(tmp_path / "run/export")
    assert exported.config["action_tanh"]
    assert 2.5 < exported.config["action_scale"][0] <= 3
