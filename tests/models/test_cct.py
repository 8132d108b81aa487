"""The compact convolutional Transformer: published sizes, a stem that halves, a mean weighted by what a place says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.head import Head, HeadConfig
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.nn import StemConfig

PUBLISHED = {"cct_2_3x2": 0.28, "cct_4_3x2": 0.48, "cct_6_3x1": 3.23, "cct_7_3x1": 3.76}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    count = sum(leaf.size for leaf in jax.tree.leaves(abstract(find_preset(name)())))
    assert round(count / 1e6, 2) == PUBLISHED[name]


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize(("size", "grid"), [((8, 8), (2, 2)), ((9, 14), (3, 4)), ((1, 1), (1, 1))])
def test_a_stem_halves_and_rounds_up(pool, size, grid):
    cfg = StemConfig(embed=6, image=size, inner=(4,), channels=2, pool=pool)
    assert cfg.grid == grid
    shape = jax.eval_shape(lambda x: cfg.build(nnx.Rngs(0))(x), jax.ShapeDtypeStruct((3, *size, 2), jnp.float32))
    assert shape.shape == (3, grid[0] * grid[1], 6)


@pytest.mark.parametrize("channels", [1, 3])
def test_what_a_new_stem_gives_is_as_strong_as_pictures(channels):
    cfg = StemConfig(embed=128, image=(64, 64), inner=(64,), channels=channels, pool=False)
    images = np.random.default_rng(0).normal(size=(4, 64, 64, channels)).astype(np.float32)
    given = jax.jit(lambda x: cfg.build(nnx.Rngs(0))(x))(images)
    assert 0.75 < jnp.mean(given**2) < 1.25


def test_a_place_without_pixels_is_refused():
    with pytest.raises(ValueError, match="an image must have pixels, got 0×4"):
        StemConfig(embed=6, image=(0, 4))
    with pytest.raises(ValueError, match=r"inner must be widths of at least 1, got \(0,\)"):
        StemConfig(embed=6, image=(4, 4), inner=(0,))


def test_the_weighted_mean_is_by_the_softmax_of_scores():
    head = Head(HeadConfig(embed=5, outputs=0, pool="weighted"), rngs=nnx.Rngs(0))
    hidden = np.random.default_rng(0).normal(size=(2, 7, 5)).astype(np.float32)
    scores = hidden @ np.asarray(head.score.kernel[...])[:, 0]
    share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(head(jnp.asarray(hidden)), (share[..., None] * hidden).sum(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("small", "side"), [(True, 16), (False, 4)])
def test_a_small_stem_keeps_the_size(small, side):
    cfg = ResNetConfig(small=small, stem=4, widths=(4, 8), depths=(1, 1), block="basic")
    images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    assert jax.eval_shape(lambda x: cfg.build(nnx.Rngs(0)).feature_map(x), images).shape == (1, side, side, 8)
