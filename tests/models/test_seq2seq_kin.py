"""PEGASUS, mBART, M2M-100 and a Marian of two vocabularies: published sizes, decoding, what neither side sees."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.marian import marian
from flax_transformer.nn import Embedding, EmbeddingConfig, with_fields
from flax_transformer.ops import Mask, sinusoidal_spanning
from flax_transformer.train.state import parameter_count
from tests.models.decoding import V, neither_future_nor_padding_is_seen, source, steps_equal_the_whole

PUBLISHED = {
    "pegasus_large": 570_797_056 - 2 * 1024 * 1024,
    "mbart_large_cc25": 610_851_840,
    "mbart_large_50": 610_879_488,
    "m2m100_418m": 483_905_536,
    "m2m100_1_2b": 1_239_470_080,
    "nllb_200_distilled_600m": 615_073_792,
    "nllb_200_1_3b": 1_370_638_336,
}
"""What transformers counts of the published config.json; of PEGASUS without two tables of sinusoids."""


@pytest.mark.rotates
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    assert parameter_count(abstract(find_preset(name)())) == PUBLISHED[name]


def small(name):
    config = marian(V) if name == "two vocabularies" else find_preset(name)(V)
    config = with_fields(config, embed=12, heads=3, inner=20, max_length=9, init_std=0.3, depth=2, layer_drop=0.0)
    if name == "two vocabularies":
        config = replace(config, source_embedding=replace(config.embedding, vocab=V + 5))
    return Seq2Seq(with_fields(config, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0), rngs=nnx.Rngs(0))


@pytest.fixture(
    scope="module",
    params=[
        "mbart_large_cc25",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("pegasus_large", "m2m100_418m", "two vocabularies")),
    ],
)
def model(request):
    return small(request.param)


@pytest.mark.rotates
def test_steps_equal_the_whole(model):
    steps_equal_the_whole(model, beams=3)


@pytest.mark.slow
def test_steps_of_a_model_laid_out_for_decoding_equal_the_whole(model):
    steps_equal_the_whole(model.for_decoding(), beams=1)


@pytest.mark.slow
def test_neither_future_nor_padding_is_seen(model):
    neither_future_nor_padding_is_seen(model)


@pytest.mark.rotates
def test_positions_of_a_source_are_those_that_are_given():
    """Padding in front, which positions do not count, changes nothing."""
    model, (tokens, lengths) = small("m2m100_418m"), source()
    plain = model.encode(tokens, lengths)
    padded = np.pad(tokens, ((0, 0), (2, 0)), constant_values=1)
    seen = jnp.arange(padded.shape[1]) - 2
    mask = (seen >= 0) & (seen < lengths[:, None])
    moved = model.encode({"tokens": padded, "positions": seen}, Mask(dense=mask[:, None, None]))
    real = np.asarray(seen[2:] < lengths[:, None])
    np.testing.assert_allclose(moved[:, 2:][real], plain[real], rtol=1e-5, atol=1e-5)
    same = model.encode({"tokens": padded}, Mask(dense=mask[:, None, None]))
    assert not np.allclose(same[:, 2:][real], plain[real], atol=1e-3)


def test_padding_has_no_position_in_the_sinusoids_of_fairseq():
    config = EmbeddingConfig(vocab=9, embed=8, position="sinusoidal_spanning", offset=3)
    embedding = Embedding(config, rngs=nnx.Rngs(0))
    tokens = jnp.array([[4, 2, 2, 5]])
    bare = embedding.take(tokens) * 8**0.5
    places = embedding(tokens) - bare
    np.testing.assert_allclose(places[0, 1:3], 0, atol=1e-6)
    np.testing.assert_allclose(places[0, [0, 3]], sinusoidal_spanning(jnp.array([3, 6]), 8), atol=1e-6)
