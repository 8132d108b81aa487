"""GPT-2's sizes are those that were published."""

import math

import jax
import pytest
from flax import nnx

from flax_transformer.models.causal import Causal
from flax_transformer.models.text import gpt2

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
}
"""Parameters as the safetensors of openai-community/gpt2 and its larger kin hold them, the tied table once."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name):
    model = nnx.eval_shape(lambda: Causal(getattr(gpt2, name)(), rngs=nnx.Rngs(0)))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(model)) == PUBLISHED[name]


def test_the_tiny_one_has_the_sizes_of_nanogpt_on_a_cpu():
    config = gpt2.gpt2_tiny()
    sizes = (
        config.depth,
        config.block.embed,
        config.block.attention.heads,
        config.embedding.max_length,
        config.embedding.vocab,
    )
    assert sizes == (4, 128, 4, 64, 65)
    assert config.embedding.dropout == config.block.residual.dropout == config.block.attention.attention_dropout == 0
