import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flax_transformer.ops.sampling import (
    filter_logits,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    largest,
    row_keys,
    sample_logits,
    scale_temperature,
)
from flax_transformer.ops.top_k import chunk_maxima, largest_after
from tests.shares import only


def draw(seed, *shape, decimals=6, scale=2.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).round(decimals).astype(
        "float32"
    ) + 0.0  # no negative zeros


@pytest.mark.rotates
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([5, 64, 200, 1000, 1025, 5000]),
    k=st.sampled_from([1, 3, 5]),
    decimals=st.sampled_from([0, 1, 6]),
    holes=st.booleans(),
)
def test_largest_is_a_stable_sort_cut_off(seed, size, k, decimals, holes):
    """Few decimals make many ties, which the lowest index wins; so it does among -inf."""
    values = draw(seed, 3, size, decimals=decimals)
    if holes:
        values[0, 2:] = -np.inf
        values[1, :-2] = -np.inf
    top, index = largest(jnp.array(values), k)
    want = np.argsort(-values, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(index, want)
    np.testing.assert_array_equal(top, np.take_along_axis(values, want, -1))


@pytest.mark.parametrize("shape", [(400,), (2, 3, 400), (0, 400)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_largest_equals_lax_top_k(shape, dtype):
    values = jnp.array(draw(0, *shape), dtype)
    for got, want in zip(jax.jit(largest, static_argnums=1)(values, 3), jax.lax.top_k(values, 3), strict=True):
        assert got.dtype == want.dtype
        assert (got == want).all()


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([3, 64, 200, 1025]),
    rows=st.sampled_from([1, 3]),
    k=st.sampled_from([1, 3]),
    decimals=st.sampled_from([0, 1, 6]),
)
def test_the_largest_after_a_change_are_those_of_all_changed_values(seed, size, rows, k, decimals):
    """What is added, -1e9 of one row, makes ties of what was none, and rows of other lengths share chunks."""
    values = jnp.array(draw(seed, 2, rows, size, decimals=decimals))
    added = jnp.array(draw(seed + 1, 2, rows, decimals=decimals)).at[0, 0].set(-1e9)

    def change(values, added):
        return values + added

    want = jax.lax.top_k(change(values, added[..., None]).reshape(2, -1), k)
    for peaks in (None, chunk_maxima(values)):
        for got, right in zip(largest_after(values, k, change, added, peaks), want, strict=True):
            np.testing.assert_array_equal(got, right)


@pytest.mark.slow
def test_filters_act_on_each_row_alone():
    logits = jnp.array(draw(1, 2, 3, 300))
    for keep in (lambda x: keep_top_k(x, 4), lambda x: keep_top_p(x, 0.6), lambda x: scale_temperature(x, 0.3)):
        rows = jax.vmap(jax.vmap(keep))(logits)
        assert (keep(logits) == rows).all()


@pytest.mark.rotates
def test_filters_keep_the_dtype():
    logits = jnp.array(draw(1, 2, 300), jnp.bfloat16)
    assert filter_logits(logits, temperature=0.7, top_k=5, top_p=0.9).dtype == jnp.bfloat16


def test_the_most_probable_token_always_stays():
    logits = jnp.array(draw(2, 50, 100))
    kept = filter_logits(logits, top_k=1, top_p=1e-6)
    assert (jnp.isfinite(kept).sum(-1) == 1).all()
    assert (kept.argmax(-1) == logits.argmax(-1)).all()


@pytest.mark.rotates
def test_filters_that_allow_everything_change_nothing():
    logits = jnp.array(draw(2, 4, 100))
    assert (filter_logits(logits, top_k=1000) == logits).all()


@pytest.mark.rotates
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), p=st.floats(0.05, 0.99))
def test_the_nucleus_is_the_smallest_set_with_mass_p(seed, p):
    logits = draw(seed, 3, 30)
    kept = np.isfinite(np.array(keep_top_p(jnp.array(logits), p)))
    probability = np.exp(logits.astype(np.float64))
    probability /= probability.sum(-1, keepdims=True)
    for row in range(3):
        inside = np.sort(probability[row][kept[row]])
        assert inside.sum() >= p - 1e-5
        assert inside[1:].sum() < p + 1e-5
        assert inside[0] >= probability[row][~kept[row]].max(initial=0)


