"""Longformer and BigBird: published sizes, windows of layers, global tokens, and what they refuse."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.encoder import MaskedLM
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.models.text.big_bird import BigBird, bigbird_roberta_base, bigbird_roberta_large
from flax_transformer.models.text.longformer import Longformer, longformer_base_4096, longformer_large_4096
from flax_transformer.nn import AttentionConfig, with_fields
from flax_transformer.ops import Mask, capture
from flax_transformer.train.state import parameter_count

SMALL = {"vocab": 50, "embed": 16, "heads": 2, "inner": 24, "max_length": 64}
LONG = replace(
    with_fields(longformer_base_4096(dropout=0.0).encoder, **SMALL, depth=2, attention_dropout=0.0), windows=(4, 2)
)
BIRD = with_fields(
    bigbird_roberta_base(dropout=0.0).encoder, **SMALL, depth=2, attention_dropout=0.0, block_size=2, random_blocks=1
)
TOKENS = jax.random.randint(jax.random.key(0), (2, 30), 4, 50)


@pytest.fixture(scope="module")
def long():
    return Longformer(with_fields(LONG, init_std=0.3), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def bird():
    return BigBird(with_fields(BIRD, init_std=0.3), rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("preset", "encoder", "masked"),
    [
        (longformer_base_4096, 148_659_456, 148_711_257),
        (longformer_large_4096, 434_600_960, 434_653_273),
        (bigbird_roberta_base, 127_468_800, 128_112_824),
        (bigbird_roberta_large, 359_123_968, 360_228_024),
    ],
)
def test_presets_have_the_published_sizes(preset, encoder, masked):
    """Of transformers' models alone, LongformerForMaskedLM and BigBirdForPreTraining."""
    config = preset()
    pooled = with_head(config.encoder, outputs=0, pool="first", dense="tanh")
    assert parameter_count(nnx.eval_shape(lambda: Classifier(pooled, rngs=nnx.Rngs(0)))) == encoder
    assert parameter_count(nnx.eval_shape(lambda: MaskedLM(config, rngs=nnx.Rngs(0)))) == masked


def moved(model, at, **inputs):
    """Say which positions of the first row change when the token at one does."""
    before = model.hidden_states(TOKENS, **inputs)
    after = model.hidden_states(TOKENS.at[0, at].add(1), **inputs)
    return np.flatnonzero(np.abs(after - before)[0].max(-1) > 1e-6).tolist()


@pytest.mark.rotates
def test_a_token_is_seen_as_far_as_the_windows_of_all_layers_reach(long):
    assert moved(long, 15) == list(range(12, 19))  # 4 / 2 + 2 / 2 on either side


@pytest.mark.rotates
def test_a_global_token_is_seen_by_all_and_sees_all(long):
    places = jnp.array([[15], [3]])
    assert moved(long, 15, global_positions=places) == list(range(30))
    # The first layer brings a token to the global one, the second to all.
    assert moved(long, 2, global_positions=places) == list(range(30))


@pytest.mark.rotates
@pytest.mark.parametrize("places", [None, jnp.array([[15, -1], [3, 7]])])
def test_the_weights_that_it_marks_are_those_it_mixes_values_by(long, places):
    layer = jax.tree.map(lambda leaf: leaf[0], long.trunk.blocks).attention
    x, lengths = jax.random.normal(jax.random.key(1), (2, 30, 16)), jnp.array([30, 21])
    given = {} if places is None else {"global_positions": places}
    mask = Mask(window=2, lengths=lengths)
    y, (weights,) = capture(lambda x: layer(x, mask=mask, **given), "attention_weights")(x)
    real = np.arange(30) < lengths[:, None]
    np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(real[:, None], (2, 2, 30)), atol=1e-5)
    mixed = jnp.einsum("bnts,bsnh->btnh", weights, layer.value(x))
    if places is not None:  # what global tokens see has values of its own
        far = jnp.einsum("bnts,bsnh->btnh", weights, layer.everywhere.value(x))
        chosen = (places[..., None] == jnp.arange(30)).any(1)
        mixed = jnp.where(chosen[..., None, None], far, mixed)
    np.testing.assert_allclose(y, layer.out(mixed), atol=1e-5)


@pytest.mark.rotates
def test_leading_tokens_are_global_where_nobody_says(long):
    cfg = replace(long.cfg, leading=1)
    leading = jax.tree.unflatten(
        jax.tree.structure(nnx.eval_shape(lambda: Longformer(cfg, rngs=nnx.Rngs(0)))), jax.tree.leaves(long)
    )
    said = long.hidden_states(TOKENS, global_positions=jnp.zeros((1, 1), jnp.int32))
    np.testing.assert_array_equal(leading.hidden_states(TOKENS), said)
    none = leading.hidden_states(TOKENS, global_positions=jnp.full((1, 1), -1))
    np.testing.assert_allclose(none, long.hidden_states(TOKENS), atol=1e-6)


