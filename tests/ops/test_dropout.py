import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flax_transformer.ops import Dropout, attention, dropout, keep_mask
from flax_transformer.ops.dropout import keep_part
from flax_transformer.ops.row_random import rows_of

KEY = jax.random.key(3)


def test_no_key_or_no_rate_changes_nothing():
    x = jnp.ones((3, 5))
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, KEY) is x


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_rate_and_mean(rate, impl):
    key = jax.random.key(3, impl=impl)
    n = 1_000_000
    kept = keep_mask(key, (1000, 1000), rate)
    assert abs(float(kept.mean()) - (1 - rate)) < 4 * (rate * (1 - rate) / n) ** 0.5 + 2**-16
    y = dropout(jnp.ones((1000, 1000)), rate, key)
    assert abs(float(y.mean()) - 1) < 4 * (rate / (1 - rate) / n) ** 0.5


@pytest.mark.rotates
def test_bits_are_independent_along_every_axis():
    kept = np.array(keep_mask(KEY, (64, 32, 128), 0.3)) - 0.7
    for axis in range(3):
        for lag in (1, 2, 32):
            if lag < kept.shape[axis]:
                a, b = np.split(kept, [lag], axis)[1], np.split(kept, [kept.shape[axis] - lag], axis)[0]
                assert abs((a * b).mean() / 0.21) < 4 / a.size**0.5
    assert abs(kept.mean((0, 1)).std() * (64 * 32 / 0.21) ** 0.5 - 1) < 0.3


@pytest.mark.rotates
def test_random_words_equal_jax_threefry_at_its_number_of_rounds(monkeypatch):
    from jax.extend.random import threefry_2x32

    module = importlib.import_module("flax_transformer.ops.dropout")
    monkeypatch.setattr(module, "_ROUNDS", 20)
    first, second = module._words(KEY, (6, 5), {})
    counts = jnp.concatenate([jnp.arange(30, dtype=jnp.uint32), jnp.zeros(30, jnp.uint32)])
    expected = threefry_2x32(jax.random.key_data(KEY), counts)
    np.testing.assert_array_equal(jnp.concatenate([first.ravel(), second.ravel()]), expected)


@pytest.mark.rotates
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4)])
def test_any_shape_and_the_key_decide(shape):
    kept = keep_mask(KEY, shape, 0.5)
    assert kept.shape == shape
    np.testing.assert_array_equal(kept, keep_mask(KEY, shape, 0.5))
    np.testing.assert_array_equal(kept, jax.jit(lambda k: keep_mask(k, shape, 0.5))(KEY))


@pytest.mark.rotates
def test_different_keys_differ():
    draws = [keep_mask(key, (1000,), 0.5) for key in jax.random.split(KEY, 8)]
    agreement = np.array([[float((a == b).mean()) for a in draws] for b in draws])
    assert (np.abs(agreement - 0.5)[~np.eye(8, dtype=bool)] < 0.08).all()


def test_result_does_not_depend_on_the_mesh():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
    x = jnp.ones((8, 12))
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    drop = jax.jit(lambda x: dropout(x, 0.4, KEY))
    np.testing.assert_array_equal(drop(placed), drop(x))


@st.composite
def parts(draw):
    """A shape, and indices along some of its axes."""
    shape = draw(st.sampled_from([(7,), (3, 5), (2, 4, 11)]))
    axes = draw(st.sets(st.integers(0, len(shape) - 1)))
    return shape, {axis: draw(st.lists(st.integers(0, shape[axis] - 1), min_size=5, max_size=5)) for axis in axes}


@pytest.mark.rotates
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@settings(max_examples=30)
@given(parts())
def test_a_part_equals_its_place_in_the_whole(impl, part):
    shape, at = part
    key = jax.random.key(3, impl=impl)
    expected = np.array(keep_mask(key, shape, 0.5))
    for axis, indices in at.items():
        expected = expected.take(indices, axis)
    drawn = drawn_part(key, shape, {axis: jnp.array(indices) for axis, indices in at.items()})
    np.testing.assert_array_equal(drawn, expected)


@partial(jax.jit, static_argnums=1)
def drawn_part(key, shape, at):
    return keep_part(key, shape, 0.5, at)


