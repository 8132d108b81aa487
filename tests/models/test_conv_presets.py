"""Convolutional networks, mixers, detectors and newer encoders of images have the published sizes."""

import pytest
from flax import nnx

from flax_transformer.models.preset import find_preset
from flax_transformer.train.carry import statistics_of
from flax_transformer.train.state import parameter_count

MILLIONS = {
    "resnet18": 11.69, "resnet34": 21.80, "resnet50": 25.56, "resnet101": 44.55, "resnet152": 60.19,
    "convnext_tiny": 28.59, "convnext_small": 50.22, "convnext_base": 88.59, "convnext_large": 197.77,
    "segformer_b0": 3.75, "segformer_b5": 84.71, "dinov3_small": 21.60, "dinov3_base": 85.66, "dinov3_large": 303.13,
    "dinov3_7b": 6716.04, "siglip2_base_patch16_naflex": 375.23, "siglip2_so400m_patch16_naflex": 1135.67,
    "mixer_small_patch32": 19.10, "mixer_base_patch16": 59.88, "mixer_large_patch16": 208.20,
}  # fmt: skip


def made(name):
    config = find_preset(name)()
    return nnx.eval_shape(lambda: config.build(nnx.Rngs(0)))


@pytest.mark.rotates
@pytest.mark.parametrize("name", MILLIONS)
def test_presets_have_the_published_sizes(name):
    """Statistics of batches are no parameters."""
    assert round(parameter_count(made(name)) / 1e6, 2) == MILLIONS[name]


@pytest.mark.rotates
def test_a_detector_has_the_published_size():
    """As transformers counts: factors of frozen norms are no parameters."""
    model = made("detr_resnet50")
    assert parameter_count(model) == 41_524_768
    assert sum(leaf.size for leaf in statistics_of(model).values()) == 4 * 26_560
