"""Segmenters: what they are made of must fit, and they learn, batch norms too, on any backbone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.detr import DetrConfig
from flax_transformer.models.vision.detr_block import detr_block
from flax_transformer.models.vision.detr_mask import MaskDetrConfig
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.models.vision.segmenter import SegmenterConfig
from flax_transformer.models.vision.uper_head import ConvHeadConfig, FourSizesConfig, UPerHeadConfig
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import TrunkConfig, UpConvConfig, with_fields
from flax_transformer.objective import BatchStatistics, LabelLoss
from flax_transformer.train.carry import carry_of, new_carried

RESNET = ResNetConfig(stem=4, widths=(4, 8, 8), depths=(1, 1, 2), block="basic", channels=1)
MAPS = BackboneConfig(backbone=RESNET, stages=(1, 2, 3))
HEAD = UPerHeadConfig(channels=(4, 8, 8), outputs=3, embed=6, pools=(1, 2))
AUXILIARY = ConvHeadConfig(channels=8, outputs=3, embed=4)
CONFIG = SegmenterConfig(backbone=MAPS, head=HEAD, auxiliary=AUXILIARY)


@pytest.mark.rotates
@pytest.mark.parametrize("frozen", [True, False])
def test_it_learns_with_the_statistics_of_its_heads(frozen):
    backbone = BackboneConfig(backbone=with_fields(RESNET, frozen=frozen), stages=(1, 2, 3))
    model = SegmenterConfig(backbone=backbone, head=HEAD, auxiliary=AUXILIARY).build(nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(0), (4, 16, 24, 1))
    labels = (images.reshape(4, 4, 4, 6, 4).mean((2, 4)) > 0).astype(jnp.int32)
    batch = {"inputs": {"images": images}, "labels": labels, "weights": jnp.ones(labels.shape)}
    objective = BatchStatistics(of=LabelLoss())
    carry = carry_of(objective)
    carried, trained = new_carried(carry, model, jax.random.key(1)), carry.trained(model)
    before, optimizer = carried, optax.adam(1e-2)

    @jax.jit
    def step(trained, carried, state):
        def loss(trained):
            total, _, new = objective(carry.whole(trained, carried), batch, carried=carried)
            return total / labels.size, new

        (value, new), slope = jax.value_and_grad(loss, has_aux=True)(trained)
        updates, state = optimizer.update(slope, state)
        return optax.apply_updates(trained, updates), new, state, value

    state, losses = optimizer.init(trained), []
    for _ in range(20):
        trained, carried, state, value = step(trained, carried, state)
        losses.append(float(value))
    assert losses[-1] < 0.7 * losses[0]
    assert carried.keys() == before.keys()
    moved = {name.split(".")[0] for name in carried if np.abs(carried[name] - before[name]).max() > 0}
    assert moved == {"head", "auxiliary_head"}


@pytest.mark.rotates
def test_scores_are_as_fine_as_the_finest_map():
    model, images = CONFIG.build(nnx.Rngs(0)), jnp.ones((2, 21, 33, 1))
    logits, beside = model.both(images)
    assert (logits.shape, beside.shape) == ((2, 6, 9, 3), (2, 2, 3, 3))
    np.testing.assert_array_equal(model(images), logits)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: SegmenterConfig(backbone=MAPS, head=with_fields(HEAD, channels=(4, 8))), "the 3 maps .* one of 2"),
        (lambda: SegmenterConfig(backbone=MAPS, head=HEAD, auxiliary=with_fields(AUXILIARY, level=3)), "one of map 3"),
        (lambda: UPerHeadConfig(channels=(), outputs=3), r"every map needs channels, got \(\)"),
        (lambda: UPerHeadConfig(channels=(3,), outputs=3, pools=(0,)), "at least 1 row and column"),
        (lambda: ConvHeadConfig(channels=3, outputs=3, depth=0), "keeps its width, got C=3, D=256"),
        (
            lambda: BackboneConfig(backbone=RESNET, stages=(1,), grids=False, neck=FourSizesConfig(embed=4)),
            "grids=False",
        ),
        (lambda: UpConvConfig(channels=3, features=0), "features must be at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_other_maps_than_a_head_is_made_for_are_refused():
    wrong = SegmenterConfig(backbone=MAPS, head=with_fields(HEAD, channels=(4, 8, 9))).build(nnx.Rngs(0))
    with pytest.raises(ValueError, match="feature maps must have 4, 8, 9 channels, got shapes"):
        wrong(jnp.ones((1, 32, 32, 1)))


def test_an_enlarging_convolution_is_the_transposed_one():
    layer = UpConvConfig(channels=3, features=5, factor=3).build(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 4, 6, 3))
    # A transposed convolution of JAX's has its window the other way round.
    kernel = layer.kernel[...][::-1, ::-1]
    expected = jax.lax.conv_transpose(x, kernel, (3, 3), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-6)


def masked(**options):
    def trunk(cross):
        return TrunkConfig(block=detr_block(embed=16, heads=8, inner=8, cross=cross), depth=1)

    return MaskDetrConfig(backbone=RESNET, encoder=trunk(False), decoder=trunk(True), queries=3, classes=2, **options)


@pytest.mark.rotates
def test_a_detector_with_masks_is_a_detector():
    model, images = masked().build(nnx.Rngs(0)), jnp.ones((2, 32, 48, 1))
    hidden, _, masks = model.segment(images)
    assert masks.shape == (2, 3, 8, 12)
    np.testing.assert_allclose(model(images).logits, model.output(hidden).logits, rtol=1e-5, atol=1e-6)
    assert isinstance(model.cfg, DetrConfig)
    with pytest.raises(ValueError, match=r"three numbers below 4, in order, got \(1, 2\)"):
        masked(stages=(1, 2))


@pytest.mark.rotates
def test_a_pyramid_is_made_of_four_maps():
    encoder = vit_encoder("tiny", 16, image=32)
    maps = BackboneConfig(backbone=encoder, stages=(1, 2), neck=FourSizesConfig(embed=192)).build(nnx.Rngs(0))
    with pytest.raises(ValueError, match="feature maps must have 192, 192, 192, 192 channels"):
        maps(jnp.ones((1, 32, 32, 3)))
