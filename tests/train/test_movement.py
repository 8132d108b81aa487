"""Movement pruning: scores, zeros and what comes back as a loop over numbers has them; resumed exactly."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig, make_schedule
from flax_transformer.train.sparsity import SparsityConfig
from tests.train.language_model import language_model, zero_shares

pytestmark = pytest.mark.proves("kernels with zeros", "by movement: as a loop over numbers, resumed exactly")

RNG = np.random.default_rng(0)
INPUTS, TARGETS = RNG.normal(size=(32, 6)), RNG.normal(size=(32, 4))
KERNEL = RNG.normal(size=(6, 4))


def loop(kernel, config, steps, total, rates):
    """Do the same over NumPy arrays, in float64: Sanh et al.'s equations 1 to 3, with the loss of a linear layer."""
    weights, scores, mask = kernel.copy(), np.zeros_like(kernel), np.ones_like(kernel)
    end = 3 * total // 4 if config.end is None else config.end
    came_back = False
    for step in range(steps):
        slope = INPUTS.T @ (INPUTS @ (weights * mask) - TARGETS) / len(INPUTS)
        eta = float(rates(step))
        scores -= eta * weights * slope
        weights -= eta * slope * mask
        if config.begin <= step <= end and ((step - config.begin) % config.every == 0 or step == end):
            share = config.share * (1 - (1 - (step - config.begin) / (end - config.begin)) ** 3)
            order = np.argsort(scores, axis=None)
            new = np.ones(mask.size)
            new[order[: int(np.floor(share * mask.size + 1e-6))]] = 0
            came_back |= bool((new.reshape(mask.shape) > mask).any())
            mask = new.reshape(mask.shape)
    return weights * mask, scores, came_back


SGD = OptimizerConfig(name="sgd", momentum=0.0, learning_rate=0.2, schedule=ScheduleConfig(name="linear", warmup=3))


def trained(config, steps, total):
    optimizer = make_optimizer(replace(SGD, sparsity=config), total)
    params = {"kernel": jnp.asarray(KERNEL, jnp.float32)}
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        def loss(params):
            return ((jnp.asarray(INPUTS) @ params["kernel"] - jnp.asarray(TARGETS)) ** 2).sum() / 2 / len(INPUTS)

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params["kernel"], state


@pytest.mark.parametrize("steps", [1, 7, 21, 40])
def test_it_is_what_a_loop_over_numbers_does(steps):
    config = SparsityConfig(share=0.7, begin=2, end=30, every=3, by="movement")
    kernel, state = trained(config, steps, 40)
    expected, scores, came_back = loop(KERNEL, config, steps, 40, make_schedule(SGD.schedule, 0.2, 40))
    np.testing.assert_allclose(kernel, expected, atol=1e-5)
    np.testing.assert_allclose(state.scores["kernel"], scores, atol=1e-5)
    assert ((np.asarray(kernel) == 0) == (expected == 0)).all()
    if steps == 40:
        assert (expected == 0).sum() == int(0.7 * 24)
        assert came_back  # values return, with what they were
        smallest = np.sort(np.abs(expected[expected != 0]))[0]
        assert smallest < np.sort(np.abs(KERNEL), axis=None)[int(0.7 * 24)]  # which magnitude had not kept


@pytest.mark.rotates
def test_a_run_that_is_cut_goes_on_as_if_it_were_not(tmp_path):
    config = SparsityConfig(share=0.8, end=15, every=2, by="movement")
    whole, _ = language_model(config, 20)
    np.testing.assert_allclose(zero_shares(whole), 0.8, atol=1 / 128)
    model, state = language_model(config, 9)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(9, {"model": model, "optimizer": state}, {})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        found, _ = checkpoints.restore(jax.eval_shape(lambda: {"model": model, "optimizer": state}), 9)
    again, _ = language_model(config, 11, found["model"], found["optimizer"], begin=9)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(again), jax.tree.leaves(whole))


@pytest.mark.rotates
def test_zeros_of_before_stay_where_they_are_kept():
    before, _ = language_model(SparsityConfig(share=0.5, end=4, every=1), 6)
    after, _ = language_model(SparsityConfig(share=0.7, end=15, every=2, by="movement", keep=True), 20, before)
    np.testing.assert_allclose(zero_shares(after), 0.7, atol=1 / 128)
    gone, left = (np.asarray(each.trunk.blocks.feedforward.up.kernel[...]) == 0 for each in (before, after))
    assert left[gone].all()


@pytest.mark.rotates
def test_a_pattern_by_movement():
    model, _ = language_model(SparsityConfig(block=(2, 4), every=1, by="movement"), 20)
    up = np.asarray(model.trunk.blocks.feedforward.up.kernel[...]).reshape(2, 2, 4, 16)
    assert ((up != 0).sum(2) == 2).all()


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="by movement is a share or a pattern N:M, got neither"):
        SparsityConfig(by="movement")
