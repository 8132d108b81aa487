"""MPNet: the published size, and relative positions beside those of its table."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.encoder import Encoder
from flax_transformer.models.head import with_head
from flax_transformer.models.preset import abstract
from flax_transformer.models.text.mpnet import mpnet_base
from flax_transformer.nn import with_fields
from flax_transformer.train.state import parameter_count


def test_the_preset_has_the_published_size():
    """Of transformers' MPNetModel and MPNetForMaskedLM."""
    pooled = with_head(mpnet_base().encoder, outputs=0, pool="first", dense="tanh")
    assert parameter_count(abstract(pooled)) == 109_486_464
    assert parameter_count(abstract(mpnet_base())) == 109_518_527


@pytest.mark.rotates
@pytest.mark.parametrize("table", [False, True])
def test_an_order_is_told_by_distances_without_the_table_of_positions(table):
    config = with_fields(mpnet_base(50, dropout=0.0).encoder, embed=12, heads=3, inner=20, depth=2, init_std=0.5)
    model = Encoder(config, rngs=nnx.Rngs(0))
    if not table:
        model.embedding.position.embedding[...] *= 0
    model.trunk.relative.bucket.embedding[...] *= 50
    tokens = jnp.arange(3, 11)[None]
    turned = model(tokens[:, ::-1])[:, ::-1]
    assert np.abs(model(tokens) - turned).max() > 1e-2
    model.trunk.relative.bucket.embedding[...] *= 0
    np.testing.assert_equal(np.allclose(model(tokens), model(tokens[:, ::-1])[:, ::-1], atol=1e-5), not table)
