"""Marian: the published size, and decoding."""

import jax.numpy as jnp
import pytest
from flax import nnx

from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.marian import marian
from flax_transformer.models.text.transformer import transformer_base
from flax_transformer.nn import with_fields
from flax_transformer.train.state import parameter_count
from tests.models.decoding import V, neither_future_nor_padding_is_seen, steps_equal_the_whole

pytestmark = pytest.mark.slow


def count(config):
    return parameter_count(nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0))))


@pytest.fixture(scope="module")
def model():
    config = marian(V, dropout=0.0)
    config = with_fields(config, embed=12, heads=3, inner=20, init_std=0.3, depth=2)
    model = Seq2Seq(config, rngs=nnx.Rngs(0))
    model.output_bias[...] = jnp.linspace(-1, 1, V)
    return model


def test_the_preset_has_the_published_size():
    """Of opus-mt-en-de: transformers counts two tables of 512 sinusoids, and not the bias of the output layer."""
    assert count(marian()) == 74_410_496 - 2 * 512 * 512 + 58_101


def test_it_is_the_model_of_2017_with_a_bias():
    assert count(marian(37_000)) == count(transformer_base(37_000)) + 37_000


@pytest.mark.parametrize("beams", [1, 3])
def test_steps_equal_the_whole(model, beams):
    steps_equal_the_whole(model, beams)


def test_steps_of_a_model_laid_out_for_decoding_equal_the_whole(model):
    steps_equal_the_whole(model.for_decoding(), beams=3)


def test_neither_future_nor_padding_is_seen(model):
    neither_future_nor_padding_is_seen(model)