@pytest.mark.rotates
def test_samples_follow_the_filtered_distribution():
    logits = jnp.array([0.5, -1.0, 1.5, 0.0, -0.5, 2.0])
    drawn = sample_logits(jax.random.key(3), jnp.tile(logits, (20000, 1)), temperature=1.3, top_k=4, top_p=0.95)
    want = np.array(jax.nn.softmax(filter_logits(logits, temperature=1.3, top_k=4, top_p=0.95)), np.float64)
    count = np.bincount(drawn, minlength=6)
    assert (count[want == 0] == 0).all()
    assert stats.chisquare(count[want > 0], want[want > 0] / want.sum() * 20000).pvalue > 1e-3


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(3))
def test_filters_equal_those_of_transformers(seed):
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    logits = draw(seed, 5, 997)

    def theirs(*warpers):
        scores = torch.tensor(logits)
        for warper in warpers:
            scores = warper(None, scores)
        return scores.numpy()

    for k in (1, 7, 50, 5000):
        np.testing.assert_array_equal(keep_top_k(jnp.array(logits), k), theirs(process.TopKLogitsWarper(k)))
    for p in (0.05, 0.5, 0.9, 0.99):
        np.testing.assert_array_equal(keep_top_p(jnp.array(logits), p), theirs(process.TopPLogitsWarper(p)))
    for t in (0.3, 0.7, 2.0):
        np.testing.assert_allclose(
            scale_temperature(jnp.array(logits), t), theirs(process.TemperatureLogitsWarper(t)), rtol=1e-6
        )
    np.testing.assert_allclose(
        filter_logits(jnp.array(logits), temperature=0.7, top_k=40, top_p=0.9),
        theirs(process.TemperatureLogitsWarper(0.7), process.TopKLogitsWarper(40), process.TopPLogitsWarper(0.9)),
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: largest(x, 0), "got k=0, size=5"),
        (lambda x: largest(x, 6), "got k=6, size=5"),
        (lambda x: keep_top_k(x, 0), "k must be at least 1, got k=0"),
        (lambda x: keep_top_p(x, 0.0), "got p=0.0"),
        (lambda x: keep_top_p(x, 1.1), "got p=1.1"),
        (lambda x: scale_temperature(x, 0.0), "temperature must be positive .* got 0.0"),
    ],
)
def test_impossible_filters_are_refused_with_their_values(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.zeros(5))


def test_samples_are_those_of_jax_random():
    logits = jnp.array(draw(3, 4, 700))
    for seed in range(5):
        key = jax.random.key(seed)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(4))
        assert (sample_logits(key, logits) == jax.vmap(jax.random.categorical)(keys, logits)).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", only([jnp.float32, jnp.bfloat16, jnp.float16], jnp.bfloat16))
def test_noise_has_bits_enough_for_a_large_vocabulary(dtype):
    """Half-precision noise has ties at its top, which the lowest tokens win, and no tail."""
    V = 4096
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: sample_logits(key, jnp.zeros(V, dtype))))(keys))
    assert stats.kstest((drawn + 0.5) / V, "uniform").pvalue > 1e-3


@pytest.mark.rotates
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_row_draws_by_its_number_wherever_it_stands(impl):
    key, logits = jax.random.key(7, impl=impl), jnp.array(draw(5, 6, 40))
    whole = sample_logits(key, logits)
    assert (sample_logits(key, logits[:2]) == whole[:2]).all()
    numbers = np.array([4, 1, 5])
    assert (sample_logits(row_keys(key, numbers), logits[numbers]) == whole[numbers]).all()
    same = sample_logits(key, jnp.broadcast_to(logits[0], (200, 40)))
    assert len(set(same.tolist())) > 5  # rows draw independently


def test_keys_of_the_old_kind_draw_the_same():
    logits = jnp.array(draw(5, 6, 40))
    assert (sample_logits(jax.random.PRNGKey(3), logits) == sample_logits(jax.random.key(3), logits)).all()