@pytest.mark.rotates
def test_a_place_named_twice_counts_once_and_one_of_padding_never(long):
    lengths = jnp.array([30, 20])
    once = long.hidden_states(TOKENS, lengths=lengths, global_positions=jnp.array([[7, 9], [4, -1]]))
    twice = long.hidden_states(TOKENS, lengths=lengths, global_positions=jnp.array([[7, 9, 7], [4, 25, 4]]))
    np.testing.assert_allclose(twice[0], once[0], atol=1e-6)
    np.testing.assert_allclose(twice[1, :20], once[1, :20], atol=1e-6)


@pytest.mark.parametrize("name", ["long", "bird"])
def test_padding_says_nothing(name, request):
    model = request.getfixturevalue(name)
    lengths = jnp.array([30, 21])
    other = TOKENS.at[1, 21:].set(9)
    before, after = (model.hidden_states(tokens, lengths=lengths)[1, :21] for tokens in (TOKENS, other))
    np.testing.assert_array_equal(before, after)


def test_blocks_are_drawn_in_training_alone_or_always(bird):
    assert np.array_equal(bird.draw(30), bird.draw(30))
    assert bird.draw(30).shape == (2, 2, 13, 1)
    quiet = bird.hidden_states(TOKENS)
    trained = bird.hidden_states(TOKENS, key=jax.random.key(1))
    assert np.abs(quiet - trained).max() > 1e-3
    np.testing.assert_array_equal(trained, bird.hidden_states(TOKENS, key=jax.random.key(2)))


@pytest.mark.rotates
def test_short_texts_are_attended_to_in_full(bird):
    short = TOKENS[:, :14]  # 5 + 2R blocks of 2
    plain = with_fields(bird.cfg, sparse=False)
    full = jax.tree.unflatten(
        jax.tree.structure(nnx.eval_shape(lambda: BigBird(plain, rngs=nnx.Rngs(0)))), jax.tree.leaves(bird)
    )
    np.testing.assert_array_equal(bird.hidden_states(short), full.hidden_states(short))
    assert np.abs(bird.hidden_states(TOKENS) - full.hidden_states(TOKENS)).max() > 1e-3


def test_places_out_of_range_are_refused_or_poison_their_row(long):
    with pytest.raises(ValueError, match=r"in \[0, 30\), or -1 for none, got 3 to 30"):
        long.hidden_states(TOKENS, global_positions=jnp.array([[3], [30]]))
    found = jax.jit(lambda at: long.hidden_states(TOKENS, global_positions=at))(jnp.array([[3], [30]]))
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


def test_what_a_window_cannot_be_is_refused(long):
    for change, rule in (
        ({"windows": (3, 2)}, r"even numbers of at least 2, half on either side, got \(3, 2\)"),
        ({"windows": ()}, "even numbers"),
        ({"windows": (2, 2, 2)}, r"layers must be a multiple of the windows, got L=2, windows=\(2, 2, 2\)"),
        ({"leading": -1}, "leading must be at least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=rule):
            replace(LONG, **change)
    plain = AttentionConfig(embed=16, heads=2)
    with pytest.raises(ValueError, match="must be a GlobalAttentionConfig, got AttentionConfig"):
        replace(LONG, block=replace(LONG.block, attention=plain))
    with pytest.raises(ValueError, match="must be a BlockSparseConfig, got AttentionConfig"):
        replace(BIRD, block=replace(BIRD.block, attention=plain))
    with pytest.raises(ValueError, match="longer than the positions: 65 tokens, 64 positions"):
        long.hidden_states(jnp.ones((1, 65), jnp.int32))


def test_masks_that_are_more_than_padding_are_refused(long):
    for mask in (Mask(causal=True), Mask(segments=(TOKENS, TOKENS)), Mask(dense=jnp.ones((30, 30), bool))):
        with pytest.raises(ValueError, match="takes a mask that hides padding"):
            long(TOKENS, mask=mask)
    attention = Longformer(LONG, rngs=nnx.Rngs(0)).cfg.block.attention.build(nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"needs a mask with a window, such as Mask\(window=256\)"):
        attention(jnp.ones((1, 4, 16)))
    with pytest.raises(ValueError, match="has no cache"):
        attention.init_cache(1, 8)


def cost(model, T):
    tokens = jnp.zeros((1, T), jnp.int32)
    compiled = jax.jit(lambda model: model.hidden_states(tokens)).lower(model).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.rotates
@pytest.mark.parametrize("config", [replace(LONG, windows=(32, 16), leading=1), with_fields(BIRD, block_size=16)])
def test_memory_of_a_model_is_linear_in_the_length(config):
    model = nnx.eval_shape(lambda: with_fields(config, max_length=8192).build(nnx.Rngs(0)))
    assert 3.5 < cost(model, 8192) / cost(model, 2048) < 4.6
