"""One list of properties that every attention backend keeps; a new variant is one line in VARIANTS."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Dropout, Mask, attention, attention_weights, equal_heads, explain_attention
from flax_transformer.ops.attention import BACKENDS, blockwise, cudnn, splash
from flax_transformer.ops.attention.local import LocalAttention
from flax_transformer.ops.attention.splash import SplashAttention
from tests.shares import only, share

pytestmark = pytest.mark.proves("attention", "grouped queries, masks, bias, dropout, against `torch` and `jax.nn`")


# name: (attention function, what it can do)
VARIANTS = {
    "xla": (partial(attention, backend="xla"), {"bias", "dense", "offset", "union", "vmap", "jacobian"}),
    "blockwise": (partial(attention, backend="blockwise"), {"bias", "dense", "offset", "union", "vmap", "jacobian"}),
    "splash": (SplashAttention(interpret=True), set()),
    # A window wider than all texts here; a dense mask it takes of as many queries as keys alone.
    "local": (LocalAttention(window=99), {"bias", "offset", "union", "vmap", "jacobian"}),
}
variants = pytest.mark.parametrize("name", VARIANTS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Cut the short sequences of these tests into several blocks, with ragged ends."""
    monkeypatch.setattr(blockwise, "_BLOCK", 4)


def serve(name, *needs):
    attend, able = VARIANTS[name]
    if missing := set(needs) - able:
        pytest.skip(f"{name} has no {', '.join(missing)}")
    return attend


def inputs(B=2, T=9, S=11, N=4, K=2, H=8, seed=0):
    key = jax.random.split(jax.random.key(seed), 4)
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, H), (B, T, N, H)
    return [jax.random.normal(k, shape) for k, shape in zip(key, shapes, strict=True)]


def masks(B=2, T=9, S=11):
    key = jax.random.split(jax.random.key(9), 3)
    ids = jax.random.randint(key[0], (B, T), 0, 3), jax.random.randint(key[1], (B, S), 0, 3)
    return {
        "none": None,
        "causal": Mask(causal=True),
        "window": Mask(window=(2, 1)),
        "lengths": Mask(lengths=jnp.array([0, 5])),
        "causal-window-lengths": Mask(causal=True, window=2, lengths=jnp.array([4, 11])),
        "segments": Mask(segments=ids),
        "dense": Mask(dense=jax.random.bernoulli(key[2], 0.3, (1, 4, T, S))),
        "offset": Mask(causal=True, offset=jnp.array([0, -3])),
        "prefix": (Mask(causal=True) | Mask(lengths=jnp.array([0, 5]))) & Mask(lengths=jnp.array([10, 4])),
    }


NEEDS = {"dense": ["dense"], "offset": ["offset"], "prefix": ["union"]}


def with_gradients(attend, q, k, v, pull, mask, bias=None):
    @jax.jit
    def both(q, k, v, pull, mask, bias):
        out, back = jax.vjp(lambda q, k, v, bias: attend(q, k, v, mask, bias), q, k, v, bias)
        return jax.tree.leaves((out, back(pull)))

    return both(q, k, v, pull, mask, bias)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("biased", "which", "name"),
    share(product([False, True], masks(), [name for name in VARIANTS if name != "xla"]), 0, of=5),
)
def test_output_and_gradients_equal_xla(name, which, biased):
    attend = serve(name, *NEEDS.get(which, []), *(["bias"] if biased else []))
    mask = masks()[which]
    bias = jax.random.normal(jax.random.key(5), (1, 4, 9, 11)) if biased else None
    ours = with_gradients(attend, *inputs(), mask, bias)
    theirs = with_gradients(VARIANTS["xla"][0], *inputs(), mask, bias)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5)


@pytest.mark.rotates
@variants
@pytest.mark.parametrize(
    "shape",
    [(1, 4, 1, 11), (4, 9, 1), *(pytest.param(shape, marks=pytest.mark.slow) for shape in [(1, 1, 1), (2, 1, 9, 11)])],
)
def test_bias_gradient_sums_over_broadcast_axes(name, shape):
    attend = serve(name, "bias")
    q, k, v, pull = inputs()
    bias = jax.random.normal(jax.random.key(5), shape)
    short = with_gradients(attend, q, k, v, pull, None, bias)
    full = with_gradients(attend, q, k, v, pull, None, jnp.broadcast_to(bias, (2, 4, 9, 11)))
    aligned = (1,) * (4 - len(shape)) + shape
    wide = tuple(a for a in range(4) if aligned[a] == 1)
    np.testing.assert_allclose(short[-1], full[-1].sum(wide, keepdims=True).reshape(shape), atol=3e-5)
    np.testing.assert_allclose(short[0], full[0], atol=1e-6)


