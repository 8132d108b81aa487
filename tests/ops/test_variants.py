"""One list of properties that every attention variant keeps; a new variant is one line in VARIANTS."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Call, Dropout, Mask, attention, explain_attention
from flax_transformer.ops.attention import VARIANTS as NAMED
from flax_transformer.ops.attention import blockwise, linear
from flax_transformer.ops.attention.capped import CappedAttention
from flax_transformer.ops.attention.entmax import EntmaxAttention, SparsemaxAttention, entmax, sparsemax
from flax_transformer.ops.attention.fixed_sparse import FixedAttention
from flax_transformer.ops.attention.linear import LinearAttention, LinearState, elu_features, linear_step
from flax_transformer.ops.attention.local import LocalAttention
from flax_transformer.ops.attention.nystrom import NystromAttention
from flax_transformer.ops.attention.performer import PerformerAttention, orthogonal_features
from flax_transformer.ops.attention.strided_sparse import StridedAttention
from flax_transformer.ops.attention.xla import attention_logits
from tests.shares import share

pytestmark = pytest.mark.proves("attention variants", "each against its dense form, and its invariants")

T = 12


def shown(window=None, pattern=None):
    """Attention by the dense mask of a pattern, written as the paper has it."""

    def attend(q, k, v, mask):
        length = q.shape[-3]
        seen = (Mask(window=window) if window else Mask(dense=jnp.array(pattern(length)))) & mask
        return attention(q, k, v, seen, backend="xla")

    return attend


def strided(length, stride=3):
    pairs = [[abs(i - j) <= stride or (i - j) % stride == 0 for j in range(length)] for i in range(length)]
    return np.array(pairs)


def fixed(length, stride=4, summary=2):
    return np.array(
        [[i // stride == j // stride or j % stride in (2, 3) for j in range(length)] for i in range(length)]
    )


def by_weights(weigh):
    def attend(q, k, v, mask):
        k, v = (jnp.repeat(x, q.shape[-2] // x.shape[-2], axis=-2) for x in (k, v))
        seen = (mask or Mask()).materialize(q.shape[-3], k.shape[-3])
        return jnp.einsum("...nts,...snh->...tnh", weigh(q, k, jnp.ones((), bool) if seen is None else seen), v)

    return attend


def products(features):
    def weigh(q, k, seen):
        weights = jnp.where(seen, jnp.einsum("...tnf,...snf->...nts", features(q), features(k)), 0)
        total = weights.sum(-1, keepdims=True)
        return weights / jnp.where(total > 0, total, 1)

    return by_weights(weigh)


def random_features(x):
    vectors, x = orthogonal_features(jax.random.key(0), 8, x.shape[-1]), x / x.shape[-1] ** 0.25
    return jnp.exp(jnp.einsum("...h,fh->...f", x, vectors) - (x**2).sum(-1, keepdims=True) / 2)


def bisected(power):
    """Find the threshold of sparsemax and entmax by halving an interval, in NumPy's float64."""

    def weigh(q, k, seen):
        scores = np.asarray(attention_logits(q, k), float) / power
        scores = np.where(np.broadcast_to(seen, scores.shape), scores, -np.inf)
        return jnp.asarray(halve(scores, power), jnp.float32)

    return by_weights(weigh)


def halve(scores, power):
    top = scores.max(-1, keepdims=True)
    some = np.isfinite(top)
    scores = np.where(some, scores - np.where(some, top, 0), -5.0)
    low, high = np.full_like(top, -1.0), np.zeros_like(top)
    for _ in range(60):
        middle = (low + high) / 2
        over = (np.maximum(scores - middle, 0) ** power).sum(-1, keepdims=True) >= 1
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    return np.where(some, np.maximum(scores - low, 0) ** power, 0)


# name: (variant, its dense form, what it can do)
def capped(cap):
    def weigh(q, k, seen):
        scores = jnp.einsum("...tnh,...snh->...nts", q, k) / q.shape[-1] ** 0.5
        weights = jnp.where(seen, jnp.exp(cap * jnp.tanh(scores / cap)), 0)
        total = weights.sum(-1, keepdims=True)
        return weights / jnp.where(total > 0, total, 1)

    return by_weights(weigh)


