"""RoBERTa: published sizes, and positions that count tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.models.encoder import MaskedLM
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.models.text.roberta import roberta_base, roberta_large, token_positions
from flax_transformer.train.state import parameter_count

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("preset", "encoder", "masked"),
    [(roberta_base, 124_645_632, 124_697_433), (roberta_large, 355_359_744, 355_412_057)],
)
def test_presets_have_the_published_sizes(preset, encoder, masked):
    """Of transformers' RobertaModel and RobertaForMaskedLM; the paper rounds to 125 and 355 million."""
    config = preset()
    pooled = with_head(config.encoder, outputs=0, pool="first", dense="tanh")
    assert parameter_count(nnx.eval_shape(lambda: Classifier(pooled, rngs=nnx.Rngs(0)))) == encoder
    assert parameter_count(nnx.eval_shape(lambda: MaskedLM(config, rngs=nnx.Rngs(0)))) == masked


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 3))
def test_positions_count_the_tokens_that_are_not_padding(tokens, pad):
    found = token_positions(jnp.array(tokens), pad).tolist()
    assert [p for p in found if p >= 0] == list(range(sum(t != pad for t in tokens)))
    assert [p == -1 for p in found] == [t == pad for t in tokens]


def test_positions_of_a_batch_are_those_of_its_rows():
    tokens = jax.random.randint(jax.random.key(0), (2, 3, 7), 0, 3)
    rows = [[token_positions(row).tolist() for row in group] for group in tokens]
    np.testing.assert_array_equal(token_positions(tokens), rows)
