"""LayerDrop: a row goes through the blocks that it keeps, and through no part of the others."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.text.transformer import transformer_base
from flax_transformer.models.text.universal_trunk import UniversalConfig
from flax_transformer.nn import TrunkConfig, layer, transformer_block, with_fields

pytestmark = pytest.mark.proves("kernels with zeros", "LayerDrop: a row is what the blocks it keeps make of it")

BLOCK = transformer_block(embed=8, heads=2, inner=12, norm_position="post")
X = jnp.asarray(np.random.default_rng(0).normal(size=(16, 5, 8)), jnp.float32)


def subsets(trunk, x):
    """Return what each subset of the blocks makes of x."""
    found = {}
    for kept in itertools.product([False, True], repeat=trunk.cfg.depth):
        y = x
        for index in np.flatnonzero(kept).tolist():
            y = layer(trunk.blocks, index)(y)
        found[kept] = y
    return found


@pytest.mark.rotates
def test_a_row_is_what_the_blocks_that_it_keeps_make_of_it():
    trunk = TrunkConfig(block=BLOCK, depth=3, layer_drop=0.5).build(nnx.Rngs(0))
    seen, possible = [], subsets(trunk, X)
    run = jax.jit(lambda trunk, key: trunk(X, key=key))
    for seed in range(8):
        for row, y in enumerate(run(trunk, jax.random.key(seed))):
            fits = [kept for kept, each in possible.items() if np.allclose(each[row], y, atol=1e-5)]
            assert len(fits) == 1
            seen += fits
    np.testing.assert_allclose(np.mean(seen, axis=0), 0.5, atol=0.15)  # of 128 draws, 3.4 standard deviations
    assert len(set(seen)) == 8  # blocks go independently of each other
    np.testing.assert_allclose(trunk(X), possible[True, True, True], atol=1e-5)


def test_what_blocks_tell_beside_is_told_all_the_same():
    trunk = TrunkConfig(block=BLOCK, depth=3, layer_drop=0.5).build(nnx.Rngs(0))
    key = jax.random.key(1)
    y, aux = trunk.observe(X, key=key)
    np.testing.assert_allclose(y, trunk(X, key=key), atol=1e-6)
    assert aux == {}


@pytest.mark.rotates
def test_a_dropped_block_has_no_gradient():
    trunk = TrunkConfig(block=BLOCK, depth=3, layer_drop=0.5).build(nnx.Rngs(0))
    one, key = X[:1], jax.random.key(3)
    (kept,) = (kept for kept, each in subsets(trunk, one).items() if np.allclose(each, trunk(one, key=key), atol=1e-5))
    assert 0 < sum(kept) < 3
    gradient = jax.grad(lambda trunk: (trunk(one, key=key) ** 2).sum())(trunk)
    sizes = np.abs(np.asarray(gradient.blocks.feedforward.up.kernel[...])).sum((1, 2))
    assert ((sizes > 0) == np.array(kept)).all()


@pytest.mark.rotates
def test_both_sides_of_a_translator_drop_layers():
    config = with_fields(transformer_base(20, dropout=0.0), embed=8, heads=2, inner=12, depth=2, layer_drop=0.5)
    model, tokens = config.build(nnx.Rngs(0)), jnp.arange(12).reshape(3, 4)
    whole, dropped = model(tokens, tokens), model(tokens, tokens, key=jax.random.key(0))
    assert np.isfinite(dropped).all()
    assert not np.allclose(whole, dropped, atol=1e-3)


def test_what_cannot_be_is_refused():
    for rate in (1.0, -0.1):
        with pytest.raises(ValueError, match=r"layer_drop must be in \[0, 1\), got"):
            TrunkConfig(block=BLOCK, layer_drop=rate)
    with pytest.raises(ValueError, match=r"steps that share one block have no layers to drop, got layer_drop=0\.1"):
        UniversalConfig(block=BLOCK, layer_drop=0.1)
