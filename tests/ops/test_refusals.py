"""Masks, biases and positions that mean something else than they seem to are refused, types checked or not."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from flax_transformer.ops import (
    Mask,
    alibi,
    attention,
    attention_weights,
    causal_relative_buckets,
    explain_attention,
    relative_buckets,
    rotary,
    rotary_frequencies,
)


@pytest.fixture(autouse=True)
def _as_users_call(monkeypatch):
    """Leave out the tests' own checks of types, which users do not have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def ones(*shape, dtype=int):
    return jnp.ones(shape, dtype)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(dense=jnp.zeros((3, 3))), r"dense must be an array of booleans, .* got float32\[3, 3\]"),
        (dict(dense=ones(3, 3)), "dense must be an array of booleans"),
        (dict(dense=np.ones((3, 3), np.uint8)), "dense must be an array of booleans"),
        (dict(dense=[[True]]), "dense must be an array of booleans"),
        (dict(lengths=ones(2, dtype=float)), "lengths must be an array of whole numbers, got float32"),
        (dict(lengths=ones(2, dtype=bool)), "lengths must be an array of whole numbers, got bool"),
        (dict(lengths=[1, 2]), "lengths must be an array of whole numbers"),
        (dict(lengths=3), "lengths must be an array of whole numbers"),
        (dict(segments=ones(2, 3)), r"segments must be a pair.*got int32\[2, 3\]"),
        (dict(segments=(ones(2, 3),)), "segments must be a pair"),
        (dict(segments=(ones(2, 3), ones(2, 3, dtype=float))), "segments must be an array of whole numbers"),
        (dict(offset=0.0), "offset must be an array of whole numbers"),
        (dict(offset=ones(2, dtype=float)), "offset must be an array of whole numbers"),
        (dict(window=2.5), "a window must be one whole number, or two"),
        (dict(window=(1, 2, 3)), "a window must be one whole number, or two"),
        (dict(window=jnp.array(1)), "a window must be one whole number, or two"),
        (dict(causal=jnp.array(True)), "causal must be True or False"),
        (dict(causal=1), "causal must be True or False, got 1"),
    ],
)
def test_a_field_of_a_mask_is_what_it_says(fields, message):
    with pytest.raises(ValueError, match=message):
        Mask(**fields)


@pytest.mark.parametrize("whole", [int, np.int64, np.int32, np.uint8])
def test_a_window_is_any_whole_number(whole):
    for window in (whole(2), (whole(2), whole(2)), [whole(2), whole(2)]):
        mask = Mask(window=window)
        assert mask.window == (2, 2)
        assert [type(side) for side in mask.window] == [int, int]
        assert jax.tree.structure(mask) == jax.tree.structure(Mask(window=2))


ROWS, HEADS, LENGTH = 4, 4, 5
Q = jax.random.normal(jax.random.key(0), (ROWS, LENGTH, HEADS, 2))


@pytest.mark.parametrize("call", [attention, explain_attention, lambda q, k, v, mask: attention_weights(q, k, mask)])
@pytest.mark.parametrize(
    "mask",
    [
        Mask(dense=ones(ROWS, LENGTH, LENGTH, dtype=bool)),
        Mask(dense=ones(1, LENGTH, LENGTH, dtype=bool)),
        Mask(dense=ones(LENGTH, dtype=bool)),
        Mask(lengths=ones(ROWS, 1)),
        Mask(lengths=ones(3)),
        Mask(segments=(ones(ROWS), ones(ROWS, LENGTH))),
        Mask(segments=(ones(ROWS, LENGTH), ones(ROWS, LENGTH + 1))),
        Mask(offset=ones(ROWS, 1), causal=True),
    ],
    ids=str,
)
def test_a_mask_that_could_mean_rows_or_heads_is_refused(call, mask):
    with pytest.raises(ValueError, match=r"mask .* must (have all|broadcast)"):
        call(Q, Q, Q, mask)


def test_a_field_has_every_batch_axis_or_none():
    two = Q.reshape(2, 2, LENGTH, HEADS, 2)
    for lengths in (ones(2), ones(1)):
        with pytest.raises(ValueError, match=r"mask lengths must have all 2 axes of \(2, 2\), .* or none"):
            attention(two, two, two, Mask(lengths=lengths))
    each, every = jnp.array([[1, 1], [3, 3]]), jnp.array(2)
    apart = jnp.stack([attention(two[i], two[i], two[i], Mask(lengths=each[i])) for i in range(2)])
    np.testing.assert_allclose(attention(two, two, two, Mask(lengths=each)), apart, atol=1e-6)
    alike = attention(two, two, two, Mask(lengths=every))
    np.testing.assert_allclose(alike, attention(two, two, two, Mask(lengths=jnp.full((2, 2), 2))), atol=1e-6)


@pytest.mark.parametrize("shape", [(LENGTH, LENGTH), (1, HEADS, LENGTH, LENGTH), (ROWS, 1, LENGTH, LENGTH)])
def test_a_dense_mask_of_every_rank_that_is_allowed_hides_what_it_says(shape):
    dense = jax.random.bernoulli(jax.random.key(1), 0.6, shape).at[..., 0].set(True)
    whole = jnp.broadcast_to(dense, (ROWS, HEADS, LENGTH, LENGTH))
    np.testing.assert_array_equal(attention_weights(Q, Q, Mask(dense=dense)) > 0, whole)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: attention(Q, Q, Q, ones(LENGTH, LENGTH, dtype=bool)), r"a mask must be a Mask.*got bool\[5, 5\]"),
        (lambda: Mask(causal=True) & ones(LENGTH, LENGTH, dtype=bool), "a mask must be a Mask"),
        (lambda: attention(Q, Q, Q, None, ones(LENGTH, LENGTH, dtype=bool)), "a bias must be floating point"),
        (lambda: attention(Q, Q, Q, None, ones(LENGTH, dtype=float)), "a bias must be floating point of"),
        (lambda: attention(Q.astype(int), Q, Q), "takes q as floating point, got int32"),
        (lambda: attention(Q, Q, Q.astype(int)), "takes v as floating point, got int32"),
        (lambda: rotary(Q[0], ones(ROWS, LENGTH), rotary_frequencies(2)), r"positions must broadcast to \(5,\)"),
        (lambda: rotary(Q, ones(ROWS), rotary_frequencies(2)), r"positions must broadcast to \(4, 5\)"),
        (lambda: relative_buckets(jnp.arange(3), buckets=31), "must be even, got 31"),
        (lambda: relative_buckets(jnp.arange(3), buckets=2), "two buckets or more"),
        (lambda: causal_relative_buckets(jnp.arange(3), max_distance=16), "above half of them, got 32 up to 16"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_a_bias_of_heads_is_the_same_for_every_row():
    bias = alibi(HEADS, LENGTH, LENGTH)
    alike = attention(Q, Q, Q, None, jnp.broadcast_to(bias, (ROWS, *bias.shape)))
    np.testing.assert_allclose(attention(Q, Q, Q, None, bias), alike, atol=1e-6)
