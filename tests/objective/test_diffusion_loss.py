"""Objectives of diffusion: their formulas, the classes that are dropped, and what they are sampled by."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from flax_transformer.decode import DDIM, Euler
from flax_transformer.objective import DenoisingLoss, FlowMatchingLoss
from flax_transformer.ops.diffusion import NoiseSchedule

pytestmark = pytest.mark.proves("dit", "train", "objectives by their formulas")
IMAGES, NOISE = np.random.default_rng(0).normal(size=(2, 6, 4, 4, 1)).astype(np.float32)
WEIGHTS = np.array([1, 0, 1, 0.5, 1, 1], np.float32)


class Recorder:
    """A model that predicts half of what it sees, and keeps what it was given."""

    cfg = SimpleNamespace(classes=3, null=3)

    def __call__(self, images, times, classes, *, key=None):
        self.images, self.times, self.classes = images, times, classes
        return images / 2


def batch(rows=IMAGES):
    labels = np.arange(len(rows), dtype=np.int32) % 3
    return {"inputs": {"images": rows}, "labels": labels, "weights": WEIGHTS[: len(rows)]}


def test_flow_goes_straight_from_data_to_noise():
    uniform = np.linspace(0.05, 0.95, 6).astype(np.float32)
    images, times, target = FlowMatchingLoss(times="uniform").noised(*map(jnp.asarray, (IMAGES, uniform, NOISE)))
    t = uniform[:, None, None, None]
    np.testing.assert_allclose(images, (1 - t) * IMAGES + t * NOISE, atol=1e-6)
    np.testing.assert_allclose(target, NOISE - IMAGES, atol=1e-6)
    np.testing.assert_allclose(times, 1000 * uniform, rtol=1e-6)
    middle = FlowMatchingLoss().noised(*map(jnp.asarray, (IMAGES, uniform, NOISE))).times / 1000
    np.testing.assert_allclose(middle, 1 / (1 + np.exp(-norm.ppf(uniform))), rtol=1e-4)


def test_denoising_adds_noise_by_the_schedule():
    schedule = NoiseSchedule(steps=10)
    uniform = np.array([0, 0.099, 0.1, 0.55, 0.999, 1], np.float32)
    images, times, target = DenoisingLoss(schedule=schedule).noised(*map(jnp.asarray, (IMAGES, uniform, NOISE)))
    assert times.tolist() == [0, 0, 1, 5, 9, 9]
    signal = schedule.signal()[np.asarray(times, int)][:, None, None, None]
    np.testing.assert_allclose(images, np.sqrt(signal) * IMAGES + np.sqrt(1 - signal) * NOISE, atol=1e-5)
    np.testing.assert_array_equal(target, NOISE)


@pytest.mark.parametrize("objective", [DenoisingLoss(), FlowMatchingLoss()], ids=["denoising", "flow"])
@pytest.mark.parametrize("key", [None, jax.random.key(0)], ids=["held out", "training"])
def test_the_loss_is_the_weighted_mean_square(objective, key):
    model = Recorder()
    loss, metrics = objective(model, batch(), key=key)
    if isinstance(objective, FlowMatchingLoss):
        t = (np.asarray(model.times) / 1000)[:, None, None, None]
        noise = (np.asarray(model.images) - (1 - t) * IMAGES) / t
        target = noise - IMAGES
    else:
        signal = objective.schedule.signal()[np.asarray(model.times, int)][:, None, None, None]
        target = (np.asarray(model.images) - np.sqrt(signal) * IMAGES) / np.sqrt(1 - signal)
    error = np.mean((np.asarray(model.images) / 2 - target) ** 2, axis=(1, 2, 3))
    np.testing.assert_allclose(loss, np.sum(error * WEIGHTS), rtol=1e-3)
    assert metrics["count"] == WEIGHTS.sum()
    if key is None:
        assert model.classes.tolist() == batch()["labels"].tolist()


@pytest.mark.rotates
def test_a_held_out_image_has_the_same_loss_beside_any_others():
    whole = FlowMatchingLoss()(Recorder(), {**batch(IMAGES[:3]), "weights": np.ones(3, np.float32)})[0]
    single = [
        FlowMatchingLoss()(Recorder(), {**batch(IMAGES[i : i + 1]), "weights": np.ones(1, np.float32)})[0]
        for i in range(3)
    ]
    np.testing.assert_allclose(sum(single), whole, rtol=1e-5)


def test_classes_are_dropped_as_often_as_is_said():
    model, many = Recorder(), np.zeros((4000, 1, 1, 1), np.float32)
    rows = {"inputs": {"images": many}, "labels": np.ones(4000, np.int32), "weights": np.ones(4000, np.float32)}
    FlowMatchingLoss(label_dropout=0.3)(model, rows, key=jax.random.key(1))
    assert set(np.unique(model.classes)) == {1, 3}
    assert abs(float(jnp.mean(model.classes == 3)) - 0.3) < 0.03
    FlowMatchingLoss(label_dropout=0.0)(model, rows, key=jax.random.key(1))
    assert set(np.unique(model.classes)) == {1}


def test_an_objective_says_what_its_models_are_sampled_by():
    schedule = NoiseSchedule(kind="cosine")
    made = DenoisingLoss(schedule=schedule, predicts="v_prediction", clip=None).sampler(7)
    assert made == DDIM(steps=7, schedule=schedule, predicts="v_prediction", clip=None)
    assert FlowMatchingLoss().sampler(3) == Euler(steps=3)


def test_a_variance_beside_is_left_alone():
    model, key = Recorder(), jax.random.key(0)
    alone = FlowMatchingLoss()(model, batch(), key=key)[0]

    class Both(Recorder):
        def __call__(self, images, times, classes, *, key=None):
            return jnp.concatenate([images / 2, jnp.full_like(images, 99)], axis=-1)

    np.testing.assert_allclose(FlowMatchingLoss()(Both(), batch(), key=key)[0], alone)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"label_dropout must be in \[0, 1\), got 1"):
        FlowMatchingLoss(label_dropout=1.0)
