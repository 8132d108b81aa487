"""Encoder-decoders of other parts: any encoder before our decoder, and a model that recurs in the same loops."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.decode import Beam, Greedy, beam_search, greedy
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.protocol import EncoderDecoder, SourceEncoder
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import (
    EmbeddingConfig,
    FeedForwardConfig,
    Residual,
    ResidualConfig,
    Trunk,
    TrunkConfig,
    transformer_block,
    with_fields,
)
from flax_transformer.ops import Mask
from tests.shares import only

D, V = 16, 12
TABLE = EmbeddingConfig(vocab=V, embed=D)
BLOCK = transformer_block(embed=D, heads=2, inner=24)
DECODER = TrunkConfig(block=replace(BLOCK, cross=BLOCK.attention), depth=2)


@dataclass(frozen=True, kw_only=True)
class HalvingConfig:
    """An encoder of images [*B, S, 3] that joins every two positions to one, without attention."""

    width: int = D

    def build(self, rngs):
        return Halving(self, rngs=rngs)


class Halving(nnx.Module):
    def __init__(self, cfg, *, rngs):
        self.dense = nnx.Linear(6, cfg.width, rngs=rngs)

    def __call__(self, source, *, mask=None, key=None):
        return jnp.tanh(self.dense(source.reshape(*source.shape[:-2], -1, 6)))

    def memory_mask(self, mask):
        return None if mask is None else Mask(lengths=-(-mask.lengths // 2))


@pytest.fixture(scope="module")
def captioner():
    return Seq2Seq(Seq2SeqConfig(embedding=TABLE, encoder=HalvingConfig(), decoder=DECODER), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def pictures():
    return jax.random.normal(jax.random.key(1), (3, 8, 3)), jnp.array([8, 4, 2])


def decode(model, source, lengths, config, bos=1):
    """Decode by the protocol alone."""
    beams = config.beams if isinstance(config, Beam) else 1
    cache = model.init_cache(model.encode(source, lengths), lengths, config.stages[0], beams=beams)
    prompt, step = jnp.full(len(source), bos, jnp.int32), partial(type(model).step, model)
    grow = lambda cache, length: cache.grow(length)  # noqa: E731
    if beams == 1:
        return greedy(step, cache, prompt, config, grow=grow)
    return beam_search(step, cache, prompt, config, reorder=lambda cache, rows: cache.reorder(rows), grow=grow)


@pytest.mark.slow
def test_steps_of_a_model_with_another_encoder_equal_the_whole(captioner, pictures):
    source, lengths = pictures
    target = jax.random.randint(jax.random.key(2), (3, 5), 0, V)
    whole = captioner(source, target, lengths)
    cache = captioner.init_cache(captioner.encode(source, lengths), lengths, 5)
    for t in range(5):
        logits, cache = captioner.step(cache, target[:, t])
        np.testing.assert_allclose(logits, whole[:, t], rtol=1e-4, atol=1e-5)
    apart = captioner.for_decoding()
    np.testing.assert_allclose(apart(source, target, lengths), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.rotates
def test_the_encoder_says_what_of_its_output_is_padding(captioner, pictures):
    source, lengths = pictures
    target = jnp.ones((3, 4), int)
    noise = jnp.where(jnp.arange(8)[:, None] < lengths[:, None, None], source, 9.0)
    np.testing.assert_allclose(captioner(noise, target, lengths), captioner(source, target, lengths), atol=1e-5)
    assert not jnp.allclose(captioner(noise, target), captioner(source, target), atol=1e-3)


BEAM = Beam(max_length=6, eos=2, beams=3, n_best=2)


@pytest.mark.rotates
@pytest.mark.parametrize("config", only([Greedy(max_length=6, eos=()), BEAM], BEAM))
def test_another_encoder_decodes_and_learns(captioner, pictures, config):
    found = decode(captioner, *pictures, config)
    alone = decode(captioner, pictures[0][1:2], pictures[1][1:2], config)
    np.testing.assert_array_equal(alone.tokens[0], found.tokens[1])
    slope = jax.grad(lambda m: (m(pictures[0], jnp.ones((3, 4), int)) ** 2).sum())(captioner)
    assert jnp.abs(slope.encoder.dense.kernel[...]).max() > 0


@pytest.mark.rotates
def test_an_encoder_with_an_embedding_of_its_own_is_an_encoder_too():
    encoder = EncoderConfig(embedding=replace(TABLE, vocab=40), block=BLOCK, depth=1)
    model = Seq2Seq(Seq2SeqConfig(embedding=TABLE, encoder=encoder, decoder=DECODER), rngs=nnx.Rngs(0))
    assert isinstance(model.encoder, SourceEncoder)
    source, target = jnp.array([[39, 5, 31, 2]]), jnp.array([[1, 3, 4]])
    short = model(source[:, :3], target)
    np.testing.assert_allclose(model(source, target, jnp.array([3])), short, rtol=1e-4, atol=1e-5)


def test_encoders_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="encoder must be a TrunkConfig, or a config with build"):
        Seq2SeqConfig(embedding=TABLE, encoder=TABLE, decoder=DECODER)
    with pytest.raises(ValueError, match="no source_embedding before it"):
        Seq2SeqConfig(embedding=TABLE, encoder=HalvingConfig(), decoder=DECODER, source_embedding=TABLE)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """What a recurrent decoder carries; it needs no more room for more tokens."""

    hidden: Any

    def reorder(self, rows):
        return State(self.hidden[rows])

    def grow(self, length):
        return self


class Recurrent(nnx.Module):
    """Two GRUs: one reads the source, the other goes on from the state it ends in."""

    def __init__(self, *, rngs):
        self.table = nnx.Embed(V, D, rngs=rngs)
        self.reader, self.writer = (nnx.GRUCell(D, D, rngs=nnx.Rngs(rngs.params())) for _ in range(2))
        self.out = nnx.Linear(D, V, rngs=rngs)

    def encode(self, source, lengths=None, *, key=None):
        state = jnp.zeros((source.shape[0], D))
        for t in range(source.shape[1]):
            read = self.reader(state, self.table(source[:, t]))[0]
            state = read if lengths is None else jnp.where(t < lengths[:, None], read, state)
        return state

    def init_cache(self, memory, lengths, length, *, beams=1):
        return State(jnp.repeat(memory, beams, axis=0))

    def step(self, cache, token):
        hidden, _ = self.writer(cache.hidden, self.table(token))
        return self.out(hidden), State(hidden)


@pytest.mark.slow
def test_a_recurrent_model_decodes_in_the_same_loops():
    model = nnx.eval_shape(lambda: Recurrent(rngs=nnx.Rngs(0)))
    keys = jax.random.split(jax.random.key(5), len(jax.tree.leaves(model)))
    shapes, treedef = jax.tree.flatten(model)
    floats = [
        jax.random.normal(k, s.shape, s.dtype) if jnp.issubdtype(s.dtype, jnp.floating) else s
        for k, s in zip(keys, shapes, strict=True)
    ]
    model = treedef.unflatten(floats)
    source, lengths = jax.random.randint(jax.random.key(6), (2, 5), 3, V), jnp.array([5, 3])
    found = decode(model, source, lengths, Greedy(max_length=6, eos=()))
    state, token = model.init_cache(model.encode(source, lengths), lengths, 6), jnp.ones(2, int)
    for t in range(6):
        logits, state = model.step(state, token)
        token = logits.argmax(-1)
        np.testing.assert_array_equal(found.best.tokens[:, t], token)
    best = decode(model, source, lengths, Beam(max_length=6, eos=(), beams=V, n_best=1))
    assert (best.best.logprobs.sum(-1) >= found.best.logprobs.sum(-1) - 1e-4).all()


def test_what_decodes_says_so(captioner):
    assert isinstance(captioner, EncoderDecoder)
    assert isinstance(nnx.eval_shape(lambda: Recurrent(rngs=nnx.Rngs(0))), EncoderDecoder)
    assert isinstance(captioner.encoder, SourceEncoder)
    assert not isinstance(captioner.decoder.blocks, SourceEncoder)


@dataclass(frozen=True, kw_only=True)
class MixingConfig:
    """A block of one's own: a convolution in place of attention, and our feed-forward layer."""

    residual: ResidualConfig
    feedforward: FeedForwardConfig

    @property
    def embed(self):
        return self.residual.embed

    def build(self, rngs):
        return Mixing(self, rngs=rngs)


