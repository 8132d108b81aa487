"""Losses of pairs: worked out by hand, without absent pairs, of the whole batch on any mesh."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fake_devices import on_eight
from flax import nnx

from flax_transformer.models.multimodal.towers import Embedded, Matcher, unit
from flax_transformer.objective import ContrastiveLoss, SigmoidLoss, check_parts
from flax_transformer.train.finetune import freeze
from flax_transformer.train.state import new_state
from flax_transformer.train.step import make_train_step


class Given(Matcher):
    """A model whose inputs are its vectors."""

    def __init__(self, scale, bias=None):
        self.log_scale = jnp.log(jnp.float32(scale))
        if bias is not None:
            self.bias = jnp.float32(bias)

    def hidden_states(self, *, first, second, key=None):
        return Embedded(unit(first), unit(second))


def pairs(count=5, seed=0):
    first, second = np.random.default_rng(seed).normal(size=(2, count, 4)).astype(np.float32)
    return {"first": first, "second": second + first}


def scored(model, inputs):
    first, second = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in inputs.values())
    return np.exp(float(model.log_scale)) * first @ second.T


def test_the_contrastive_loss_is_the_mean_of_both_ways():
    model, inputs = Given(7.0), pairs()
    total, metrics = ContrastiveLoss()(model, {"inputs": inputs})
    scores = scored(model, inputs)
    ways = [np.log(np.exp(each).sum(1)) - np.diag(each) for each in (scores, scores.T)]
    np.testing.assert_allclose(total, np.mean(ways, axis=0).sum(), rtol=1e-5)
    assert metrics["count"] == 5
    assert metrics["first_accuracy"] == (scores.argmax(1) == np.arange(5)).sum()
    assert metrics["second_accuracy"] == (scores.argmax(0) == np.arange(5)).sum()


def test_the_sigmoid_loss_is_of_every_half_with_every_other():
    model, inputs = Given(7.0, -2.0), pairs()
    total, metrics = SigmoidLoss()(model, {"inputs": inputs})
    logits = scored(model, inputs) - 2
    belong = np.eye(5, dtype=bool)
    chances = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(total, -np.log(np.where(belong, chances, 1 - chances)).sum(), rtol=1e-5)
    assert metrics["count"] == 5


@pytest.mark.rotates
@pytest.mark.parametrize("objective", [ContrastiveLoss(), SigmoidLoss()])
def test_an_absent_pair_is_nobodys_half(objective):
    model, inputs = Given(7.0, -2.0), pairs()
    weights = np.array([1, 0, 1, 1, 0], np.float32)
    there = {name: x[weights > 0] for name, x in inputs.items()}
    expected = jax.value_and_grad(objective, has_aux=True)(model, {"inputs": there})
    found = jax.value_and_grad(objective, has_aux=True)(model, {"inputs": inputs, "weights": weights})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


def test_the_scale_is_limited_in_the_contrastive_loss():
    free, limited = (ContrastiveLoss(limit=limit)(Given(50.0), {"inputs": pairs()})[0] for limit in (1e6, 3.0))
    assert not np.allclose(free, limited)
    np.testing.assert_allclose(limited, ContrastiveLoss()(Given(3.0), {"inputs": pairs()})[0], rtol=1e-5)
    with pytest.raises(ValueError, match=r"limit must be positive, got 0\.0"):
        ContrastiveLoss(limit=0.0)


@pytest.mark.parametrize("objective", [ContrastiveLoss(), SigmoidLoss()])
def test_a_batch_is_not_cut(objective):
    with pytest.raises(ValueError, match="compares the rows of a batch, which must stay whole, got parts=2"):
        check_parts(objective, 2, "parts")


@pytest.mark.rotates
@pytest.mark.proves("contrastive, sigmoid and matching losses", "shard", "loss and gradients, eight devices as one")
@pytest.mark.proves("retrieval", "shard", "hard negatives, eight devices as one")
def test_eight_devices_compare_all_pairs():
    for name, errors in on_eight(Path(__file__).parent / "eight_contrasts.py")[0].items():
        assert max(errors.values()) <= 1e-5, (name, errors)


@pytest.mark.parametrize("objective", [ContrastiveLoss(), SigmoidLoss()])
def test_a_tie_with_another_half_is_not_found(objective):
    """A model that gives one vector to all finds nothing, nor does one of vectors that are no numbers."""
    for value in (1.0, np.nan):
        inputs = {name: np.full((5, 4), value, np.float32) for name in ("first", "second")}
        _, metrics = objective(Given(7.0, -2.0), {"inputs": inputs})
        assert metrics["first_accuracy"] == metrics["second_accuracy"] == 0


@pytest.mark.parametrize("objective", [ContrastiveLoss(), SigmoidLoss()])
def test_the_half_of_a_pair_with_the_same_text_is_right_too(objective):
    class Read(Given):
        def hidden_states(self, *, tokens, second, key=None):
            return Embedded(unit(jnp.eye(4)[tokens[:, 0]]), unit(second))

    second = np.eye(4, dtype=np.float32)[[0, 0, 1, 2]] + np.array([[0.0], [0.2], [0.0], [0.0]], np.float32)
    batch = {"inputs": {"tokens": np.array([[0], [0], [1], [2]]), "second": second}}
    metrics = objective(Read(7.0, -2.0), batch)[1]
    assert metrics["first_accuracy"] == metrics["second_accuracy"] == 4
    other = {"inputs": {**batch["inputs"], "second": second[[2, 1, 0, 3]]}}
    metrics = objective(Read(7.0, -2.0), other)[1]
    assert (metrics["first_accuracy"], metrics["second_accuracy"]) == (1, 2)


class Scaled(Given):
    """One whose scale is learned."""

    def __init__(self, scale):
        self.log_scale = nnx.Param(jnp.log(jnp.float32(scale)))


@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: freeze(each, "log_scale")])
def test_the_scale_does_not_pass_its_limit_in_training(wrap):
    objective, optimizer = ContrastiveLoss(limit=20.0), optax.adam(0.5)
    first = pairs(8)["first"]
    state = new_state(Scaled(14.0), optimizer, True, jax.random.key(0))
    step = jax.jit(make_train_step(wrap(objective), optimizer, ema=0.9))
    for _ in range(4):
        state, _ = step(state, {"inputs": {"first": first, "second": first}})
    for model in (state.model, state.ema):
        np.testing.assert_allclose(jnp.exp(model.log_scale[...]), 20.0, rtol=0.05)
        assert model.log_scale[...] <= jnp.log(20.0)