@pytest.mark.rotates
def test_arrays_beyond_32_bits_of_places_draw_without_repeating():
    shape, ones = (3, 2**17, 2**18), jnp.arange(64)
    rows = [keep_part(KEY, shape, 0.5, {0: jnp.array([i]), 1: ones, 2: ones}) for i in range(3)]
    assert all(abs(float((rows[i] == rows[j]).mean()) - 0.5) < 0.05 for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.rotates
@pytest.mark.parametrize(
    "shape", [*(pytest.param(shape, marks=pytest.mark.slow) for shape in [(12,), (12, 5)]), (12, 3, 4)]
)
def test_rows_of_a_batch_draw_what_the_batch_would(shape):
    whole = keep_mask(KEY, shape, 0.5)
    ours = lambda rows: keep_mask(KEY, (len(rows), *shape[1:]), 0.5)  # noqa: E731

    @jax.jit
    def microbatches():
        def one(_, m):
            with rows_of(jnp.arange(3) * 4 + m, 12):
                return None, ours(range(3))

        return jax.lax.scan(one, None, jnp.arange(4))[1]

    np.testing.assert_array_equal(microbatches().swapaxes(0, 1).reshape(shape), whole)

    def mapped(row):
        with rows_of(row[None], 12):
            return ours(range(1))[0]

    np.testing.assert_array_equal(jax.vmap(mapped)(jnp.arange(12)), whole)
    with rows_of(jnp.array([7, 7, 1]), 12):
        np.testing.assert_array_equal(ours(range(3)), whole[jnp.array([7, 7, 1])])
        with pytest.raises(ValueError, match=r"must have its rows in front, an axis of 3, got \(4,"):
            ours(range(4))


@pytest.mark.rotates
def test_rows_of_a_batch_reach_functions_compiled_before():
    x, rows = jnp.ones((4, 30)), jnp.array([5, 3, 2, 0])
    drop = jax.jit(lambda x: dropout(x, 0.5, KEY))
    plain, whole = drop(x), drop(jnp.ones((6, 30)))
    for _ in range(2):
        with rows_of(rows, 6):
            np.testing.assert_array_equal(drop(x), whole[rows])
        np.testing.assert_array_equal(drop(x), plain)

    @jax.jit
    def inside(rows):
        with rows_of(rows, 6):
            return drop(x)

    np.testing.assert_array_equal(inside(rows), whole[rows])
    np.testing.assert_array_equal(jax.jit(lambda rows: inside(rows[::-1]))(rows), whole[rows[::-1]])


def test_attention_under_rows_of_a_batch_equals_the_batch():
    q = jax.random.normal(KEY, (6, 8, 2, 4))
    attend = lambda q: attention(q, q, q, dropout=Dropout(0.5, KEY))  # noqa: E731
    rows = jnp.array([5, 1])
    with rows_of(rows, 6):
        part = attend(q[rows])
    np.testing.assert_allclose(part, attend(q)[rows], atol=1e-6)


def test_gradient_is_the_mask_times_the_scale():
    x = jax.random.normal(KEY, (40, 30))
    y, back = jax.vjp(lambda x: dropout(x, 0.25, KEY), x)
    np.testing.assert_allclose(back(jnp.ones_like(y))[0] * x, y, rtol=1e-6)


def test_a_dropout_is_a_value_in_trees():
    drop = Dropout(0.1, KEY)
    assert jax.jit(lambda d: d)(drop).rate == 0.1
    assert len(jax.tree.leaves(drop)) == 1


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_rates_outside_are_refused(rate):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\), got"):
        Dropout(rate, KEY)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\), got"):
        dropout(jnp.ones(3), rate, KEY)


@pytest.mark.parametrize(
    "shape",
    [(1, 32, 16384, 16384), (1, 1, 2**16, 2**16), (4, 2**14, 2**17, 2**18), (1, 2**33), (1, 2**30, 2**20, 2**30)],
)
def test_masks_of_any_size_have_a_shape(shape):
    """A batch of one on a long sequence counts further than a signed word."""
    assert jax.eval_shape(lambda key: keep_mask(key, shape, 0.1), KEY).shape == shape


@pytest.mark.rotates
def test_arrays_beyond_64_bits_of_places_draw_without_repeating():
    """Axes that two words cannot count, as two full words would have to be: here rows i and i + 32 would be alike."""
    shape, ones = (1024, 128, 2**20, 2**20), jnp.arange(40)
    at = {1: jnp.arange(2), 2: ones, 3: ones}
    rows = [keep_part(KEY, shape, 0.5, {0: jnp.array([i]), **at}) for i in (0, 32, 64, 1023)]
    alike = [float((a == b).mean()) for n, a in enumerate(rows) for b in rows[:n]]
    assert max(abs(share - 0.5) for share in alike) < 0.05
