"""Calls outside of `jax.jit` compile what they need once: the second time they compile nothing."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.bench import Compilations
from flax_transformer.models.causal import Causal
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.nn import Block, Rotary, apply_stack, extend_stack, init_stack, transformer_block
from flax_transformer.ops import Dropout, Mask, attention, chunked_cross_entropy, multiply_rows, take_rows
from flax_transformer.ops.eager_call import reused
from tests.shares import share

GOLDEN = sorted((Path(__file__).parent / "golden").iterdir())
CONFIG = transformer_block(embed=16, heads=4, kv_heads=2, inner=32, dropout=0.1, rotary=Rotary())
X, KEY = jnp.ones((2, 6, 16)), jax.random.key(0)
TOKENS = jnp.ones((2, 6), jnp.int32)


def compiled(call):
    """Count the programs that a second call compiles."""
    jax.block_until_ready(call())
    with Compilations() as found:
        jax.block_until_ready(call())
    return found.count


@pytest.fixture(scope="module")
def block():
    return Block(CONFIG, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def stack():
    return init_stack(lambda r: Block(CONFIG, rngs=r), 2, key=KEY)


@pytest.mark.rotates
@pytest.mark.parametrize("options", [{}, {"key": KEY}, {"mask": Mask(causal=True, lengths=jnp.array([6, 3]))}])
def test_of_a_block(block, options):
    assert compiled(lambda: block(X, **options)) == 0


@pytest.mark.rotates
@pytest.mark.parametrize("options", [{}, {"key": KEY, "remat": "full"}, {"unroll": True}, {"mask": Mask(causal=True)}])
def test_of_a_stack(stack, options):
    assert compiled(lambda: apply_stack(stack, X, **options)) == 0


@pytest.mark.rotates
@pytest.mark.parametrize(
    "transform", [jax.grad, jax.jacfwd, lambda f: lambda s: jax.vmap(jax.grad(f))(s * jnp.ones(3))]
)
def test_of_derivatives_of_a_stack(stack, transform):
    loss = lambda scale: apply_stack(stack, scale * X, remat="full").sum()  # noqa: E731
    assert compiled(lambda: transform(loss)(1.0)) == 0


@pytest.mark.slow
def test_of_gradients_by_a_stack(stack):
    assert compiled(lambda: jax.grad(lambda stack: apply_stack(stack, X, key=KEY).sum())(stack)) == 0


def test_of_a_stack_with_a_cache(stack):
    cache = jax.vmap(lambda block: block.attention.init_cache(2, 8))(stack)
    assert compiled(lambda: extend_stack(stack, X[:, :1], cache)) == 0


@pytest.mark.parametrize("backend", ["auto", "xla", "blockwise"])
@pytest.mark.parametrize("mask", [None, Mask(causal=True, window=2, lengths=jnp.array([6, 3]))])
def test_of_attention(backend, mask):
    q = X.reshape(2, 6, 4, 4)
    assert compiled(lambda: attention(q, q, q, mask, jnp.ones((4, 6, 6)), backend=backend)) == 0
    if backend != "blockwise":
        assert compiled(lambda: attention(q, q, q, mask, dropout=Dropout(0.1, KEY), backend=backend)) == 0


def test_of_lookup_products_and_loss():
    table = jnp.ones((8, 16))
    assert compiled(lambda: take_rows(table, TOKENS)) == 0
    assert compiled(lambda: multiply_rows(table, X)) == 0
    assert compiled(lambda: chunked_cross_entropy(X, table, TOKENS, chunk=3)) == 0


@pytest.mark.rotates
@pytest.mark.parametrize("folder", share(GOLDEN, 1, of=14), ids=lambda folder: folder.name)
def test_of_every_familys_model(folder):
    model = hub.load(folder).model
    inputs = jax.tree.map(jnp.asarray, type(model).example_batch(model.cfg, 2, 8)["inputs"])
    assert compiled(lambda: model.hidden_states(**inputs)) == 0
    if isinstance(model, Causal):
        cache = model.prefill(TOKENS)[1].grow(8)
        assert compiled(lambda: model.step(cache, TOKENS[:, 0])) == 0
    elif isinstance(model, Seq2Seq):
        cache = model.init_cache(model.encode(inputs["source"]), None, 8)
        assert compiled(lambda: model.step(cache, TOKENS[:, 0])) == 0


def test_what_is_static_decides_the_program():
    """Also where Python takes two values for one: True for 1."""
    seen = []

    @reused
    def note(x, *rest, **options):
        seen.append((rest, options))
        return x + 1

    for rest, options in (
        ((1,), {}),
        ((True,), {}),
        ((1.0,), {}),
        ((), {"mode": "a"}),
        ((), {"mode": "b"}),
        ((1,), {}),
    ):
        note(X, *rest, **options)
    assert seen == [((1,), {}), ((True,), {}), ((1.0,), {}), ((), {"mode": "a"}), ((), {"mode": "b"})]
    assert [type(rest[0]) for rest, _ in seen[:3]] == [int, bool, float]
    assert note(X, Unhashable())[0, 0, 0] == 2


class Unhashable:
    __hash__ = None


def test_generation_sees_a_model_that_was_changed_in_place():
    pretrained = hub.load(next(folder for folder in GOLDEN if folder.name == "gpt2"))
    first = pretrained.decoder
    assert pretrained.decoder is first
    table = pretrained.model.embedding.token.embedding
    table[...] = 2 * table[...]
    assert jnp.array_equal(pretrained.decoder.embedding.token.embedding[...], table[...])
