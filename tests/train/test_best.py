"""Runs that end with their best parameters: early or not, in one part or two."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.loop import Evaluation, Reporting, TrainConfig, fit
from flax_transformer.train.metrics import Writers
from flax_transformer.train.state import init_state
from flax_transformer.train.step import jit_train_step, make_train_step

pytestmark = pytest.mark.slow


class Ones:
    """The same batch again and again, so that the parameter after n steps is n."""

    step = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.step += 1
        return np.ones(1, np.float32)

    def get_state(self):
        return {"step": self.step}

    def set_state(self, state):
        self.step = state["step"]


BETTER = {"loss": "lower", "perplexity": "lower", "bleu": "higher", "accuracy": "higher", "error": "lower"}


def run(folder, scores, *, metric="loss", losses=None, **options):
    """Train one step an evaluation; `scores` are what the evaluations give, and `losses` beside them."""
    config = TrainConfig(
        **{"steps": len(scores), "log_every": 100, "eval_every": 1, "checkpoint_every": 100, "keep_best": True,
           "keep": 2, "monitor": metric, **options}
    )  # fmt: skip
    objective = lambda model, batch, *, key: (-jnp.sum(model["kernel"] * batch), {"count": jnp.float32(1)})  # noqa: E731
    beside = lambda at: {} if losses is None else {"loss": losses[at - 1]}  # noqa: E731
    optimizer = optax.sgd(1.0)
    state = init_state(lambda key: {"kernel": jnp.zeros(1)}, optimizer, jax.random.key(0), ema=config.ema > 0)
    step = jit_train_step(make_train_step(objective, optimizer, ema=config.ema), state)
    with Checkpoints(folder, keep=config.keep) as checkpoints:
        final = fit(
            state, step, Ones(), config, checkpoints=checkpoints, reporting=Reporting(Writers([]), lambda count: 1.0),
            evaluation=Evaluation(lambda model, at: beside(at) | {metric: scores[at - 1]}, BETTER),
        )  # fmt: skip
        return final, checkpoints.steps()


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        ("loss", [3.0, 1.0, 2.0, 2.0, 1.5], 2),
        ("loss", [3.0, 1.0, 2.0, 2.0, 1.5, 1.0], 6),
        ("perplexity", [3.0, 4.0, 5.0, 6.0], 1),
        ("bleu", [3.0, 1.0, 4.0, 2.0, 2.0, 2.0], 3),
        ("loss", [float("nan"), 2.0, 3.0, float("nan")], 2),
        ("accuracy", [0.1, 0.2, 0.3, 0.4], 4),
        ("error", [0.4, 0.1, 0.2, 0.3], 2),
    ],
)
def test_the_final_model_is_the_best_one(tmp_path, metric, scores, best):
    final, kept = run(tmp_path, scores, metric=metric)
    assert float(final.model["kernel"][0]) == best
    assert int(final.step) == len(scores)
    assert best in kept
    assert len(kept) <= 3


def test_the_best_one_outlives_the_newest(tmp_path):
    final, kept = run(tmp_path, [3.0, 1.0, *[2.0] * 8], checkpoint_every=1)
    assert kept == [2, 9, 10]
    assert float(final.model["kernel"][0]) == 2


def test_a_run_that_goes_on_remembers_its_best(tmp_path):
    scores = [3.0, 1.0, *[2.0] * 8]
    run(tmp_path, scores, steps=5, checkpoint_every=1)
    final, kept = run(tmp_path, scores, checkpoint_every=1)
    assert (float(final.model["kernel"][0]), kept) == (2, [2, 9, 10])
    better = [*scores[:9], 0.5]
    final, kept = run(tmp_path / "other", better, steps=5, checkpoint_every=1)
    final, kept = run(tmp_path / "other", better, checkpoint_every=1)
    assert (float(final.model["kernel"][0]), kept) == (10, [9, 10])


def test_patience_ends_a_run_with_its_best_model(tmp_path, capsys):
    scores = [3.0, 1.0, *[2.0] * 8]
    for _ in range(2):  # the second time there is nothing left to do
        final, kept = run(tmp_path, scores, patience=3)
        assert (float(final.model["kernel"][0]), int(final.step), kept[-1]) == (2, 5, 5)
        said = capsys.readouterr().out
        assert "stopped at step 5: no better loss in 3 evaluations" in said
        assert "the final model is that of step 2, the best by loss" in said


def test_a_moving_average_is_brought_back_too(tmp_path):
    final, _ = run(tmp_path, [3.0, 1.0, 2.0, 2.0], ema=0.5)
    np.testing.assert_allclose(final.ema["kernel"], [0.25 * 1 + 0.75 * 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("losses", "best"),
    [([0.7, 0.6, 0.2, 0.4], 3), ([0.7, 0.3, 0.3, 0.4], 3), ([0.3, 0.9, 0.2, float("nan")], 3), ([0.1] * 4, 4)],
)
def test_of_equally_good_models_the_one_of_the_lower_loss_then_the_later_is_kept(tmp_path, losses, best):
    final, kept = run(tmp_path, [1.0] * 4, metric="accuracy", losses=losses, checkpoint_every=1)
    assert float(final.model["kernel"][0]) == best
    assert best in kept


def test_a_run_that_goes_on_remembers_the_loss_of_its_best(tmp_path):
    losses = [0.5, 0.1, 0.2, 0.3]
    run(tmp_path, [1.0] * 4, metric="accuracy", losses=losses, steps=2, checkpoint_every=1)
    final, _ = run(tmp_path, [1.0] * 4, metric="accuracy", losses=losses, checkpoint_every=1)
    assert float(final.model["kernel"][0]) == 2


def test_settings_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the best or an average, got keep_best and average=2"):
        TrainConfig(keep_best=True, average=2)
    with pytest.raises(ValueError, match="keep_best watches 'bleu', evaluation gave loss"):
        run(tmp_path, [1.0], monitor="bleu")
    with pytest.raises(ValueError, match=r"train.monitor must be one of loss, .*, got 'blue'"):
        run(tmp_path, [1.0], monitor="blue")
