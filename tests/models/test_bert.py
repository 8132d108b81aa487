"""BERT's presets have the published sizes."""

import jax
import pytest
from flax import nnx

from flax_transformer.models.encoder import MaskedLM
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.models.text.bert import bert_base_cased, bert_base_uncased, bert_large_uncased
from flax_transformer.parallel import path_name
from flax_transformer.train.state import parameter_count

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("preset", "encoder", "pretraining"),
    [
        (bert_base_uncased, 109_482_240, 110_106_428),
        (bert_base_cased, 108_310_272, 108_932_934),
        (bert_large_uncased, 335_141_888, 336_226_108),
    ],
)
def test_presets_have_the_published_sizes(preset, encoder, pretraining):
    """Of transformers' BertModel and BertForPreTraining; the paper rounds to 110 and 340 million."""
    config = preset()
    pooled = with_head(config.encoder, outputs=0, pool="first", dense="tanh")
    assert parameter_count(nnx.eval_shape(lambda: Classifier(pooled, rngs=nnx.Rngs(0)))) == encoder
    model = nnx.eval_shape(lambda: MaskedLM(config, rngs=nnx.Rngs(0)))
    assert parameter_count(model) == pretraining
    names = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)}
    assert {"encoder.embedding.type.embedding", "sentence.output.kernel", "output_bias"} < names
