import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import chunked_cross_entropy, cross_entropy

pytestmark = pytest.mark.proves("loss", "cross-entropy with smoothing and z-loss, whole or in chunks, as Optax")


def inputs(shape=(3, 7), V=11, D=5):
    key = jax.random.split(jax.random.key(0), 4)
    hidden, embedding = jax.random.normal(key[0], (*shape, D)), jax.random.normal(key[1], (V, D))
    labels = jax.random.randint(key[2], shape, 0, V)
    return hidden, embedding, labels, jax.random.bernoulli(key[3], 0.7, shape)


@pytest.mark.parity
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_value_and_gradient_equal_torch(smoothing):
    torch = pytest.importorskip("torch")
    hidden, embedding, labels, weights = inputs()
    logits = hidden @ embedding.T
    x = torch.tensor(np.array(logits), requires_grad=True)
    y = torch.where(torch.tensor(np.array(weights)), torch.tensor(np.array(labels)).long(), -100)
    expected = torch.nn.functional.cross_entropy(
        x.flatten(0, 1), y.flatten(), label_smoothing=smoothing, reduction="sum"
    )
    expected.backward()

    def loss(logits):
        return cross_entropy(logits, jnp.asarray(y.numpy()), weights, label_smoothing=smoothing)

    (total, count), back = jax.vjp(loss, logits)
    np.testing.assert_allclose(total, expected.item(), rtol=1e-6)
    assert count == weights.sum()
    np.testing.assert_allclose(back((jnp.float32(1), jnp.float32(0)))[0], x.grad.numpy(), atol=1e-6)


@pytest.mark.rotates
def test_z_loss_is_the_squared_normaliser():
    hidden, embedding, labels, weights = inputs()
    logits = hidden @ embedding.T
    plain, extra = (cross_entropy(logits, labels, weights, z_loss=z)[0] for z in (0.0, 0.3))
    squares = jax.scipy.special.logsumexp(logits, axis=-1) ** 2
    np.testing.assert_allclose(extra - plain, 0.3 * jnp.sum(squares * weights), rtol=1e-5)


def test_sums_and_counts_add_up_over_batches():
    hidden, embedding, labels, weights = inputs()
    whole = cross_entropy(hidden @ embedding.T, labels, weights)
    parts = [cross_entropy(h @ embedding.T, y, w) for h, y, w in zip(hidden, labels, weights, strict=True)]
    np.testing.assert_allclose(whole, np.sum(parts, axis=0), rtol=1e-6)


def test_low_precision_logits_give_a_float32_loss():
    logits = jnp.zeros((4, 9), jnp.bfloat16)
    total, count = cross_entropy(logits, jnp.zeros(4, int))
    assert total.dtype == count.dtype == jnp.float32
    np.testing.assert_allclose(total, 4 * np.log(9), rtol=1e-6)


@pytest.mark.parametrize("label", [-1, -100, 9])
def test_labels_outside_the_vocabulary_are_loud_unless_weightless(label):
    logits, labels = jnp.ones((2, 9)), jnp.array([0, label])
    assert jnp.isnan(cross_entropy(logits, labels)[0])
    loss = jax.value_and_grad(lambda x: cross_entropy(x, labels, jnp.array([1, 0]))[0])
    value, gradient = loss(logits)
    assert jnp.isfinite(value)
    assert (gradient[1] == 0).all()


@pytest.mark.rotates
@pytest.mark.parametrize("chunk", [1, 4, 21, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunked_equals_full(chunk, smoothing):
    hidden, embedding, labels, weights = inputs()
    weights = weights * jnp.linspace(0.5, 2, 7)
    options = dict(label_smoothing=smoothing, z_loss=0.01)

    def full(h, e, w):
        return cross_entropy(h @ e.T, labels, w, **options)

    def chunked(h, e, w):
        return chunked_cross_entropy(h, e, labels, w, chunk=chunk, **options)

    pull = jnp.float32(0.3), jnp.float32(2.0)
    for a, b in zip(
        *(_values_and_gradients(f, (hidden, embedding, weights), pull) for f in (chunked, full)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _values_and_gradients(f, args, pull):
    value, back = jax.vjp(f, *args)
    return jax.tree.leaves((value, back(pull)))


@pytest.mark.rotates
def test_chunked_logits_are_capped_as_whole_ones():
    """Values and gradients, by a cap that matters: the largest logits are several times as large."""
    hidden, table = (3 * jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(7, 5), (11, 5)]))
    labels, cap = jnp.arange(7) % 11, 2.0

    def whole(hidden, table):
        return cross_entropy(cap * jnp.tanh(hidden @ table.T / cap), labels)[0]

    def chunked(hidden, table):
        return chunked_cross_entropy(hidden, table, labels, chunk=3, cap=cap)[0]

    ours, theirs = (jax.value_and_grad(f, (0, 1))(hidden, table) for f in (chunked, whole))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)
    assert jnp.abs(hidden @ table.T).max() > 5 * cap


def test_chunked_gradients_are_as_near_to_float64_as_whole_ones():
    random = np.random.default_rng(0)
    M, V, D = 1024, 2000, 32
    hidden, embedding = random.standard_normal((M, D)), random.standard_normal((V, D)) * D**-0.5
    hidden, embedding = jnp.asarray(hidden, jnp.float32), jnp.asarray(embedding, jnp.float32)
    labels = jnp.asarray(random.integers(0, V, M))
    wide = [np.asarray(x, np.float64) for x in (hidden, embedding)]
    exact = np.exp(wide[0] @ wide[1].T)
    exact /= exact.sum(1, keepdims=True)
    exact[np.arange(M), labels] -= 1
    exact = exact.T @ wide[0]

    def distance(loss):
        gradient = jax.jit(jax.grad(lambda e: loss(e)[0]))(embedding)
        return np.abs(np.asarray(gradient, np.float64) - exact).max() / np.abs(exact).max()

    whole = distance(lambda e: cross_entropy(hidden @ e.T, labels))
    chunked = distance(lambda e: chunked_cross_entropy(hidden, e, labels, chunk=128))
    # Sums of sums round less than one long sum.
    assert chunked < 1e-6
    assert chunked < 1.1 * whole


def test_chunked_accepts_no_weights_and_refuses_empty_chunks():
    hidden, embedding, labels, _ = inputs()
    full = cross_entropy(hidden @ embedding.T, labels)
    np.testing.assert_allclose(chunked_cross_entropy(hidden, embedding, labels), full, rtol=1e-6)
    with pytest.raises(ValueError, match="at least one token, got 0"):
        chunked_cross_entropy(hidden, embedding, labels, chunk=0)


def temporary_bytes(loss, *shapes):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    return jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.rotates
def test_chunked_never_holds_all_logits():
    M, D, V = 2048, 32, 20_000
    shapes = ((M, D), jnp.float32), ((V, D), jnp.float32), ((M,), jnp.int32)
    full = temporary_bytes(lambda h, e, y: cross_entropy(h @ e.T, y)[0], *shapes)
    chunked = temporary_bytes(lambda h, e, y: chunked_cross_entropy(h, e, y, chunk=256)[0], *shapes)
    assert full > 4 * M * V
    assert chunked < 0.6 * full
    assert chunked < 4 * M * V / 2


def test_full_makes_no_one_hot_targets():
    M, V = 512, 10_000
    step = jax.jit(jax.grad(lambda x, y: cross_entropy(x, y, label_smoothing=0.1)[0]))
    compiled = step.lower(jax.ShapeDtypeStruct((M, V), jnp.float32), jax.ShapeDtypeStruct((M,), jnp.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < M * V
