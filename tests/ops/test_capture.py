"""Captured values equal those computed by hand, whatever they are wrapped in, and marking them costs nothing."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import (
    Block,
    EmbeddingConfig,
    TrunkConfig,
    apply_stack,
    init_stack,
    transformer_block,
    with_fields,
)
from flax_transformer.nn.stack import layer
from flax_transformer.objective import TokenLoss
from flax_transformer.ops import Mask, attention_weights, capture
from flax_transformer.ops.attention import xla
from tests.batch import taught
from tests.shares import only

pytestmark = pytest.mark.proves("capture", "named values of a pure function, through jit, scan and remat")

CFG = transformer_block(embed=24, heads=4, kv_heads=2, inner=16, norm_position="pre", cross=True)
DROPPING = with_fields(CFG, attention_dropout=0.5)
WEIGHTS = "attention_weights"
normal = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)  # noqa: E731


def block_run(block, x, memory, **options):
    return block(x, memory, mask=Mask(causal=True), memory_mask=Mask(lengths=jnp.array([3, 6])), **options)


def by_hand(block, x, memory):
    """Compute a pre-norm block's two weight arrays from its projections."""
    h = block.attention_residual.norm(x)
    first = attention_weights(block.attention.query(h), block.attention.key(h), Mask(causal=True))
    x = x + block.attention(h, mask=Mask(causal=True))
    h = block.cross_residual.norm(x)
    return first, attention_weights(block.cross.query(h), block.cross.key(memory), Mask(lengths=jnp.array([3, 6])))


@pytest.fixture(scope="module")
def case():
    stack = init_stack(lambda rngs: Block(CFG, rngs=rngs), 3, key=jax.random.key(0))
    return stack, normal(1, 2, 5, 24), normal(2, 2, 6, 24)


def stack_run(stack, x, memory, **options):
    return apply_stack(stack, x, memory, mask=Mask(causal=True), memory_mask=Mask(lengths=jnp.array([3, 6])), **options)