VARIANTS = {
    "local": (LocalAttention(window=(3, 1)), shown(window=(3, 1)), {"causal", "segments", "bias"}),
    "strided": (StridedAttention(stride=3), shown(pattern=strided), {"causal", "segments"}),
    "fixed": (FixedAttention(stride=4, summary=2), shown(pattern=fixed), {"causal", "segments"}),
    "linear": (LinearAttention(), products(elu_features), {"causal"}),
    "performer": (PerformerAttention(features=8), products(random_features), {"causal"}),
    "nystrom": (NystromAttention(landmarks=T), lambda *x: attention(*x), set()),
    "sparsemax": (SparsemaxAttention(), bisected(1), {"causal", "segments", "bias", "dropout"}),
    "entmax": (EntmaxAttention(), bisected(2), {"causal", "segments", "bias", "dropout"}),
    "capped": (CappedAttention(cap=0.7), capped(0.7), {"causal", "segments", "bias", "dropout"}),
}
variants = pytest.mark.parametrize("name", VARIANTS)
LENGTHS = Mask(lengths=jnp.array([5, T]))
MASKS = {
    "none": (None, set()),
    "causal": (Mask(causal=True), {"causal"}),
    "lengths": (LENGTHS, set()),
    "both": (LENGTHS & Mask(causal=True), {"causal"}),
    "segments": (Mask(segments=(jnp.arange(T) // 5,) * 2, causal=True), {"causal", "segments"}),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blockwise, "_BLOCK", 4)
    monkeypatch.setattr(linear, "_CHUNK", 5)


def inputs(B=2, length=T, N=4, K=2, H=8, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return [jax.random.normal(key, (B, length, heads, H)) for key, heads in zip(keys, (N, K, K), strict=True)]


def able(name, which):
    """The masks of which a variant can serve this one."""
    mask, needs = MASKS[which]
    if needs - VARIANTS[name][2]:
        pytest.skip(f"{name} takes no {which}")
    return mask


@pytest.mark.rotates
@variants
@pytest.mark.parametrize("which", MASKS)
def test_a_variant_is_its_dense_form(name, which):
    variant, dense, _ = VARIANTS[name]
    mask = able(name, which)
    q, k, v = inputs()
    np.testing.assert_allclose(variant(q, k, v, mask), dense(q, k, v, mask), atol=2e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "nystrom"])  # whose landmarks divide the length
@pytest.mark.parametrize("length", [1, 2, 7, pytest.param(13, marks=pytest.mark.slow)])
def test_short_and_odd_lengths_are_the_dense_form(name, length):
    """One position, fewer than a block, and ends that fill none."""
    variant, dense, can = VARIANTS[name]
    q, k, v = inputs(length=length)
    lengths = Mask(lengths=jnp.array([length // 2, length]))
    for mask in (None, lengths, *([Mask(causal=True), Mask(causal=True) & lengths] if "causal" in can else [])):
        out, back = jax.vjp(lambda *x, mask=mask: variant(*x, mask), q, k, v)
        assert all(jnp.isfinite(slope).all() for slope in back(out))
        np.testing.assert_allclose(out, dense(q, k, v, mask), atol=2e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", [name for name in VARIANTS if "cross" in VARIANTS[name][0].supports])
@pytest.mark.parametrize(("T", "S"), [(1, 7), (7, 1)])
def test_one_query_or_one_key_of_another_sequence(name, T, S):
    variant, dense, _ = VARIANTS[name]
    q, (_, k, v) = inputs(length=T)[0], inputs(length=S)
    np.testing.assert_allclose(variant(q, k, v), dense(q, k, v, None), atol=2e-5)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "which"),
    share([(n, w) for n in ("local", "strided", "fixed", "linear", "performer") for w in ("none", "both")], 1, of=2),
)
def test_gradients_are_those_of_the_dense_form(name, which):
    variant, dense, _ = VARIANTS[name]
    mask, (q, k, v) = MASKS[which][0], inputs()
    ours, theirs = (
        jax.jit(jax.grad(lambda *x, f=f: (f(*x, mask) ** 2).sum(), (0, 1, 2)))(q, k, v) for f in (variant, dense)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert jnp.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=2e-4)


@pytest.mark.rotates
@variants
def test_vmap_equals_batch_and_jit_equals_eager(name):
    variant, *_ = VARIANTS[name]
    q, k, v = inputs()
    eager = variant(q, k, v, LENGTHS)
    np.testing.assert_allclose(jax.jit(variant)(q, k, v, LENGTHS), eager, atol=1e-5)
    np.testing.assert_allclose(jax.vmap(variant)(q, k, v, LENGTHS), eager, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", [name for name, (*_, can) in VARIANTS.items() if "causal" in can])
def test_nothing_of_the_future_is_seen(name):
    variant, *_ = VARIANTS[name]
    q, k, v = inputs(B=1, length=7, N=2, K=1, H=4)
    reach = jax.jit(jax.jacrev(lambda k, v: variant(q, k, v, Mask(causal=True)), (0, 1)))(k, v)
    for jacobian in reach:
        seen = jnp.abs(jacobian).sum((0, 2, 3, 4, 6, 7)) > 0
        assert not (seen & (jnp.arange(7) > jnp.arange(7)[:, None])).any()
    assert jnp.diag(seen).any()


@pytest.mark.parametrize("name", ["linear", "performer", "sparsemax", "entmax"])
def test_keys_have_no_order(name):
    variant, *_ = VARIANTS[name]
    q, k, v = inputs()
    order = jnp.array(np.random.default_rng(0).permutation(T))
    np.testing.assert_allclose(variant(q, k[:, order], v[:, order]), variant(q, k, v), atol=1e-5)


@pytest.mark.rotates
@variants
@pytest.mark.parametrize("kind", ["bfloat16", "float64"])
def test_types_go_through(name, kind):
    variant, *_ = VARIANTS[name]
    q, k, v = inputs()
    with jax.enable_x64(kind == "float64"):
        other = variant(*(jnp.asarray(x, kind) for x in (q, k, v)), LENGTHS)
        assert other.dtype == kind
    np.testing.assert_allclose(
        np.asarray(other, float), variant(q, k, v, LENGTHS), atol=0.06 if kind == "bfloat16" else 1e-5
    )


@pytest.mark.rotates
@variants
def test_rows_without_keys_are_zero_with_finite_gradients(name):
    variant, *_ = VARIANTS[name]
    mask = Mask(lengths=jnp.array([0, T]))
    out, back = jax.vjp(jax.jit(lambda q, k, v: variant(q, k, v, mask)), *inputs())
    assert (out[0] == 0).all()
    assert all(jnp.isfinite(gradient).all() for gradient in back(out + 1))


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["local", "strided", "fixed", "linear", "performer"])
def test_a_step_of_a_cache_is_a_row_of_the_whole(name):
    variant, *_ = VARIANTS[name]
    q, k, v = inputs()
    whole = variant(q, k, v, Mask(causal=True))
    step = jax.jit(lambda at: variant(q[:, 7:8], k, v, Mask(causal=True, offset=at)))(7)
    np.testing.assert_allclose(step, whole[:, 7:8], atol=1e-5)


def test_linear_attention_step_by_step_is_all_at_once():
    q, k, v = inputs()
    whole = LinearAttention()(q, k, v, Mask(causal=True))
    state = LinearState.empty((2,), 2, 8, 8)
    for t in range(T):
        y, state = linear_step(state, q[:, t], k[:, t], v[:, t])
        np.testing.assert_allclose(y, whole[:, t], atol=1e-5)


@pytest.mark.rotates
def test_random_features_are_unbiased_and_better_the_more_there_are():
    q, k, v = inputs(length=32)
    q, k = q / 2, k / 2
    exact = attention(q, k, v)

    def error(features):
        found = [PerformerAttention(features=features, seed=seed)(q, k, v) for seed in range(4)]
        return np.mean([jnp.linalg.norm(each - exact) / jnp.linalg.norm(exact) for each in found])

    errors = [error(features) for features in (16, 128, 1024)]
    assert errors[0] > 1.5 * errors[1] > 2.25 * errors[2]  # about as the root: 2.8 for 8 times as many
    x, y = q[0, 0, 0], k[0, 0, 0]
    draw = jax.vmap(lambda key: orthogonal_features(key, 8, 8))(jax.random.split(jax.random.key(1), 4000))
    kernel = jnp.exp(draw @ x - x @ x / 2) * jnp.exp(draw @ y - y @ y / 2)
    spread = kernel.mean(1).std() / 4000**0.5
    assert abs(kernel.mean() - jnp.exp(x @ y)) < 4 * spread


@pytest.mark.rotates
@pytest.mark.parametrize("normalise", [sparsemax, entmax])
def test_shares_are_exact_zeros_and_sum_to_one(normalise):
    logits = 3 * jax.random.normal(jax.random.key(0), (5, 40))
    shares = normalise(logits)
    assert (shares == 0).mean() > 0.4
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-5)
    assert (jnp.argsort(shares, -1)[:, -1] == jnp.argmax(logits, -1)).all()
    np.testing.assert_allclose(
        shares, halve(np.asarray(logits, float) / (1 + (normalise is entmax)), 1 + (normalise is entmax)), atol=1e-5
    )


@pytest.mark.rotates
@pytest.mark.parametrize("normalise", [sparsemax, entmax])
def test_slopes_of_shares_are_finite_differences(normalise):
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        logits, step, pull = (jnp.asarray(random.normal(size=(4, 9))) for _ in range(3))
        f = lambda logits: jnp.vdot(normalise(logits) ** 2, pull)  # noqa: E731
        by = (f(logits + 1e-6 * step) - f(logits - 1e-6 * step)) / 2e-6
        np.testing.assert_allclose(jnp.vdot(jax.grad(f)(logits), step), by, rtol=1e-6)
        np.testing.assert_allclose(jax.jvp(f, (logits,), (step,))[1], by, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("linear", dict(mask=Mask(window=2)), "linear attention cannot serve this call: it takes no window in a mask"),
        ("linear", dict(scale=1.0), "no scale of scores"),
        ("performer", dict(bias=jnp.zeros((4, T, T))), "no bias of scores"),
        ("nystrom", dict(mask=Mask(causal=True)), "nystrom attention cannot serve this call: it takes no causal mask"),
        ("strided", dict(mask=Mask(dense=jnp.ones((T, T), bool))), "no dense mask"),
        ("fixed", dict(dropout=Dropout(0.1, jax.random.key(0))), "no dropout of attention weights"),
        ("local", dict(mask=Mask(causal=True) | Mask(lengths=jnp.array(2))), None),
    ],
)
def test_what_a_variant_cannot_do_is_one_sentence(name, call, message):
    variant, *_ = VARIANTS[name]
    if message is None:
        assert variant.refuses(Call(*inputs(), **call)) is None
        return
    assert variant.refuses(Call(*inputs(), **call)) in message or message in variant.refuses(Call(*inputs(), **call))
    with pytest.raises(ValueError, match=message):
        variant(*inputs(), **call)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalAttention(window=-1), "both at least 0"),
        (lambda: LocalAttention(window=None), "needs a window"),
        (lambda: StridedAttention(stride=0), "a stride must be at least 1, got 0"),
        (lambda: FixedAttention(stride=4, summary=5), "1 position to a stride, got summary=5, stride=4"),
        (lambda: PerformerAttention(features=0), "at least 1, got 0"),
        (lambda: NystromAttention(landmarks=5)(*inputs()), "divide the length, got T=12, landmarks=5"),
        (lambda: StridedAttention()(*inputs(), Mask(causal=True, offset=jnp.array(0))), "its stride must be a number"),
        (lambda: StridedAttention(stride=2)(inputs()[0][:, :3], *inputs()[1:]), "another length than the keys"),
        (
            lambda: LocalAttention(window=2)(inputs()[0][:, :3], *inputs()[1:], Mask(dense=jnp.ones((3, T), bool))),
            "it goes by positions",
        ),
    ],
)
def test_options_and_shapes_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_all_variants_are_explained():
    q = jax.ShapeDtypeStruct((2, 96, 4, 8), jnp.float32)
    lines = explain_attention(q, q, q, dropout=Dropout(0.1, jax.random.key(0)), functions=NAMED).splitlines()
    assert [line.split()[0] for line in lines] == list(NAMED)
    assert "sparsemax  can" in lines
    assert "nystrom    cannot: it takes no dropout of attention weights" in lines


def test_a_window_wider_than_the_text_is_plain_attention():
    q, k, v = inputs()
    np.testing.assert_allclose(LocalAttention(window=1000)(q, k, v), attention(q, k, v), atol=1e-5)
