"""A module refuses what is not its config, in the library's words, before it looks into it."""

import copy

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.encoder import Encoder
from flax_transformer.models.text.bert import bert_base_uncased
from flax_transformer.nn import (
    Attention,
    Block,
    Embedding,
    FeedForward,
    Residual,
    Trunk,
    TrunkConfig,
    transformer_block,
)

BLOCK = transformer_block(embed=8, heads=2, inner=8)


@pytest.mark.parametrize(
    ("module", "cfg", "words"),
    [
        (Attention, BLOCK, "Attention is made from an AttentionConfig, got BlockConfig"),
        (FeedForward, BLOCK.attention, "FeedForward is made from a FeedForwardConfig, got AttentionConfig"),
        (Residual, BLOCK, "Residual is made from a ResidualConfig, got BlockConfig"),
        (Block, None, "Block is made from a BlockConfig, got None"),
        (Embedding, 30, "Embedding is made from an EmbeddingConfig, got 30"),
        (Trunk, BLOCK, "Trunk is made from a TrunkConfig, got BlockConfig"),
        (Encoder, TrunkConfig(block=BLOCK), "Encoder is made from an EncoderConfig, got TrunkConfig"),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_the_config_of_another_module_is_refused(module, cfg, words, named):
    with pytest.raises(ValueError, match=words):
        module(cfg=cfg, rngs=nnx.Rngs(0)) if named else module(cfg, rngs=nnx.Rngs(0))


def test_a_subclass_of_the_config_will_do():
    small = bert_base_uncased(vocab=10).encoder
    nnx.eval_shape(lambda: Trunk(small, rngs=nnx.Rngs(0)))


def test_a_module_is_copied_as_it_is():
    block = Block(BLOCK, rngs=nnx.Rngs(0))
    jax.tree.map(np.testing.assert_array_equal, copy.deepcopy(block), block)
