"""Schedules of noise, what is predicted of noisy images, and draws that know no batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.diffusion import (
    NoiseSchedule,
    add_noise,
    guide,
    noise_target,
    normal_of_rows,
    split_noise,
    time_waves,
)
from flax_transformer.ops.row_random import keys_of_rows

pytestmark = pytest.mark.proves("dit", "train", "schedules, targets and draws by their formulas")
X, NOISE = map(jnp.asarray, np.random.default_rng(0).normal(size=(2, 3, 4, 4, 2)).astype(np.float32))


def test_signal_is_the_product_of_what_every_time_leaves():
    linear = NoiseSchedule(steps=50, first=0.01, last=0.2).signal()
    left, wanted = 1.0, []
    for t in range(50):
        left *= 1 - (0.01 + (0.2 - 0.01) * t / 49)
        wanted.append(left)
    np.testing.assert_allclose(linear, wanted, rtol=1e-12)
    cosine = NoiseSchedule(kind="cosine", steps=100).signal()

    def level(t):
        return np.cos((t / 100 + 0.008) / 1.008 * np.pi / 2) ** 2

    np.testing.assert_allclose(cosine[:90], [level(t + 1) / level(0) for t in range(90)], rtol=1e-6)
    assert cosine[-1] > 0


@pytest.mark.parametrize("predicts", ["epsilon", "v_prediction", "sample"])
def test_the_right_prediction_gives_back_image_and_noise(predicts):
    for signal in (0.9, 0.5, 0.01):
        each = jnp.full(3, signal)
        noisy = add_noise(X, NOISE, each)
        np.testing.assert_allclose(noisy, np.sqrt(signal) * X + np.sqrt(1 - signal) * NOISE, atol=1e-6)
        target = noise_target(predicts, X, NOISE, each)
        sample, noise = split_noise(predicts, target, noisy, jnp.float32(signal))
        np.testing.assert_allclose(sample, X, atol=2e-5)
        np.testing.assert_allclose(noise, NOISE, atol=2e-5)


def test_velocity_is_the_derivative_along_the_circle():
    """v = dx/dφ of x = cos φ x₀ + sin φ ε (Salimans & Ho 2022, appendix D)."""
    angle = 0.7
    _, slope = jax.jvp(lambda a: jnp.cos(a) * X + jnp.sin(a) * NOISE, (angle,), (1.0,))
    found = noise_target("v_prediction", X, NOISE, jnp.full(3, np.cos(angle) ** 2))
    np.testing.assert_allclose(found, slope, atol=1e-5)


def test_guidance_is_the_linear_combination():
    for scale in (0.0, 1.0, 3.5):
        np.testing.assert_allclose(guide(X, NOISE, scale), scale * X + (1 - scale) * NOISE, atol=1e-5)


def test_times_are_waves_of_falling_frequency():
    found = time_waves(jnp.array([0.0, 37.5]), 8)
    frequencies = 10_000 ** -(np.arange(4) / 3)
    np.testing.assert_allclose(found[1], [*np.cos(37.5 * frequencies), *np.sin(37.5 * frequencies)], atol=1e-5)
    with pytest.raises(ValueError, match="even width of at least 4, got 7"):
        time_waves(jnp.zeros(1), 7)


def test_a_row_draws_the_same_in_any_batch():
    key = jax.random.key(3)
    whole = normal_of_rows(key, jnp.arange(6), (2, 5))
    np.testing.assert_array_equal(normal_of_rows(key, jnp.array([4, 1]), (2, 5)), whole[jnp.array([4, 1])])
    assert np.unique(np.asarray(whole)).size == whole.size
    assert abs(np.asarray(normal_of_rows(key, jnp.arange(50), (100,))).std() - 1) < 0.05


def test_rows_that_differ_anywhere_draw_otherwise():
    changed = np.array(X)
    changed[1, 3, 3, 1] += 1e-6
    same = np.asarray(
        jax.random.key_data(keys_of_rows(X)) == jax.random.key_data(keys_of_rows(jnp.asarray(changed)))
    ).all(axis=1)
    assert same.tolist() == [True, False, True]
    swapped = X.reshape(3, -1)[:, ::-1].reshape(X.shape)
    assert not (jax.random.key_data(keys_of_rows(X)) == jax.random.key_data(keys_of_rows(swapped))).all(axis=1).any()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"first": 0.5, "last": 0.1}, r"0 < first <= last < 1, got 0\.5 and 0\.1"),
    ],
)
def test_bad_schedules_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        NoiseSchedule(**options)