@pytest.mark.parity
@variants
@pytest.mark.parametrize("which", masks())
def test_parity_with_torch(name, which):
    torch = pytest.importorskip("torch")
    if which == "lengths":
        pytest.skip("torch gives NaN where nothing is visible")
    attend = serve(name, *NEEDS.get(which, []))
    mask, (q, k, v, _) = masks()[which], inputs()
    visible = None if mask is None else np.array(jnp.broadcast_to(mask.materialize(9, 11), (2, 4, 9, 11)))
    a, b, c = (torch.tensor(np.array(x)).transpose(1, 2) for x in (q, k, v))
    seen = np.ones((2, 9), bool) if visible is None else visible.any(-1)[:, :, :].all(1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        a, b, c, attn_mask=None if visible is None else torch.tensor(visible), enable_gqa=True
    ).transpose(1, 2)
    np.testing.assert_allclose(jax.jit(attend)(q, k, v, mask)[seen], expected.numpy()[seen], atol=1e-5)


@pytest.mark.rotates
@variants
@pytest.mark.parametrize(
    ("causal", "lengths"), only(product([False, True], [None, [4, 9]]), (False, None), (True, [4, 9]))
)
def test_parity_with_jax_nn(name, lengths, causal):
    q, k, v, _ = inputs(T=9, S=9)
    lengths = None if lengths is None else jnp.array(lengths)
    expected = jax.nn.dot_product_attention(
        q, k, v, is_causal=causal, key_value_seq_lengths=lengths, scale=0.5, implementation="xla"
    )
    ours = serve(name)(q, k, v, Mask(causal=causal, lengths=lengths), scale=0.5)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.rotates
@variants
def test_low_precision_stays_near_float32(name):
    q, k, v, _ = inputs()
    low = serve(name)(*(x.astype(jnp.bfloat16) for x in (q, k, v)))
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(jnp.float32), serve(name)(q, k, v), atol=0.03)


@pytest.mark.rotates
@variants
def test_causality_by_jacobian(name):
    attend = serve(name, "jacobian")
    q, k, v, _ = inputs(B=1, T=5, S=7, N=2, K=1, H=4)
    reach = jax.jit(jax.jacrev(lambda v: attend(q, k, v, Mask(causal=True))))(v)
    reach = jnp.abs(reach).sum((0, 2, 3, 4, 6, 7)) > 0
    np.testing.assert_array_equal(reach, jnp.arange(7) <= jnp.arange(5)[:, None] + 2)


@pytest.mark.rotates
@variants
def test_vmap_equals_batch(name):
    attend = serve(name, "vmap")
    q, k, v, _ = inputs()
    mask = Mask(causal=True, lengths=jnp.array([3, 11]))
    np.testing.assert_allclose(jax.vmap(attend)(q, k, v, mask), attend(q, k, v, mask), atol=1e-6)


@pytest.mark.rotates
@variants
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_any_number_of_batch_axes(name, batch):
    attend = jax.jit(serve(name))
    q, k, v, _ = inputs(B=6)
    q, k, v = (x[: np.prod(batch, dtype=int)].reshape(*batch, *x.shape[1:]) for x in (q, k, v))
    flat = attend(*(x.reshape(-1, *x.shape[-3:]) for x in (q, k, v)), Mask(causal=True))
    np.testing.assert_allclose(attend(q, k, v, Mask(causal=True)), flat.reshape(q.shape), atol=1e-6)


@variants
def test_jit_equals_eager(name):
    attend = serve(name)
    q, k, v, _ = inputs()
    mask = Mask(causal=True, lengths=jnp.array([3, 11]))
    np.testing.assert_allclose(jax.jit(attend)(q, k, v, mask), attend(q, k, v, mask), atol=1e-6)


@variants
def test_grouped_query_equals_repeated_heads(name):
    attend = jax.jit(serve(name))
    q, k, v, _ = inputs()
    repeated = attend(q, jnp.repeat(k, 2, axis=-2), jnp.repeat(v, 2, axis=-2), Mask(causal=True))
    np.testing.assert_allclose(attend(q, k, v, Mask(causal=True)), repeated, atol=1e-6)


