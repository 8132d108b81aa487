"""Samplers: exact where they can be, one loop, rows that know no batch, guidance, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.decode import DDIM, DDPM, Euler, Heun, denoise, guided
from flax_transformer.ops.diffusion import NoiseSchedule, noise_target, normal_of_rows

pytestmark = pytest.mark.proves("dit", "decode", "samplers exact where they can be, one loop, rows")
KEY = jax.random.key(0)
DATA = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (4, 3, 3, 1)).astype(np.float32))
NOISE = normal_of_rows(KEY, jnp.arange(4), (3, 3, 1))
SCHEDULE = NoiseSchedule(steps=40)
SAMPLERS = [
    DDIM(steps=8, schedule=SCHEDULE), DDIM(steps=8, schedule=SCHEDULE, eta=0.5, predicts="v_prediction"),
    DDPM(steps=8, schedule=SCHEDULE, predicts="sample", clip=1.0), Euler(steps=5), Heun(steps=3),
]  # fmt: skip


def oracle(x, times):
    """Return the velocity of the straight path from x to the data."""
    return (x - DATA) / (times / 1000).reshape(-1, 1, 1, 1)


def soft(x, times):
    """Predict something smooth of each row alone."""
    return jnp.tanh(x) * (1 + times.reshape(-1, 1, 1, 1) / 1000)


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_euler_follows_straight_paths_to_the_data(steps):
    np.testing.assert_allclose(denoise(oracle, NOISE, Euler(steps=steps)), DATA, atol=1e-5)


def test_heun_is_exact_where_velocity_grows_with_time_and_euler_is_not():
    def field(x, times):  # x' = 2 t, so that x(0) = x(1) - 1
        return jnp.ones_like(x) * (2 * times / 1000).reshape(-1, 1, 1, 1)

    np.testing.assert_allclose(denoise(field, NOISE, Heun(steps=2)), NOISE - 1, atol=1e-5)
    np.testing.assert_allclose(denoise(field, NOISE, Euler(steps=2)), NOISE - 1.5, atol=1e-5)


@pytest.mark.parametrize("predicts", ["epsilon", "v_prediction", "sample"])
def test_ddim_that_knows_the_noise_gives_the_data(predicts):
    sampler = DDIM(steps=5, schedule=SCHEDULE, predicts=predicts)
    signal = jnp.asarray(SCHEDULE.signal(), jnp.float32)
    begin = jnp.sqrt(signal[-1]) * DATA + jnp.sqrt(1 - signal[-1]) * NOISE

    def known(x, times):
        return noise_target(predicts, DATA, NOISE, signal[times.astype(int)])

    np.testing.assert_allclose(denoise(known, begin, sampler), DATA, atol=1e-4)


def test_ddpm_that_knows_the_data_keeps_to_the_process():
    """From x at one time, of known data, a step gives x at the next: N(√ᾱ x₀, 1 − ᾱ)."""
    sampler = DDPM(steps=4, schedule=SCHEDULE, predicts="sample")
    at = {name: jnp.float32(values[1]) for name, values in sampler.grid().items()}
    one, two = (normal_of_rows(jax.random.key(seed), jnp.arange(4000), (1,)) for seed in (1, 2))
    x = jnp.sqrt(at["signal"]) * 0.7 + jnp.sqrt(1 - at["signal"]) * one
    found = sampler.step(lambda x, times: jnp.full_like(x, 0.7), x, at, two)
    np.testing.assert_allclose(found.mean(), np.sqrt(at["next"]) * 0.7, atol=0.05)
    np.testing.assert_allclose(found.var(), 1 - at["next"], rtol=0.07)


@pytest.mark.rotates
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_the_loop_is_its_steps_one_by_one(sampler):
    x = NOISE
    for number in range(sampler.steps):
        at = {name: jnp.float32(values[number]) for name, values in sampler.grid().items()}
        noise = normal_of_rows(jax.random.fold_in(KEY, number), jnp.arange(4), x.shape[1:])
        x = sampler.step(soft, x, at, noise)
    np.testing.assert_allclose(denoise(soft, NOISE, sampler, key=KEY), x, atol=1e-5)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_a_row_is_the_same_in_any_batch(sampler):
    whole = denoise(soft, NOISE, sampler, key=KEY)
    some = jnp.array([3, 1])
    np.testing.assert_allclose(denoise(soft, NOISE[some], sampler, key=KEY, rows=some), whole[some], atol=1e-6)


def test_guidance_combines_the_predictions_of_class_and_null():
    seen = []

    def predict(x, times, labels):
        seen.append(labels.shape)
        return x * labels.reshape(-1, 1, 1, 1)

    labels = jnp.array([1, 2, 3, 4])
    one, none = (guided(predict, labels, 9, scale)(NOISE, jnp.ones(4)) for scale in (1.0, 0.0))
    np.testing.assert_allclose(one, NOISE * labels.reshape(-1, 1, 1, 1))
    np.testing.assert_allclose(none, 9 * NOISE, atol=1e-5)
    np.testing.assert_allclose(guided(predict, labels, 9, 3.0)(NOISE, jnp.ones(4)), 3 * one - 2 * none, atol=1e-4)
    assert seen == [(4,), (8,), (8,)]


@pytest.mark.parametrize("sampler", [Euler(steps=4), DDIM(steps=4, schedule=SCHEDULE)], ids=["Euler", "DDIM"])
def test_gradients_go_through_the_loop(sampler):
    def loss(scale):
        return jnp.sum(denoise(lambda x, times: scale * soft(x, times), NOISE, sampler) ** 2)

    slope, step = jax.grad(loss)(0.5), 1e-2
    np.testing.assert_allclose(slope, (loss(0.5 + step) - loss(0.5 - step)) / (2 * step), rtol=1e-2)


def test_times_end_where_nothing_is_left_of_the_noise():
    grid = DDIM(steps=4, schedule=SCHEDULE).grid()
    assert grid["time"].tolist() == [39, 29, 19, 9]
    assert grid["next"][-1] == 1
    assert DDIM(steps=40, schedule=SCHEDULE).grid()["time"].tolist() == [*range(39, -1, -1)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Euler(steps=0), "steps must be at least 1, got 0"),
        (lambda: DDIM(steps=41, schedule=SCHEDULE), "at most those of training, 40, got 41"),
        (lambda: DDIM(eta=2.0), r"eta must be in \[0, 1\], got 2"),
        (lambda: denoise(soft, NOISE, DDPM(steps=2)), "DDPM draws noise at every step, which takes a key, got none"),
        (lambda: denoise(soft, NOISE, DDIM(steps=2, eta=1.0)), "takes a key"),
    ],
)
def test_bad_options_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
