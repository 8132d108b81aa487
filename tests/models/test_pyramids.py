"""Swin, PVT, SegFormer and BEiT: published sizes, images of any number, size and number format, drop-path, refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.head import with_head
from flax_transformer.models.preset import abstract, find_preset
from flax_transformer.models.vision.beit import BeitConfig
from flax_transformer.models.vision.pvt import PVTConfig
from flax_transformer.models.vision.segformer import SegFormerConfig
from flax_transformer.models.vision.swin import SwinConfig
from flax_transformer.models.vision.window_attention import WindowConfig
from flax_transformer.nn import (
    Grid,
    GridAttentionConfig,
    GridBiasConfig,
    GridBlockConfig,
    PatchConfig,
    transformer_block,
    with_fields,
    with_precision,
)
from tests.shares import only, share

PUBLISHED = {
    "swin_tiny": 28_288_354, "swin_small": 49_606_258, "swin_base": 87_768_224, "swin_large": 196_532_476,
    "pvt_tiny": 13_229_288, "pvt_small": 24_485_864, "pvt_medium": 44_208_104, "pvt_large": 61_369_320,
    "mit_b0": 3_576_392, "segformer_b0": 3_753_206, "segformer_b1": 13_716_310, "segformer_b5": 84_710_230,
    "beit_base_patch16": 86_530_984, "beit_large_patch16": 304_430_568,
}  # fmt: skip
LIKE = transformer_block(embed=8, heads=2, inner=12, norm_position="pre", activation="gelu", init_std=0.3)
PATCHES = PatchConfig(embed=8, image=(12, 16), patch=(2, 2), init_std=0.3)

BIASES = GridBiasConfig(grid=(6, 8), heads=2, token=True)


def on_grid(attention):
    return GridBlockConfig(attention=attention, feedforward=LIKE.feedforward, residual=LIKE.residual)


SMALL = {
    "swin": SwinConfig(
        patches=PATCHES, first=on_grid(WindowConfig(attention=LIKE.attention, size=3)), depths=(2, 1),
        stage_heads=(2, 4), position="learned", mask_token=True, drop_path=0.5,
    ),
    "pvt": PVTConfig(
        patches=PATCHES, first=LIKE, widths=(8, 12), depths=(1, 2), stage_heads=(2, 3), inners=(12, 20), strides=(2, 2),
        reductions=(2, 1), drop_path=0.5,
    ),
    "segformer": SegFormerConfig(
        first=LIKE, widths=(8, 12), depths=(1, 2), stage_heads=(2, 3), inners=(12, 20), windows=(3, 2), strides=(2, 2),
        reductions=(2, 1), drop_path=0.5,
    ),
    "beit": BeitConfig(
        patches=PATCHES,
        block=on_grid(GridAttentionConfig(attention=LIKE.attention, relative=BIASES)), depth=2, shared=BIASES,
        mask_token=True, drop_path=0.5,
    ),
}  # fmt: skip
IMAGES = jax.random.normal(jax.random.key(0), (2, 3, 13, 17, 3))


def build(config):
    return jax.jit(lambda: config.build(nnx.Rngs(0)))()


@pytest.mark.rotates
@pytest.mark.parametrize(("name", "size"), share(PUBLISHED.items(), 0, of=4))
def test_a_preset_has_the_published_number_of_parameters(name, size):
    assert sum(leaf.size for leaf in jax.tree.leaves(abstract(find_preset(name)()))) == size


@pytest.fixture(params=only(SMALL, "swin"))
def config(request):
    return SMALL[request.param]


@pytest.mark.rotates
def test_any_leading_axes_are_rows(config):
    model = build(with_head(config, outputs=5, pool="mean"))
    run = jax.jit(lambda images: model.output(model.hidden_states(images)))
    expected = run(IMAGES)
    assert expected.shape == (2, 3, 5)
    np.testing.assert_allclose(expected[1, 2], run(IMAGES[1, 2]), atol=1e-5)


@pytest.mark.slow
def test_loops_are_scans_and_short_floats_are_near(config):
    run = jax.jit(lambda model: model(IMAGES[0, :1]))
    model, loop = build(config), build(with_fields(config, unroll=True))
    expected = run(model)
    np.testing.assert_allclose(run(loop), expected, atol=1e-5)
    short = run(build(with_precision(config, compute="bfloat16")))
    assert short.dtype == jnp.bfloat16
    assert np.abs(short.astype(jnp.float32) - expected).mean() < 0.1 * np.abs(expected).mean()


@pytest.mark.slow
def test_a_key_drops_paths_and_none_drops_nothing(config):
    model, run = build(config), jax.jit(lambda model, key: model(IMAGES[0], key=key))
    found = [run(model, key) for key in (None, *jax.random.split(jax.random.key(1), 2))]
    assert all(np.abs(found[i] - found[j]).max() > 1e-3 for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.rotates
@pytest.mark.parametrize("name", only(["swin", "beit"], "beit"))
def test_what_is_masked_is_not_seen(name):
    model, masked = (
        build(SMALL[name]),
        jnp.zeros((2, 48), bool).at[:, 5].set(True),
    )  # row 0, columns 10 and 11 in pixels
    images = IMAGES[0, :2, :12, :16]
    other = images.at[:, 0:2, 10:12].add(1.0)
    np.testing.assert_array_equal(model(images, masked=masked), model(other, masked=masked))
    assert np.abs(model(images) - model(other)).max() > 1e-3
    with pytest.raises(ValueError, match="a model without a mask token must not be given masked patches"):
        build(replace(SMALL[name], mask_token=False))(images, masked=masked)


def test_compiled_for_a_cpu_no_score_asks_again_where_its_window_ends():
    """Places are numbered once: no computation that takes exponentials makes their numbers anew."""
    layer = WindowConfig(attention=LIKE.attention, size=3).build(nnx.Rngs(0))
    program = jax.jit(lambda layer, x, shift: layer(x, grid=Grid(6, 9), shift=shift))
    text = program.lower(layer, jnp.zeros((4, 54, 8)), jnp.int32(1)).compile().as_text()
    taking = [part for part in text.split("\n\n") if " exponential(" in part]
    assert taking
    assert not any(" iota(" in part for part in taking)


@pytest.mark.rotates
def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"each stage must have a depth and heads, got \(2, 1\) and \(2,\)"):
        replace(SMALL["swin"], stage_heads=(2,))
    with pytest.raises(ValueError, match="the first stage must have as many heads as its blocks, got 4 and 2"):
        replace(SMALL["swin"], stage_heads=(4, 4))
    with pytest.raises(ValueError, match=r"an entry for each everywhere, got .*'depths': 1"):
        replace(SMALL["pvt"], depths=(1,))
    with pytest.raises(ValueError, match="the last stage must have keys of all its patches, got one of 2"):
        replace(SMALL["pvt"], reductions=(2, 2))
    with pytest.raises(ValueError, match="the first stage must be as its patches and blocks are"):
        replace(SMALL["pvt"], widths=(4, 12))
    with pytest.raises(ValueError, match="an image must hold a patch of 2×2 pixels, got 1×9"):
        build(SMALL["pvt"])(jnp.zeros((1, 9, 3)))