@pytest.mark.rotates
@variants
def test_fully_masked_rows_are_zero_with_zero_gradients(name):
    attend = serve(name)
    q, k, v, pull = inputs()
    out, *gradients = with_gradients(attend, q, k, v, pull, Mask(lengths=jnp.array([0, 6])))
    assert (out[0] == 0).all()
    assert (out[1] != 0).all()
    for gradient in gradients:
        assert (gradient[0] == 0).all()
        assert jnp.isfinite(gradient[1]).all()


@pytest.mark.rotates
@variants
def test_rows_hidden_by_an_infinite_bias_are_zero(name):
    attend = serve(name, "bias")
    bias = jnp.zeros((1, 9, 11)).at[:, 3].set(-jnp.inf).at[:, 5, 2:].set(-jnp.inf)
    out, *gradients = with_gradients(attend, *inputs(), None, bias)
    assert (out[:, 3] == 0).all()
    assert (out[:, 5] != 0).all()
    assert all(jnp.isfinite(gradient).all() for gradient in gradients)


@variants
def test_offset_equals_slice_of_full(name):
    attend = jax.jit(serve(name, "offset"))
    q, k, v, _ = inputs(T=11)
    full = attend(q, k, v, Mask(causal=True, window=4))
    part = jax.jit(lambda start: attend(q[:, 3:6], k, v, Mask(causal=True, window=4, offset=start)))(3)
    np.testing.assert_allclose(part, full[:, 3:6], atol=1e-6)


def test_weights_mix_values_to_the_output():
    q, k, v, _ = inputs()
    weights = attention_weights(q, k, Mask(causal=True))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    mixed = jnp.einsum("bnts,bsnh->btnh", weights, jnp.repeat(v, 2, axis=-2))
    np.testing.assert_allclose(mixed, attention(q, k, v, Mask(causal=True)), atol=1e-5)


@pytest.mark.rotates
def test_forward_and_reverse_mode_agree():
    q, k, v, _ = inputs(B=1, T=3, S=3, N=2, K=1, H=4)
    attend = partial(attention, backend="xla", mask=Mask(causal=True))
    for argument in range(3):
        forward, reverse = (jax.jit(jac(attend, argument))(q, k, v) for jac in (jax.jacfwd, jax.jacrev))
        np.testing.assert_allclose(forward, reverse, atol=1e-6)


def test_dropout_of_weights_keeps_the_mean():
    q, k, v, _ = inputs()
    drop = jax.jit(lambda key: attention(q, k, v, dropout=Dropout(0.3, key)))
    draws = jax.lax.map(drop, jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(draws.mean(0), attention(q, k, v), atol=0.08)
    assert float(draws.std(0).min()) > 0
    np.testing.assert_array_equal(attention(q, k, v, dropout=Dropout(0.0, jax.random.key(0))), attention(q, k, v))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(k=(2, 11, 3, 8), v=(2, 11, 3, 8)), "multiple of kv heads, got N=4, K=3"),
        (dict(k=(2, 11, 2, 6), v=(2, 11, 2, 6)), "one head width, got 8 and 6"),
        (dict(v=(2, 10, 2, 8)), "keys and values must have one shape"),
        (dict(k=(3, 11, 2, 8), v=(3, 11, 2, 8)), "same batch axes"),
        (dict(q=(4, 8)), "heads, width"),
        (dict(bias=(2, 4, 9, 10)), r"bias must broadcast to \(2, 4, 9, 11\), got \(2, 4, 9, 10\)"),
        (dict(mask=Mask(lengths=jnp.ones(3, int))), "mask lengths must broadcast"),
        (dict(mask=Mask(dense=jnp.ones((9, 9), bool))), "mask dense must broadcast"),
        (dict(backend="flash"), "one of auto, ring, cudnn, splash, xla, blockwise, got 'flash'"),
        (dict(backend="splash"), "splash attention cannot serve this call: it needs a TPU"),
        (dict(backend="blockwise", dropout=Dropout(0.1, jax.random.key(0))), "no dropout"),
    ],
)
def test_errors_name_the_rule_and_the_values(change, message):
    call = dict(q=(2, 9, 4, 8), k=(2, 11, 2, 8), v=(2, 11, 2, 8)) | change
    call = {name: jnp.zeros(x) if isinstance(x, tuple) else x for name, x in call.items()}
    with pytest.raises(ValueError, match=message):
        inspect_free(attention)(**call)


