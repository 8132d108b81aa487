"""Layers that take turns at masks are one stack to those who look inside: a value of all layers, in their order."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.inside import Add, Replace, intervene, logit_lens, switch_off
from flax_transformer.nn.stack import layer
from flax_transformer.ops import Mask, capture
from flax_transformer.ops.capture import places
from tests.inside.test_intervene import TOKENS, run, small, without_kernel

pytestmark = pytest.mark.proves("inside", "layers that take turns: values, edits and lenses of all layers in order")

WINDOWS = (2, None, 3, 1)
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)


def window_of(number, turns):
    return WINDOWS[:turns][number % turns]


@pytest.fixture(scope="module", params=[2, 3, 4], ids=["a round and one more", "a round", "less than a round"])
def turns(request):
    return request.param


@pytest.fixture(scope="module")
def model(turns):
    """Three layers."""
    return small(window=WINDOWS[:turns])


@pytest.mark.rotates
def test_states_and_places_are_those_of_one_layer_after_another(model, turns):
    _, (states,) = capture(run, "hidden_states")(model, TOKENS)
    _, (end,) = capture(run, "trunk_output")(model, TOKENS)
    x = states[0]
    for number in range(3):
        close(states[number], x)
        window = window_of(number, turns)
        mask = Mask(causal=True, window=None if window is None else (window - 1, 0))
        x = layer(model.trunk.blocks, number)(x, mask=mask)
    close(end, x)
    (place,) = (each for each in places(run, model, TOKENS) if each.name == "hidden_states")
    assert (place.loops, place.shape) == ((3,), (2, 5, 16))


@pytest.mark.rotates
def test_weights_have_the_window_of_their_layer(model, turns):
    _, (weights,) = capture(run, "attention_weights")(model, TOKENS)
    assert weights.shape == (3, 2, 4, 5, 5)
    for number in range(3):
        seen = np.tril(np.ones((5, 5), bool)) & ~np.tril(np.ones((5, 5), bool), -(window_of(number, turns) or 5))
        np.testing.assert_array_equal(np.asarray(weights[number]).min((0, 1)) > 0, seen)


@pytest.mark.rotates
@pytest.mark.parametrize("number", range(3))
def test_an_edit_is_of_its_layer(model, number):
    off = switch_off(run, "head_outputs", model, TOKENS, axis=-2, chosen=[(0, (number, 2))])
    close(jax.jit(intervene(run))(off, model, TOKENS), run(without_kernel(model, number, 2), TOKENS))
    _, (states,) = capture(run, "hidden_states")(model, TOKENS)
    steer = {"hidden_states": Add(jnp.zeros((3, 1, 1, 16)).at[number].set(0.5))}
    _, (moved,) = capture(partial(intervene(run), steer), "hidden_states")(model, TOKENS)
    close(moved[: number + 1], states[: number + 1].at[number].add(0.5))
    close(intervene(run)({"hidden_states": Replace(moved)}, model, TOKENS), intervene(run)(steer, model, TOKENS))


@pytest.mark.rotates
def test_transforms_go_through(model):
    def loss(amount, tokens):
        return jnp.sum(jnp.sin(intervene(run)({"hidden_states": Add(amount)}, model, tokens)))

    zero = jnp.zeros((3, 1, 1, 16))
    slope = jax.jit(jax.grad(loss))(zero, TOKENS)
    for number in range(3):
        step = jnp.zeros_like(zero).at[number, ..., 3].set(1e-2)
        close(slope[number, 0, 0, 3], (loss(step, TOKENS) - loss(-step, TOKENS)) / 2e-2, rtol=2e-3)
    each = jax.vmap(loss, in_axes=(None, 0))(zero, TOKENS[:, None])
    close(each.sum(), loss(zero, TOKENS), rtol=1e-4)


@pytest.mark.rotates
def test_a_lens_ends_with_what_the_model_says(model):
    found = logit_lens(run)(model, TOKENS)
    assert found.shape == (4, 2, 5, 11)
    close(found[-1], run(model, TOKENS))
    with pytest.raises(ValueError, match="an entry for each of its 3 layers"):
        intervene(run)({"hidden_states": Add(jnp.zeros((2, 1, 1, 16)))}, model, TOKENS)