FILTERS = {
    "top_k": (3, 11),
    "top_p": (0.3, 0.85),
    "min_p": (0.05, 0.4),
    "typical_p": (0.2, 0.9),
    "temperature": (0.4, 1.9),
}


@pytest.mark.rotates
@pytest.mark.parametrize("ties", [False, True])
def test_numbers_may_be_arrays_and_share_one_program(ties):
    logits = jnp.array(draw(6, 4, 300, decimals=0 if ties else 6))
    run = jax.jit(lambda logits, numbers: filter_logits(logits, most=16, **numbers))
    for i in range(2):
        numbers = {name: values[i] for name, values in FILTERS.items()}
        np.testing.assert_allclose(run(logits, numbers), filter_logits(logits, **numbers), rtol=1e-6)
    wide = {"top_k": 12, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "temperature": 1.0}
    np.testing.assert_array_equal(run(logits, wide), keep_top_k(logits, 12))
    assert run._cache_size() == 1


@pytest.mark.rotates
def test_the_nucleus_is_exact_however_flat_the_distribution():
    """Sizes of nuclei from one token to nearly all of a large vocabulary, against a sort in float64."""
    for scale in (0.01, 1.0, 4.0):
        logits = draw(8, 2, 20_000, scale=scale)
        probability = np.exp(logits.astype(np.float64))
        probability = -np.sort(-probability / probability.sum(-1, keepdims=True))
        for p in (0.1, 0.6, 0.97):
            size = (np.cumsum(probability, -1) - probability < p).sum(-1)
            kept = np.isfinite(keep_top_p(jnp.array(logits), p)).sum(-1)
            assert (np.abs(kept - size) <= 1 + 2e-5 * size).all()  # ties, and sums in float32


@pytest.mark.rotates
def test_equal_logits_stay_together():
    logits = jnp.array([[2.0, 1.0, 1.0, -0.0, 0.0, 0.0, 1.0, -5.0]])
    kept = lambda x: np.isfinite(x[0]).nonzero()[0].tolist()  # noqa: E731
    assert kept(keep_top_k(logits, 2)) == [0, 1, 2, 6]
    assert kept(keep_top_k(logits, 5)) == [0, 1, 2, 3, 4, 5, 6]
    mass = jax.nn.softmax(logits)[0]
    assert kept(keep_top_p(logits, float(mass[0] + 0.5 * mass[1]))) == [0, 1, 2, 6]
    # Of the k kept, ties beyond the k-th have their share of the mass.
    four = jax.nn.softmax(logits[0, jnp.array([0, 1, 2, 6])])
    assert kept(keep_top_k(logits, 2, p=float(four[0]) - 1e-3)) == [0]
    assert kept(keep_top_k(logits, 2, p=float(four[0]) + 1e-3)) == [0, 1, 2, 6]


def test_a_traced_k_needs_a_bound():
    with pytest.raises(ValueError, match="k must be known when compiling, or `most` must say"):
        jax.jit(keep_top_k)(jnp.zeros(9), 3)


@pytest.mark.parity
@pytest.mark.parametrize("ties", [False, True])
def test_more_filters_equal_those_of_transformers(ties):
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    logits = draw(11, 5, 997, decimals=1 if ties else 6)
    survive = lambda warper: np.isfinite(warper(None, torch.tensor(logits)).numpy())  # noqa: E731
    for k in (1, 7, 50, 5000):  # of equal logits at rank k all survive, there too
        np.testing.assert_array_equal(
            np.isfinite(keep_top_k(jnp.array(logits), k)), survive(process.TopKLogitsWarper(k))
        )
    for p in (0.01, 0.1, 0.5, 1.0):
        kept = np.isfinite(keep_min_p(jnp.array(logits), p))
        np.testing.assert_array_equal(kept, survive(process.MinPLogitsWarper(p)))
    for p in (0.05, 0.3, 0.9, 0.99):
        kept = np.isfinite(keep_typical(jnp.array(logits), p))
        np.testing.assert_array_equal(kept, survive(process.TypicalLogitsWarper(p)))


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_an_impossible_min_p_is_refused(p):
    with pytest.raises(ValueError, match="min_p must be between 0 and 1"):
        keep_min_p(jnp.zeros(5), p)