def inspect_free(function):
    """Strip the runtime type check that tests add, to reach the function's own."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def test_every_backend_is_explained_and_one_is_chosen():
    q = jax.ShapeDtypeStruct((2, 9, 4, 8), jnp.float32)
    lines = explain_attention(q, q, q, Mask(causal=True), dropout=Dropout(0.1, jax.random.key(0))).splitlines()
    assert [line.split()[0] for line in lines] == list(BACKENDS)
    assert sum(line.endswith("chosen") for line in lines) == 1
    assert "blockwise  cannot: it takes no dropout of attention weights" in lines


def test_auto_goes_blockwise_for_long_sequences_only():
    def chosen(T, S):
        q, k = (jax.ShapeDtypeStruct((1, n, 4, 8), jnp.float32) for n in (T, S))
        return next(line.split()[0] for line in explain_attention(q, k, k).splitlines() if line.endswith("chosen"))

    assert [chosen(512, 512), chosen(1, 10**5), chosen(4096, 4096)] == ["xla", "xla", "blockwise"]


@pytest.mark.parametrize("backend", ["auto", "xla", "blockwise"])
@pytest.mark.parametrize(("B", "T", "S"), [(2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 3, 3)])
def test_nothing_to_attend_to_or_from_gives_zeros_and_no_gradient(backend, B, T, S):
    q, k, v, pull = inputs(B=B, T=T, S=S)
    bias, mask = jnp.zeros((4, T, S)), Mask(causal=True, lengths=jnp.zeros(B, int))
    out, back = jax.vjp(lambda *args: attention(*args, mask, bias, backend=backend), q, k, v)
    for x, like in zip((out, *back(pull)), (q, q, k, v), strict=True):
        np.testing.assert_array_equal(x, jnp.zeros_like(like))


def test_kernels_that_know_no_union_say_so(monkeypatch):
    monkeypatch.setattr(cudnn, "platform", lambda: "gpu")
    monkeypatch.setattr(splash, "platform", lambda: "tpu")
    q = jax.ShapeDtypeStruct((2, 12, 4, 64), jnp.bfloat16)
    said = explain_attention(q, q, q, Mask(causal=True) | Mask(lengths=jnp.array([3, 5])))
    assert [line for line in said.splitlines() if "it takes no union of masks" in line] == [
        "cudnn      cannot: it takes no union of masks", "splash     cannot: it takes no union of masks"
    ]  # fmt: skip
    assert "xla        chosen" in said


def test_blocks_that_no_part_of_a_union_shows_are_skipped():
    """A causal mask alone does without the last block of keys for the first queries, a prefix brings it back."""
    from flax_transformer.ops.attention.score_block import fix_mask, part_of, reaches

    def reached(mask):
        whole = fix_mask(mask, 8, 8, 4, 4)
        return [bool(reaches(part_of(whole, i, j, 4, 4), 4, 4)) for i in range(2) for j in range(2)]

    assert reached(Mask(causal=True)) == [True, False, True, True]
    assert reached(Mask(causal=True) | Mask(lengths=jnp.array([3, 2]))) == [True, False, True, True]
    assert reached(Mask(causal=True) | Mask(lengths=jnp.array([3, 5]))) == [True, True, True, True]


def test_a_function_that_knows_equal_heads_is_given_them():
    """Decorated, it is told apart by nothing from one that knows groups; its gradient sums over a group."""
    alone = equal_heads(plain)
    q, k, v, pull = inputs()
    mask = Mask(causal=True)
    ours, theirs = (with_gradients(attend, q, k, v, pull, mask) for attend in (alone, VARIANTS["xla"][0]))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert alone.__qualname__ == "plain"
    with pytest.raises(ValueError, match="multiple of kv heads, got N=4, K=3"):
        alone(q, k[:, :, [0, 0, 0]], v[:, :, [0, 0, 0]])


def plain(q, k, v, mask=None, bias=None, *, scale=None):
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(mask.materialize(q.shape[1], k.shape[1]), scores, -jnp.inf)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), v)


def test_an_offset_that_says_nothing_new_keeps_no_kernel_away(monkeypatch):
    monkeypatch.setattr(cudnn, "platform", lambda: "gpu")
    q = jax.ShapeDtypeStruct((2, 12, 4, 64), jnp.bfloat16)
    assert "cudnn      chosen" in explain_attention(q, q, q, Mask(causal=True, offset=0))
    for other in (1, jnp.array(0)):
        assert "cudnn      cannot" in explain_attention(q, q, q, Mask(causal=True, offset=other))
    q, k, v, _ = inputs(T=5, S=9)
    np.testing.assert_array_equal(
        attention(q, k, v, Mask(causal=True, offset=4)), attention(q, k, v, Mask(causal=True, offset=jnp.array(4)))
    )
