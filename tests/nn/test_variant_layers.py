"""Layers of attention variants that have parameters, and models that train with each variant."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.text.big_bird import BlockSparseConfig
from flax_transformer.models.text.global_attention import GlobalAttentionConfig
from flax_transformer.nn import Attention, AttentionConfig, Block, transformer_block, with_fields
from flax_transformer.nn.linformer import LinformerAttention, LinformerConfig
from flax_transformer.nn.nystrom import NystromConfig
from flax_transformer.nn.talking_heads import TalkingConfig
from flax_transformer.ops import Mask
from flax_transformer.ops.attention.nystrom import NystromAttention
from flax_transformer.ops.attention.variants import VARIANTS
from flax_transformer.train.config import from_json, to_json

pytestmark = pytest.mark.proves("attention variants", "Linformer, Nyström, talking heads as layers; training with each")

COMMON = {"embed": 16, "heads": 4}
LAYERS = {
    "linformer": LinformerConfig(**COMMON, length=12, rank=4),
    "nystrom": NystromConfig(**COMMON, attend=NystromAttention(landmarks=4), window=3),
    "talking": TalkingConfig(**COMMON),
}


def drawn(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def test_talking_heads_are_the_papers_formula():
    layer = LAYERS["talking"].build(nnx.Rngs(0))
    x, mask = drawn(2, 5, 16), Mask(causal=True)
    q, k, v = (np.asarray(part(x), float) for part in (layer.query, layer.key, layer.value))
    before, after = (np.asarray(each[...], float) for each in (layer.before, layer.after))
    expected = np.zeros((2, 5, 4, 4))
    for b in range(2):
        for t in range(5):
            scores = np.array([[q[b, t, n] @ k[b, s, n] / 2 for s in range(t + 1)] for n in range(4)])
            mixed = before.T @ scores
            shares = np.exp(mixed) / np.exp(mixed).sum(-1, keepdims=True)
            for n, row in enumerate(after.T @ shares):
                expected[b, t, n] = row @ v[b, : t + 1, n]
    np.testing.assert_allclose(layer(x, mask=mask), layer.out(jnp.asarray(expected, jnp.float32)), atol=1e-5)


def test_heads_that_say_what_they_hear_are_plain_attention():
    layer = LAYERS["talking"].build(nnx.Rngs(0))
    plain = Attention(AttentionConfig(**COMMON), rngs=nnx.Rngs(0))
    layer.before[...] = layer.after[...] = jnp.eye(4)
    x, mask = drawn(2, 5, 16), Mask(causal=True, lengths=jnp.array([3, 5]))
    np.testing.assert_allclose(layer(x, mask=mask), plain(x, mask=mask), atol=1e-5)


@pytest.mark.rotates
def test_talking_heads_decode_as_they_read():
    layer = LAYERS["talking"].build(nnx.Rngs(0))
    x, cache = drawn(2, 5, 16), layer.init_cache(2, 5)
    whole = layer(x, mask=Mask(causal=True))
    for t in range(5):
        y, cache = layer.extend(x[:, t : t + 1], cache)
        np.testing.assert_allclose(y, whole[:, t : t + 1], atol=1e-5)


@pytest.mark.parametrize("share", ["none", "heads", "both"])
def test_linformer_is_attention_to_projected_keys(share):
    cfg = with_fields(LAYERS["linformer"], share=share)
    layer, x = cfg.build(nnx.Rngs(0)), drawn(2, 7, 16)
    q, k, v = (np.asarray(part(x)) for part in (layer.query, layer.key, layer.value))
    key = np.asarray(layer.summary_key[...])
    value = key if share == "both" else np.asarray(layer.summary_value[...])
    key, value = (np.broadcast_to(each, (4, 12, 4))[:, :7] for each in (key, value))
    k, v = np.einsum("bsnh,nsr->bnrh", k, key), np.einsum("bsnh,nsr->bnrh", v, value)
    shares = jax.nn.softmax(np.einsum("btnh,bnrh->bntr", q, k) / 2, axis=-1)
    expected = layer.out(jnp.einsum("bntr,bnrh->btnh", shares, v))
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)
    assert hasattr(layer, "summary_value") == (share != "both")


def test_linformer_hides_padding():
    layer, x = LAYERS["linformer"].build(nnx.Rngs(0)), drawn(2, 7, 16)
    y = layer(x, mask=Mask(lengths=jnp.array([4, 7])))
    np.testing.assert_allclose(y[0, :4], layer(x[:1, :4])[0], atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("name", LAYERS)
def test_vmap_equals_batch(name):
    layer, x = LAYERS[name].build(nnx.Rngs(0)), drawn(3, 12, 16)
    np.testing.assert_allclose(jax.vmap(layer)(x), layer(x), atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LAYERS["linformer"].build(nnx.Rngs(0))(drawn(1, 7, 16), mask=Mask(causal=True)), "a mask with causal"),
        (lambda: LAYERS["linformer"].build(nnx.Rngs(0))(drawn(1, 13, 16)), "projections for 12 positions, got 13"),
        (lambda: LAYERS["linformer"].build(nnx.Rngs(0)).init_cache(1, 4), "cannot be causal, and so has no cache"),
        (
            lambda: LinformerConfig(**COMMON, length=4, rank=5),
            "a rank must be at most the length, got rank=5, length=4",
        ),
        (lambda: NystromConfig(**COMMON, window=4), "an odd number of positions, got 4"),
        (lambda: TalkingConfig(**COMMON, kv_heads=2), "as many for keys as for queries, got N=4, K=2"),
        (lambda: TalkingConfig(**COMMON, attend=VARIANTS["linear"]), "itself, and takes no other attention function"),
        (lambda: GlobalAttentionConfig(**COMMON, attend=VARIANTS["linear"]), "takes no other attention function"),
        (lambda: BlockSparseConfig(**COMMON, attend=VARIANTS["linear"]), "takes no other attention function"),
    ],
)
def test_what_cannot_be_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_stack_of_linformers_has_projections_of_its_own():
    assert LinformerAttention(LAYERS["linformer"], rngs=nnx.Rngs(0)).summary_key.shape == (12, 4)


BLOCKS = {name: transformer_block(**COMMON, inner=32, attend=attend) for name, attend in VARIANTS.items()}
BLOCKS["nystrom"] = with_fields(BLOCKS["nystrom"], attend=NystromAttention(landmarks=4))
BLOCKS |= {f"{name} layer": with_fields(BLOCKS["local"], attention=cfg) for name, cfg in LAYERS.items()}


@pytest.mark.rotates
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_trains_with_each_and_is_written_as_text(name):
    cfg = BLOCKS[name]
    assert from_json(to_json(cfg)) == cfg
    block, x, y = Block(cfg, rngs=nnx.Rngs(0)), drawn(4, 12, 16), drawn(4, 12, 16, seed=1)
    optimizer = optax.adam(1e-2)

    @jax.jit
    def step(block, state):
        loss, slope = jax.value_and_grad(lambda block: ((block(x) - y) ** 2).mean())(block)
        updates, state = optimizer.update(slope, state)
        return optax.apply_updates(block, updates), state, loss, optax.global_norm(slope)

    state, losses = optimizer.init(block), []
    for _ in range(5):
        block, state, loss, norm = step(block, state)
        assert jnp.isfinite(norm)
        losses.append(float(loss))
    assert losses[-1] < losses[0]
