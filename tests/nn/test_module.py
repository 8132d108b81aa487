"""A module refuses what is not its config, in the library's words, before it looks into it."""

import contextlib
import copy
import re

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
from flax_transformer.ops import Mask

BLOCK = transformer_block(embed=8, heads=2, inner=8)


@pytest.mark.parametrize(
    ("module", "cfg", "words"),
    [
        (Attention, BLOCK, "Attention is made from an AttentionConfig, got TransformerBlockConfig"),
        (FeedForward, BLOCK.attention, "FeedForward is made from a FeedForwardConfig, got AttentionConfig"),
        (Residual, BLOCK, "Residual is made from a ResidualConfig, got TransformerBlockConfig"),
        (Block, None, "Block is made from a SublayersConfig, got None"),
        (Embedding, 30, "Embedding is made from an EmbeddingConfig, got 30"),
        (Trunk, BLOCK, "Trunk is made from a TrunkConfig, got TransformerBlockConfig"),
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


CROSS = TrunkConfig(block=transformer_block(embed=8, heads=2, inner=8, cross=True, norm_position="pre"), depth=2)


def lowered(function, *arguments, **options):
    return jax.jit(function).lower(*arguments).as_text(**options)


class Mine(nnx.Module):
    """Not of this library; what is in it is."""

    def __init__(self, *, rngs):
        self.first, self.second = (FeedForward(BLOCK.feedforward, rngs=rngs) for _ in range(2))

    def __call__(self, x):
        return self.second(self.first(x))


@pytest.mark.rotates
def test_operations_are_named_by_their_modules():
    """By the attributes they are, a block of a stack and a module that is in none by its class, derivatives too."""
    trunk = nnx.eval_shape(lambda: Trunk(CROSS, rngs=nnx.Rngs(0)))
    x = jax.ShapeDtypeStruct((2, 4, 8), "float32")
    said = lowered(jax.grad(lambda trunk, x: trunk(x, x).sum()), trunk, x, debug_info=True)
    for scope in ("attention_residual/attention", "cross_residual/cross", "feedforward_residual/feedforward"):
        assert f"Block/{scope}/dot_general" in said
    assert re.search(r"/jvp\(Trunk\)/(jit\(run\)/)?while", said)  # JAX from 0.12 on names what is jitted within
    assert re.search(r"transpose\(jvp\(Trunk\)\)/(jit\(run\)/)?while", said)
    said = lowered(lambda mine, x: mine(x), nnx.eval_shape(lambda: Mine(rngs=nnx.Rngs(0))), x, debug_info=True)
    assert "FeedForward/dot_general" in said


@pytest.mark.slow
def test_names_are_all_that_they_add_to_a_program(monkeypatch):
    trunk, x = nnx.eval_shape(lambda: Trunk(CROSS, rngs=nnx.Rngs(0))), jax.ShapeDtypeStruct((2, 4, 8), "float32")
    step = lambda trunk, x: jax.grad(lambda trunk: trunk(x, x, key=jax.random.key(0)).sum())(trunk)  # noqa: E731
    named = lowered(step, trunk, x)
    jax.clear_caches()
    with monkeypatch.context() as patch:
        patch.setattr(jax, "named_scope", lambda name: contextlib.nullcontext())
        assert "Block/" not in lowered(step, trunk, x, debug_info=True)
        assert lowered(step, trunk, x) == named
    jax.clear_caches()


def test_a_module_that_calls_itself_is_named_once():
    feedforward = nnx.eval_shape(lambda: FeedForward(BLOCK.feedforward, rngs=nnx.Rngs(0)))
    x = jax.ShapeDtypeStruct((2, 4, 8), "float32")
    assert "FeedForward/FeedForward" not in lowered(lambda f, x: f(x), feedforward, x, debug_info=True)


@pytest.mark.rotates
def test_tabulate_takes_masks_and_modules_within_modules():
    block = Block(BLOCK, rngs=nnx.Rngs(0))
    x = np.ones((2, 4, 8), np.float32)
    for mask in (None, Mask(causal=True), Mask(lengths=jax.numpy.array([2, 4]))):
        assert "attention/query" in nnx.tabulate(block, x, mask=mask, console_kwargs={"width": 400})
