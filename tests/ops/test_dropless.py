"""Experts that compute the tokens which chose them: what a product of every token at every expert gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.ops.dropless import LEAST, all_at_once, apply_chosen, block_count, block_size, cut

pytestmark = pytest.mark.proves(
    "experts", "dropless: values and all derivatives of the dense form, in any split of experts"
)

N, D, E, A = 40, 6, 5, 2


def expert(kernels, x, keys):
    up, down = kernels
    hidden = jnp.tanh(x @ up)
    if keys is not None:
        hidden = hidden * jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, hidden.shape[1:]))(keys)
    return hidden @ down


def dense(kernels, x, chosen, weights):
    """Compute every token at every expert, and take what was asked for."""
    made = jax.vmap(lambda each: expert(each, x, None))(kernels)
    gates = (jax.nn.one_hot(chosen, E) * weights[..., None]).sum(-2)
    return jnp.einsum("ne,end->nd", gates, made)


def drawn(seed, spread=1.0):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(N, E)) + spread * np.arange(E)
    chosen = jnp.asarray(np.argsort(-scores, axis=-1)[:, :A])
    kernels = jnp.asarray(random.normal(size=(E, D, 8))), jnp.asarray(random.normal(size=(E, 8, D)))
    given = kernels, jnp.asarray(random.normal(size=(N, D))), jnp.asarray(random.random((N, A)))
    kernels, x, weights = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), given)
    return kernels, x, chosen, weights


def sparse(kernels, x, chosen, weights, **options):
    return apply_chosen(expert, kernels, x, chosen, weights, **options)


@pytest.mark.rotates
@pytest.mark.parametrize("total", [None, 2 * E])
@pytest.mark.parametrize("spread", [0.0, 100.0])
def test_values_and_derivatives_are_those_of_the_dense_form(total, spread):
    """Also where all tokens choose the same experts, and others have none."""
    kernels, x, chosen, weights = drawn(0, spread)
    assert len(np.unique(chosen)) == (A if spread else E)
    moves = drawn(1)

    def both(function):
        def f(kernels, x, weights):
            return function(kernels, x, chosen, weights)

        primals, tangents = (kernels, x, weights), (moves[0], moves[1], moves[3])
        value, pull = jax.vjp(f, *primals)
        return value, jax.jvp(f, primals, tangents)[1], pull(moves[1])

    found = jax.jit(lambda: both(lambda *given: sparse(*given, total=total)))()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, jax.jit(lambda: both(dense))()
    )


def test_parts_of_the_experts_add_up_to_all():
    """What each device adds that has some of them, and the numbers that the experts have on it."""
    kernels, x, chosen, weights = drawn(2)
    parts = [
        sparse(jax.tree.map(lambda leaf, at=at: leaf[at], kernels), x, chosen, weights, first=at.start, total=E)
        for at in (slice(0, 2), slice(2, 5))
    ]
    np.testing.assert_allclose(sum(parts), dense(kernels, x, chosen, weights), rtol=1e-5, atol=1e-5)


def test_what_is_drawn_is_of_token_and_expert_alone():
    kernels, x, chosen, weights = drawn(3)
    keys = jax.random.split(jax.random.key(0), N)
    whole = sparse(kernels, x, chosen, weights, keys=keys)
    assert not np.allclose(whole, sparse(kernels, x, chosen, weights))
    order = jnp.asarray(np.random.default_rng(0).permutation(N))
    other = sparse(kernels, x[order], chosen[order], weights[order], keys=keys[order])
    np.testing.assert_allclose(other, whole[order], rtol=1e-5, atol=1e-6)
    last = sparse(jax.tree.map(lambda leaf: leaf[3:], kernels), x, chosen, weights, keys=keys, first=3)
    first = sparse(jax.tree.map(lambda leaf: leaf[:3], kernels), x, chosen, weights, keys=keys)
    np.testing.assert_allclose(first + last, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("random", [False, True])
def test_all_at_once_is_the_same(random):
    """Also what is drawn, and for some of the experts alone."""
    kernels, x, chosen, weights = drawn(6)
    some, keys = jax.tree.map(lambda leaf: leaf[2:], kernels), jax.random.split(jax.random.key(0), N)
    options = {"first": 2, "total": E, "keys": keys if random else None}
    by_blocks = sparse(some, x, chosen, weights, **options)
    with all_at_once():
        np.testing.assert_allclose(sparse(some, x, chosen, weights, **options), by_blocks, rtol=1e-5, atol=1e-5)


def test_rows_under_vmap_are_rows():
    kernels, x, chosen, weights = drawn(4)
    split = [each.reshape(4, -1, each.shape[-1]) for each in (x, chosen, weights)]

    def loss(kernels, function):
        return (function(kernels) ** 2).sum()

    mapped = lambda kernels: jax.vmap(lambda *rows: sparse(kernels, *rows))(*split)  # noqa: E731
    ours = jax.jit(jax.value_and_grad(lambda kernels: loss(kernels, mapped)))(kernels)
    theirs = jax.jit(jax.value_and_grad(lambda kernels: loss(kernels, lambda k: dense(k, x, chosen, weights))))(kernels)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, theirs)


def test_integers_among_the_leaves_stay_and_short_floats_add_up_in_float32():
    codes = jnp.asarray(np.random.default_rng(0).integers(1, 8, (E, D, D)), jnp.int8)
    run = lambda leaves, x, keys: x @ (leaves[0] * leaves[1]).astype(x.dtype)  # noqa: E731
    scales = jnp.linspace(0.1, 0.5, E, dtype=jnp.bfloat16)
    _, x, chosen, weights = drawn(5)
    x = jnp.abs(x).astype(jnp.bfloat16)  # nothing cancels
    y, pull = jax.vjp(lambda scales: apply_chosen(run, (codes, scales), x, chosen, weights), scales)
    assert y.dtype == jnp.float32
    (gradient,) = pull(jnp.ones_like(y))
    made = jnp.einsum("nd,edf->nef", x.astype(jnp.float32), codes.astype(jnp.float32)).sum(-1)
    gates = (jax.nn.one_hot(chosen, E) * weights[..., None]).sum(-2)
    np.testing.assert_allclose(gradient.astype(jnp.float32), (gates * made).sum(0), rtol=0.02)


def test_no_array_has_every_token_at_every_expert():
    """And a product is as large as the tokens that chose, but for a part of a block an expert."""
    E, N, A, D, F = 16, 1024, 2, 32, 64
    kernels = jnp.ones((E, D, F)), jnp.ones((E, F, D))
    x, chosen, weights = jnp.ones((N, D)), jnp.zeros((N, A), int).at[:, 1].set(1), jnp.ones((N, A))
    loss = lambda *given: (apply_chosen(expert, given[0], given[1], chosen, given[2]) ** 2).sum()  # noqa: E731
    program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(kernels, x, weights).compile()
    assert program.memory_analysis().temp_size_in_bytes < 4 * E * N * F / 4
    size = block_size(N, A, E)
    assert size * block_count(N * A, E, size) <= 1.25 * N * A


@pytest.mark.rotates
@settings(max_examples=20)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 9))
def test_every_visit_is_in_one_block_of_its_expert(chosen, size):
    """Blocks of an expert are full but for its last; visits to no one are in none."""
    expert, visits, used = cut(jnp.asarray(chosen), 4, size)
    found = {(int(e), int(v)) for e, row in zip(expert, visits, strict=True) for v in row if v < len(chosen)}
    assert found == {(e, v) for v, e in enumerate(chosen) if e < 4}
    filled = (np.asarray(visits) < len(chosen)).sum(-1)
    assert int(used) == (filled > 0).sum() == sum(-(-chosen.count(e) // size) for e in range(4))
    assert all(np.all(np.diff(row) > 0) for row in visits)


def test_few_visits_make_few_blocks():
    assert cut(jnp.array([7, 3]), 128, block_size(1, 2, 128)).visits.shape == (2, 1)
    assert block_size(100, 2, 128) == LEAST