@pytest.mark.rotates
def test_a_block_shows_what_its_projections_give(case):
    stack, x, memory = case
    block = layer(stack, 0)
    y, found = jax.jit(capture(block_run, WEIGHTS))(block, x, memory)
    np.testing.assert_allclose(y, jax.jit(block_run)(block, x, memory), atol=1e-6)
    assert [w.shape for w in found] == [(2, 4, 5, 5), (2, 4, 5, 6)]
    for got, expected in zip(found, by_hand(block, x, memory), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.fixture(scope="module")
def layers_by_hand(case):
    stack, h, memory = case
    show, step, expected = jax.jit(by_hand), jax.jit(block_run), []
    for i in range(3):
        expected.append(show(layer(stack, i), h, memory))
        h = step(layer(stack, i), h, memory)
    return h, expected


@pytest.mark.rotates
@pytest.mark.parametrize(("remat", "unroll"), [("none", 1), ("none", 2), ("none", True), ("full", 1), ("dots", True)])
def test_a_stack_shows_every_layer(case, layers_by_hand, remat, unroll):
    y, found = jax.jit(capture(partial(stack_run, remat=remat, unroll=unroll), WEIGHTS))(*case)
    last, by_layer = layers_by_hand
    np.testing.assert_allclose(y, last, atol=1e-5)
    for i, expected in enumerate(by_layer):
        for got, weights in zip(found, expected, strict=True):
            np.testing.assert_allclose(got[i], weights, atol=2e-6)


@pytest.mark.rotates
def test_weights_are_distributions_over_what_is_visible(case):
    own, cross = jax.jit(capture(stack_run, WEIGHTS))(*case)[1]
    assert own.shape == (3, 2, 4, 5, 5)
    np.testing.assert_allclose(own.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(cross.sum(-1), 1, atol=1e-6)
    assert (np.triu(np.asarray(own), 1) == 0).all()
    assert (cross[:, 0, ..., 3:] == 0).all()
    assert (cross[:, 1] > 0).all()


@pytest.mark.rotates
def test_dropout_does_not_touch_what_is_shown(case):
    _, x, memory = case
    block = layer(init_stack(lambda r: Block(DROPPING, rngs=r), 1, key=jax.random.key(0)), 0)
    run = partial(block_run, key=jax.random.key(3))
    y, found = jax.jit(capture(run, WEIGHTS))(block, x, memory)
    np.testing.assert_allclose(found[0].sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(y, jax.jit(run)(block, x, memory), atol=1e-5)
    assert np.abs(y - jax.jit(block_run)(block, x, memory)).max() > 1e-2


def seq2seq(**options):
    block = transformer_block(embed=16, heads=2, inner=16)
    cfg = Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=11, embed=16),
        encoder=TrunkConfig(block=block, depth=3, **options),
        decoder=TrunkConfig(block=replace(block, cross=block.attention), depth=2, **options),
    )
    return jax.jit(lambda: Seq2Seq(cfg, rngs=nnx.Rngs(0)))()


@pytest.mark.rotates
def test_a_whole_model_shows_encoder_decoder_and_cross():
    source, target, lengths = jnp.ones((2, 7), int), jnp.ones((2, 5), int), jnp.array([7, 4])
    model = seq2seq()
    expected = jax.jit(Seq2Seq.__call__)(model, source, target, lengths)
    logits, found = jax.jit(capture(Seq2Seq.__call__, WEIGHTS))(model, source, target, lengths)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    assert [w.shape for w in found] == [(3, 2, 2, 7, 7), (2, 2, 2, 5, 5), (2, 2, 2, 5, 7)]


def test_compiled_equals_eager(case):
    eager = capture(stack_run, WEIGHTS)
    for a, b in zip(jax.tree.leaves(eager(*case)), jax.tree.leaves(jax.jit(eager)(*case)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_it_composes_with_vmap_and_grad(case):
    stack, x, memory = case
    block = layer(stack, 0)
    apart = capture(lambda x, m: block(x, m), WEIGHTS)
    together = jax.vmap(apart)(x, memory)[1]
    np.testing.assert_allclose(together[1], capture(lambda x, m: block(x, m), WEIGHTS)(x, memory)[1][1], atol=1e-6)

    @jax.jit
    def entropy(block):
        weights = capture(block_run, WEIGHTS)(block, x, memory)[1][0]
        return -(weights * jnp.log(weights + 1e-9)).sum()

    slope = jax.grad(entropy)(block).attention.query.kernel[...]
    nudge = jnp.zeros_like(slope).at[0, 0, 0].set(1e-2)
    moved = lambda sign: entropy(jax.tree.map(lambda a: a + sign * nudge if a is kernel else a, block))  # noqa: E731
    kernel = next(a for path, a in jax.tree_util.tree_leaves_with_path(block) if "query" in str(path) and a.ndim == 3)
    assert float(moved(1) - moved(-1)) / 2e-2 == pytest.approx(float(slope[0, 0, 0]), rel=2e-2, abs=2e-3)


mark = lambda x: checkpoint_name(x, "seen")  # noqa: E731


@jax.custom_jvp
def doubled(x):
    return mark(2 * x)


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


@jax.custom_vjp
def tripled(x):
    return mark(3 * x)


tripled.defvjp(lambda x: (tripled(x), None), lambda _, g: (3 * g,))


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (lambda x: mark(x) + 1, [5]),
        (lambda x: (checkpoint_name(x, "unseen"), mark(x + 1)), [6]),
        (jax.jit(lambda x: mark(mark(x) + 1)), [5, 6]),
        (jax.checkpoint(mark), [5]),
        (doubled, [10]),
        (tripled, [15]),
        (lambda x: {"pair": mark({"a": x, "b": 2 * x})}, [5, 10]),
    ],
    ids=["plain", "other names", "jit", "remat", "custom_jvp", "custom_vjp", "pytree"],
)
def test_marks_are_found_in_program_order(wrap, expected):
    value = jnp.float32(5)
    result, found = capture(wrap, "seen")(value)
    assert [float(v) for v in found] == expected
    assert jax.tree.structure(result) == jax.tree.structure(wrap(value))
    assert jax.tree.leaves(result) == jax.tree.leaves(wrap(value))


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_in_loops_give_an_axis_each(reverse):
    table = jnp.arange(12.0).reshape(3, 4)

    def row(total, xs):
        def cell(total, x):
            return mark(total + x), mark(-x)

        return jax.lax.scan(cell, total, xs, reverse=reverse)

    def f(table):
        before = mark(table[0, 0])
        return before, jax.lax.scan(row, jnp.float32(0), table)

    result, (first, sums, negatives) = capture(f, "seen")(table)
    jax.tree.map(np.testing.assert_array_equal, result, f(table))
    assert float(first) == 0
    np.testing.assert_array_equal(negatives, -table)
    rows = table[:, ::-1] if reverse else table
    expected = jnp.cumsum(rows.ravel()).reshape(3, 4)
    np.testing.assert_array_equal(sums[:, ::-1] if reverse else sums, expected)


@pytest.mark.parametrize(
    ("f", "kind"),
    [
        (lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: mark(x) + 1, x), "while"),
        (lambda x: jax.lax.cond(x > 3, mark, jnp.sin, x), "cond"),
    ],
)
def test_marks_that_may_not_run_once_are_refused(f, kind):
    with pytest.raises(ValueError, match=f"must not be inside '{kind}'.*got 'seen'"):
        capture(f, "seen")(jnp.float32(5))


