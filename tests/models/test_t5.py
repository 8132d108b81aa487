"""T5: published sizes, relative positions in decoding, and how it begins."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text import t5
from flax_transformer.nn import with_fields
from flax_transformer.ops import Mask
from flax_transformer.train.state import parameter_count
from tests.models.decoding import V, neither_future_nor_padding_is_seen, source, steps_equal_the_whole

pytestmark = pytest.mark.slow

PUBLISHED = {
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "t5_large": 737_668_096,
    "t5_v1_1_small": 76_961_152,
    "t5_v1_1_base": 247_577_856,
    "t5_v1_1_large": 783_150_080,
}
"""What the model cards of google-t5/t5-… and google/flan-t5-… count."""


def narrow(config):
    sizes = {"embed": 12, "heads": 3, "head_width": 5, "inner": 20, "depth": 2, "buckets": 4, "max_distance": 5}
    return with_fields(config, **sizes, output_scale=12**-0.5 if config.tied_output else 1.0)


@pytest.fixture(scope="module", params=[t5.t5_small, t5.t5_v1_1_small], ids=["v1_0", "v1_1"])
def model(request):
    model = Seq2Seq(narrow(request.param(V, dropout=0.0)), rngs=nnx.Rngs(0))
    for side in (model.encoder, model.decoder):  # large, so that a wrong position shows
        side.relative.bucket.embedding[...] *= 100
    return model


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    config = getattr(t5, name)()
    assert parameter_count(nnx.eval_shape(lambda: Seq2Seq(config, rngs=nnx.Rngs(0)))) == PUBLISHED[name]


@pytest.mark.parametrize("beams", [1, 3])
def test_steps_equal_the_whole(model, beams):
    steps_equal_the_whole(model, beams)


def test_steps_of_a_model_laid_out_for_decoding_equal_the_whole(model):
    steps_equal_the_whole(model.for_decoding(), beams=3)


def test_neither_future_nor_padding_is_seen(model):
    neither_future_nor_padding_is_seen(model)


def test_only_distances_matter(model):
    """Without its first tokens a source is encoded the same, but for what these said."""
    tokens, _ = source()
    padding = jnp.full((len(tokens), 3), 2)
    mask = jnp.arange(tokens.shape[1] + 3) >= 3
    encode = jax.jit(type(model).encode)
    moved = encode(model, jnp.concatenate([padding, tokens], 1), Mask(dense=mask[None, None, None]))[:, 3:]
    assert jnp.allclose(moved, encode(model, tokens), rtol=1e-4, atol=1e-5)


def test_logits_begin_of_order_one(model):
    tokens, lengths = source()
    logits = jax.jit(type(model).__call__)(model, tokens, tokens, lengths)
    assert 0.3 < float(jnp.std(logits)) < 3


def test_every_parameter_gets_a_gradient(model):
    tokens, lengths = source()
    loss = lambda m: jax.nn.log_softmax(m(tokens, tokens, lengths))[..., 5].sum()  # noqa: E731
    grads = jax.jit(jax.grad(loss))(model)
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(grads))