class Mixing(nnx.Module):
    def __init__(self, cfg, *, rngs):
        self.conv = nnx.Conv(cfg.embed, cfg.embed, kernel_size=3, rngs=rngs)
        self.conv_residual = Residual(cfg.residual, rngs=rngs)
        self.feedforward = cfg.feedforward.build(rngs)
        self.feedforward_residual = Residual(cfg.residual, rngs=rngs)

    def __call__(self, x, *, drop_path=None, key=None):
        keys = (None, None) if key is None else jax.random.split(key)
        x = self.conv_residual(x, lambda x, key: self.conv(x), key=keys[0], drop_path=drop_path)
        return self.feedforward_residual(x, self.feedforward, key=keys[1], drop_path=drop_path)


@pytest.mark.slow
def test_a_trunk_of_blocks_of_ones_own_is_the_source_of_a_decoder():
    block = MixingConfig(
        residual=ResidualConfig(embed=D, norm_position="pre"), feedforward=FeedForwardConfig(embed=D, inner=24)
    )
    sides = {"encoder": TrunkConfig(block=block, depth=3, drop_path=0.3), "decoder": DECODER}
    model = Seq2Seq(Seq2SeqConfig(embedding=TABLE, **sides), rngs=nnx.Rngs(0))
    source, target = jax.random.randint(jax.random.key(7), (2, 2, 9), 0, V)
    assert model(source, target).shape == (2, 9, V)
    x = model.embedding(source)
    by_hand = x
    for i in range(3):
        by_hand = jax.tree.map(lambda leaf, i=i: leaf[i], model.encoder.blocks)(by_hand)
    np.testing.assert_allclose(model.encoder(x), model.encoder.norm(by_hand), rtol=1e-4, atol=1e-5)
    assert not jnp.allclose(model.encoder(x, key=jax.random.key(0)), model.encoder(x))
    with pytest.raises(ValueError, match="block must be a config of a block, as BlockConfig is, got EmbeddingConfig"):
        TrunkConfig(block=TABLE)


@pytest.mark.rotates
def test_depth_and_width_are_said_once():
    config = with_fields(Seq2SeqConfig(embedding=TABLE, encoder=TrunkConfig(block=BLOCK), decoder=DECODER), depth=3)
    assert (config.encoder.depth, config.decoder.depth) == (3, 3)
    trunk = Trunk(config.encoder, rngs=nnx.Rngs(0))
    assert trunk(jnp.ones((2, 4, D))).shape == (2, 4, D)