@pytest.mark.parametrize(
    ("f", "marked"),
    [
        (lambda x: x, "nothing"),
        (lambda x: checkpoint_name(mark(x), "later"), "seen, later"),
        (lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: mark(x) + 1, x), "seen"),
    ],
)
def test_a_name_that_marks_nothing_is_answered_with_those_that_do(f, marked):
    with pytest.raises(ValueError, match=f"what f marks: {marked}; got 'sen'"):
        capture(f, "sen")(jnp.float32(5))


@pytest.mark.slow
@pytest.mark.parametrize("remat", only(["none", "full", "dots"], "full"))
def test_the_mark_leaves_no_trace_in_what_is_compiled(remat, monkeypatch):
    model = seq2seq(remat=remat)
    batch = taught(jnp.ones((2, 7), int), jnp.array([7, 4]), jnp.ones((2, 5), int), jnp.array([5, 2]))

    def lower():
        jax.clear_caches()
        step = jax.value_and_grad(lambda m, b: TokenLoss()(m, b)[0])
        return [jax.jit(f).lower(model, batch).as_text() for f in (step, lambda m, b: TokenLoss()(m, b)[0])]

    marked = lower()
    monkeypatch.setattr(xla, "checkpoint_name", lambda x, name: x)
    assert lower() == marked


@pytest.mark.parity
def test_weights_equal_torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(24, 4, batch_first=True)
    x, memory = (np.array(normal(seed, 2, n, 24)) for seed, n in ((3, 5), (4, 6)))
    with torch.no_grad():
        expected = theirs(
            *map(torch.tensor, (x, memory, memory)),
            need_weights=True,
            average_attn_weights=False,
            key_padding_mask=torch.arange(6)[None] >= torch.tensor([3, 6])[:, None],
        )
    from flax_transformer.nn.attention import Attention

    ours = Attention(replace(CFG.attention, kv_heads=None), rngs=nnx.Rngs(0))
    q, k, _ = (w.detach().numpy().T.reshape(24, 4, 6) for w in theirs.in_proj_weight.chunk(3))
    kernels = {"query": q, "key": k}
    ours = jax.tree_util.tree_map_with_path(
        lambda path, leaf: next(
            (jnp.asarray(v) for n, v in kernels.items() if n in str(path) and leaf.ndim == 3), leaf
        ),
        ours,
    )
    run = lambda m, x, memory: m(x, memory, mask=Mask(lengths=jnp.array([3, 6])))  # noqa: E731
    (found,) = capture(run, WEIGHTS)(ours, jnp.asarray(x), jnp.asarray(memory))[1]
    np.testing.assert_allclose(found, expected[1].numpy(), atol=1e-6)
