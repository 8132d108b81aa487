"""Recurrent layers: by one position after the other as at once, whatever padding holds, from either end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.text.recurrent_layer import Cell, Recurrent, RecurrentConfig

pytestmark = pytest.mark.proves("recurrent layers", "LSTM and GRU, one or both directions, rows of any length")

B, T, E, H = 3, 5, 4, 6
LENGTHS = jnp.array([5, 2, 0])


def config(**options):
    return RecurrentConfig(**{"embed": E, "hidden": H, **options})


def inputs(*shape):
    return jax.random.normal(jax.random.key(7), shape)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_at_once_is_one_after_the_other(cell):
    one, x = Cell(config(cell=cell), E, rngs=nnx.Rngs(0)), inputs(B, T, E)
    found, last = one.run(x)
    state = one.init_state(B)
    for position in range(T):
        state = one(state, one.project(x[:, position]))
        np.testing.assert_allclose(found[:, position], state[0], atol=1e-6)
    for mine, its in zip(last, state, strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("both", [False, True])
def test_padding_is_never_read(cell, both):
    """A short row is read as if it were alone, from both ends, and an empty one not at all."""
    stack, x = Recurrent(config(cell=cell, depth=2, bidirectional=both), rngs=nnx.Rngs(0)), inputs(B, T, E)
    found, states = stack(x, LENGTHS)
    assert found.shape == (B, T, stack.cfg.width)
    for row, length in enumerate(LENGTHS.tolist()):
        np.testing.assert_array_equal(found[row, length:], 0)
        if length:
            alone, last = stack(x[row, :length])
            np.testing.assert_allclose(found[row, :length], alone, atol=1e-6)
            for mine, its in zip(jax.tree.leaves(states), jax.tree.leaves(last), strict=True):
                np.testing.assert_allclose(mine[row], its, atol=1e-6)
    np.testing.assert_array_equal(jax.tree.leaves(states)[0][2], 0)


def test_reversed_is_the_reverse_of_reading_from_the_end():
    one, x = Cell(config(), E, rngs=nnx.Rngs(0)), inputs(B, T, E)
    found, last = one.run(x, reverse=True)
    other, end = one.run(x[:, ::-1])
    np.testing.assert_allclose(found, other[:, ::-1], atol=1e-6)
    np.testing.assert_allclose(last[0], end[0], atol=1e-6)


def test_a_run_goes_on_from_its_state():
    one, x = Cell(config(cell="gru"), E, rngs=nnx.Rngs(0)), inputs(B, T, E)
    whole, last = one.run(x)
    first, state = one.run(x[:, :2])
    second, end = one.run(x[:, 2:], state)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), whole, atol=1e-6)
    np.testing.assert_allclose(end[0], last[0], atol=1e-6)


def test_dropout_is_the_same_at_all_positions_of_a_row():
    stack = Recurrent(config(depth=2, dropout=0.5), rngs=nnx.Rngs(0))
    plain, _ = stack(inputs(B, T, E))
    dropped, _ = stack(inputs(B, T, E), key=jax.random.key(1))
    assert np.abs(plain - dropped).max() > 1e-3
    np.testing.assert_array_equal(stack(inputs(B, T, E), key=jax.random.key(1))[0], dropped)


def test_in_bfloat16_states_are_added_up_in_float32():
    from flax_transformer.nn import Precision

    stack = Recurrent(config(depth=2, precision=Precision(compute="bfloat16")), rngs=nnx.Rngs(0))
    found, states = stack(inputs(B, T, E).astype(jnp.bfloat16))
    assert found.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(states)} == {jnp.dtype("float32")}
    exact, _ = Recurrent(config(depth=2), rngs=nnx.Rngs(0))(inputs(B, T, E))
    np.testing.assert_allclose(found.astype(jnp.float32), exact, atol=3e-2)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"hidden": 0}, "hidden"),
        ({"depth": 0}, "depth"),
        ({"dropout": 1.0}, "dropout must be in"),
    ],
)
def test_impossible_stacks_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        config(**options)


@pytest.mark.rotates
def test_inputs_of_another_width_are_refused():
    with pytest.raises(ValueError, match="4"):
        Recurrent(config(), rngs=nnx.Rngs(0))(inputs(B, T, E + 1))
