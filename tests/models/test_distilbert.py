"""DistilBERT's preset has the published size."""

import pytest
from flax import nnx

from flax_transformer.models.encoder import Encoder, MaskedLM
from flax_transformer.models.text.distilbert import distilbert_base_uncased
from flax_transformer.train.state import parameter_count

pytestmark = pytest.mark.slow


def test_presets_have_the_published_sizes():
    """Of transformers' DistilBertModel and DistilBertForMaskedLM; the paper rounds to 66 million."""
    config = distilbert_base_uncased()
    assert parameter_count(nnx.eval_shape(lambda: Encoder(config.encoder, rngs=nnx.Rngs(0)))) == 66_362_880
    assert parameter_count(nnx.eval_shape(lambda: MaskedLM(config, rngs=nnx.Rngs(0)))) == 66_985_530
