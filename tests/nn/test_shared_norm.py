"""Sublayers side by side behind one norm, and biases that fall with distance, by what they must equal."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.compress import remove_heads
from flax_transformer.models.text.falcon import falcon_7b
from flax_transformer.nn import AlibiBias, AlibiConfig, transformer_block, with_fields
from flax_transformer.ops import Mask, alibi

BLOCK = transformer_block(embed=12, heads=3, inner=16, norm_position="pre", init_std=0.3)
ONE = replace(BLOCK, parallel=True, feedforward_residual=replace(BLOCK.residual, norm_position="none"))
TWO = replace(BLOCK, parallel=True)
X = jax.random.normal(jax.random.key(0), (2, 5, 12))


def pair():
    """Return a block with one norm, and that with two that are both as it is."""
    one, two = ONE.build(nnx.Rngs(1)), TWO.build(nnx.Rngs(1))
    one.attention_residual.norm.scale = nnx.Param(jnp.linspace(0.5, 2.0, 12))
    for name in ("attention", "feedforward", "attention_residual"):
        setattr(two, name, jax.tree.map(lambda leaf: leaf, getattr(one, name)))
    two.feedforward_residual.norm = jax.tree.map(lambda leaf: leaf, one.attention_residual.norm)
    return one, two


@pytest.mark.rotates
def test_one_norm_is_two_that_are_alike():
    one, two = pair()
    assert len(jax.tree.leaves(two)) == len(jax.tree.leaves(one)) + 2
    np.testing.assert_allclose(one(X), two(X), atol=1e-6)
    assert not np.allclose(one(X), replace_norm(one)(X), atol=1e-2)
    causal = Mask(causal=True)
    left, cache = one.extend(X[:, :3], one.init_cache(2, 5))
    right, _ = one.extend(X[:, 3:], cache)
    np.testing.assert_allclose(jnp.concatenate([left, right], 1), one(X, mask=causal), atol=1e-6)


def replace_norm(block):
    """Let the feed-forward layer see what is not normalised."""
    other = TWO.build(nnx.Rngs(1))
    for name in ("attention", "feedforward", "attention_residual"):
        setattr(other, name, getattr(block, name))
    return other


def test_its_gradient_is_the_sum_of_both():
    one, two = pair()
    loss = lambda block: jnp.sum(jnp.sin(block(X)))  # noqa: E731
    shared, apart = jax.grad(loss)(one), jax.grad(loss)(two)
    each = (apart.attention_residual.norm.scale, apart.feedforward_residual.norm.scale)
    np.testing.assert_allclose(shared.attention_residual.norm.scale[...], sum(part[...] for part in each), rtol=1e-4)


def test_alibi_is_scaled_and_has_no_parameters():
    bias = AlibiConfig(scale=0.5).build(3, causal=True, precision=BLOCK.attention.precision, rngs=nnx.Rngs(0))
    assert isinstance(bias, AlibiBias)
    assert not jax.tree.leaves(bias)
    np.testing.assert_array_equal(bias(2, 6, 3), 0.5 * alibi(3, 2, 6, 3))
    with pytest.raises(ValueError, match="scale must be above 0"):
        AlibiConfig(scale=0.0)


def test_rounded_slopes_have_the_digits_of_bfloat16():
    """In the positions of keys alone, which softmax cannot tell from distances."""
    options = {"precision": BLOCK.attention.precision, "rngs": nnx.Rngs(0)}
    bias = AlibiConfig(scale=0.5, rounded=True).build(6, causal=True, **options)(3, 700, 697)
    whole = np.asarray(alibi(6, 1, 2, 1)[:, 0, 0]).astype(jnp.bfloat16)  # minus the slopes
    keys = (-whole[:, None] * np.arange(700).astype(jnp.bfloat16)).astype(np.float32)
    np.testing.assert_array_equal(np.diff(bias[:, 0]), 0.5 * np.diff(keys))
    np.testing.assert_array_equal(bias[:, 1, 698], 0)
    assert np.abs(bias - 0.5 * alibi(6, 3, 700, 697)).max() > 0.1
    with pytest.raises(ValueError, match="of causal attention alone"):
        AlibiConfig(rounded=True).build(6, causal=False, **options)


SMALL = with_fields(falcon_7b(23), embed=12, heads=3, kv_heads=1, inner=16, depth=2, max_length=16, rotary=None)


def test_heads_with_slopes_are_not_removed():
    model = replace(SMALL, relative=AlibiConfig()).build(nnx.Rngs(0))
    importance = {"trunk.blocks.attention": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match="got a trunk with ALiBi"):
        remove_heads(model, 0.34, importance)
