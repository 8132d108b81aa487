"""BART: published sizes, its two tables of positions, and decoding."""

import jax.numpy as jnp
import pytest
from flax import nnx

from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text import bart
from flax_transformer.nn import with_fields
from flax_transformer.train.state import parameter_count
from tests.models.decoding import V, neither_future_nor_padding_is_seen, source, steps_equal_the_whole

pytestmark = pytest.mark.slow

PUBLISHED = {"bart_base": 139_420_416, "bart_large": 406_291_456}
"""What the model cards of facebook/bart-… count."""


@pytest.fixture(scope="module")
def model():
    config = bart.bart_base(V, dropout=0.0)
    config = with_fields(config, embed=12, heads=3, inner=20, max_length=9, init_std=0.3, depth=2, output_bias=True)
    model = Seq2Seq(config, rngs=nnx.Rngs(0))
    model.output_bias[...] = jnp.linspace(-1, 1, V)
    return model


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    config = getattr(bart, name)()
    assert parameter_count(nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))) == PUBLISHED[name]


@pytest.mark.parametrize("beams", [1, 3])
def test_steps_equal_the_whole(model, beams):
    steps_equal_the_whole(model, beams)


def test_steps_of_a_model_laid_out_for_decoding_equal_the_whole(model):
    steps_equal_the_whole(model.for_decoding(), beams=3)


def test_neither_future_nor_padding_is_seen(model):
    neither_future_nor_padding_is_seen(model)


def test_each_side_has_positions_of_its_own(model):
    tokens, lengths = source()
    plain = model(tokens, tokens, lengths)
    model.source_embedding.position.embedding[...] += jnp.eye(11, 12)
    assert not jnp.allclose(model(tokens, tokens, lengths), plain)
    model.source_embedding.position.embedding[...] -= jnp.eye(11, 12)


def test_a_text_longer_than_the_positions_is_refused(model):
    with pytest.raises(ValueError, match="the input is longer than the positions: 10 tokens, 9 positions"):
        model.encode(jnp.ones((1, 10), int))
