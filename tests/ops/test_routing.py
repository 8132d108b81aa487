"""Sending tokens to experts: places, what is dropped, what is even."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.routing import balance_loss, place, router_z_loss, seats_of, send, slots_of, visitors
from flax_transformer.ops.token_choice import route


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
    seats, Q = seats_of(chosen, 2, 2, 0.6)
    assert Q == 2
    np.testing.assert_array_equal(seats, [[0, 3], [1, 4], [2, 4]])
    np.testing.assert_array_equal(visitors(seats.ravel(), 4), [0, 2, 4, 1])


@pytest.mark.rotates
@pytest.mark.parametrize("active", [1, 2, 3])
def test_padding_takes_no_places_and_counts_nowhere(active):
    """A row with padding, wherever it is, is the row without it: who is dropped, and how even it is."""
    random = np.random.default_rng(active)
    logits = jax.random.normal(jax.random.key(active), (12, 4))
    real = jnp.asarray(random.permutation(12) < 7)
    chosen = route(logits, active)[0]
    (padded, Q), (alone, own) = seats_of(chosen, 4, active, 0.7, real), seats_of(chosen[real], 4, active, 0.7)
    spelled = lambda seats, Q: [None if seat == 4 * Q else (seat // Q, seat % Q) for seat in np.ravel(seats)]  # noqa: E731
    assert spelled(padded[real], Q) == spelled(alone, own)
    assert set(spelled(padded[~real], Q)) == {None}
    for loss, given in ((balance_loss, (chosen,)), (router_z_loss, ())):
        there = loss(logits[real], *(each[real] for each in given))
        np.testing.assert_allclose(loss(logits, *given, real), there, rtol=1e-5)
        assert float(loss(logits, *given, jnp.zeros(12, bool))) == 0


@pytest.mark.rotates
def test_what_is_sent_comes_back_and_so_do_gradients():
    """As by a matrix of ones, in both directions, forward and back, under `vmap`."""
    chosen = route(jax.random.normal(jax.random.key(0), (3, 6, 4)), 2)[0]
    seats, Q = seats_of(chosen, 4, 2, 0.7)
    visits = seats.reshape(3, -1)
    of = visitors(visits, 4 * Q)
    matrix = jax.nn.one_hot(visits, 4 * Q).reshape(3, 6, 2, -1)
    x, y = (jax.random.normal(jax.random.key(i), (3, n, 5)) for i, n in ((1, 6), (2, 4 * Q)))
    by_hand = {"there": lambda x: jnp.einsum("btaj,btd->bjd", matrix, x),
               "back": lambda y: jnp.einsum("btaj,bjd->btad", matrix, y).reshape(3, 12, 5)}  # fmt: skip
    ours = {"there": lambda x: send(x, of, visits), "back": lambda y: send(y, visits, of)}
    for name, given in (("there", x), ("back", y)):
        for turn in (lambda f, x: f(x), lambda f, x: jax.grad(lambda x: (f(x) ** 3).sum())(x),
                     lambda f, x: jax.jvp(f, (x,), (x**2,))[1]):  # fmt: skip
            np.testing.assert_allclose(turn(ours[name], given), turn(by_hand[name], given), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(jax.vmap(send)(x, of, visits), send(x, of, visits))


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
    assert slots_of(T, E, active, capacity) == Q


def test_more_experts_than_there_are_cannot_be_asked_for():
    with pytest.raises(ValueError, match="sent to 1 to E=4 experts, got 5"):
        route(jnp.zeros((2, 4)), 5)
