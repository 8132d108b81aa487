"""Sending tokens to experts: places, what is dropped, what is even."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.routing import balance_loss, combine, dropped, place, places_of, route


def test_weights_are_those_of_the_likeliest_experts():
    logits = jax.random.normal(jax.random.key(0), (3, 5, 6))
    probabilities = np.asarray(jax.nn.softmax(logits))
    chosen, weights = route(logits, 2, normalized=False)
    best = np.sort(probabilities)[..., ::-1][..., :2]
    np.testing.assert_allclose(weights, best, rtol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(probabilities, np.asarray(chosen), -1), best, rtol=1e-6)
    np.testing.assert_allclose(route(logits, 2)[1], best / best.sum(-1, keepdims=True), rtol=1e-6)


def test_first_choices_of_all_tokens_come_before_second_ones():
    """GShard's order: the third token's first choice takes the place that the first one's second choice would have."""
    chosen = jnp.array([[0, 1], [0, 1], [1, 0]])
    places = place(chosen, 2)
    np.testing.assert_array_equal(places, [[0, 1], [1, 2], [0, 2]])
    np.testing.assert_array_equal(dropped(places, 2), [[False, False], [False, True], [False, True]])
    laid = combine(chosen, jnp.array([[0.9, 0.1]] * 3), 2, places, 2)
    expected = np.zeros((3, 2, 2), np.float32)
    for token, expert, at, weight in [(0, 0, 0, 0.9), (0, 1, 1, 0.1), (1, 0, 1, 0.9), (2, 1, 0, 0.9)]:
        expected[token, expert, at] = weight
    np.testing.assert_allclose(laid, expected, rtol=1e-6)


def test_no_place_is_given_twice():
    chosen, _ = route(jax.random.normal(jax.random.key(1), (4, 9, 5)), 3)
    for row, places in zip(np.asarray(chosen), np.asarray(place(chosen, 5)), strict=True):
        taken = list(zip(row.ravel(), places.ravel(), strict=True))
        assert len(set(taken)) == len(taken) == 27
        for expert in range(5):
            np.testing.assert_array_equal(np.sort(places[row == expert]), np.arange((row == expert).sum()))


def test_an_even_router_is_the_best_and_one_expert_for_all_the_worst():
    even, one = jnp.zeros((8, 4)), jnp.full((8, 4), -30.0).at[:, 2].set(30)
    turns = (jnp.arange(8) % 4)[:, None]
    assert float(balance_loss(even, turns)) == pytest.approx(1)
    assert float(balance_loss(one, jnp.full((8, 1), 2))) == pytest.approx(4)


@pytest.mark.parametrize(
    ("T", "E", "active", "capacity", "Q"), [(16, 8, 2, 1.25, 5), (16, 4, 1, 1.0, 4), (3, 2, 2, 9.0, 3)]
)
def test_places_are_a_multiple_of_an_even_share_and_no_more_than_tokens(T, E, active, capacity, Q):
    assert places_of(T, E, active, capacity) == Q


def test_more_experts_than_there_are_cannot_be_asked_for():
    with pytest.raises(ValueError, match="sent to 1 to E=4 experts, got 5"):
        route(jnp.zeros((2, 4)), 5)
