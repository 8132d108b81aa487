"""Heads of wav2vec 2.0: gradients reach all codes, padding changes no embedding, and every parameter has a sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import abstract
from flax_transformer.models.speech.contrast import ContrastConfig
from flax_transformer.models.speech.speaker import SpeakerConfig, SpeakerHeadConfig
from flax_transformer.models.speech.wav2vec2 import Wav2Vec2Config
from flax_transformer.nn import FeatureExtractorConfig, transformer_block
from flax_transformer.ops import Mask
from flax_transformer.parallel import MeshConfig, make_mesh, tree_shardings

BACKBONE = Wav2Vec2Config(
    block=transformer_block(embed=6, heads=2, inner=8), depth=1, window=4, groups=2,
    front=FeatureExtractorConfig(embed=5, windows=(4, 3), strides=(3, 2), norm="every"),
)  # fmt: skip
CONTRAST = ContrastConfig(backbone=BACKBONE, groups=2, codes=3, code_width=4, outputs=7)
HEAD = SpeakerHeadConfig(embed=6, widths=(4, 3), windows=(3, 2), dilations=(1, 1), outputs=5, speakers=3)
SPEAKER = SpeakerConfig(backbone=BACKBONE, head=HEAD)
SAMPLES = np.random.default_rng(0).normal(size=(2, 120)).astype(np.float32)


@pytest.mark.parametrize("config", [CONTRAST, SPEAKER], ids=["contrast", "speaker"])
def test_every_parameter_has_a_sharding(config):
    model = abstract(config)
    found = tree_shardings(model, make_mesh(MeshConfig(data=1, fsdp=-1)))
    assert jax.tree.structure(found) == jax.tree.structure(model)


@pytest.mark.rotates
def test_noise_lets_gradients_reach_all_codes_and_choices():
    model = CONTRAST.build(nnx.Rngs(0))
    features = jax.random.normal(jax.random.key(0), (2, 9, 5))

    def total(model, key):
        return jnp.sum(jnp.square(model.quantise(features, key=key)[0] - 1))

    noisy, plain = (jax.grad(total)(model, key) for key in (jax.random.key(1), None))
    assert np.abs(noisy.choose.kernel[...]).max() > 0
    assert np.abs(plain.choose.kernel[...]).max() == 0
    assert np.abs(plain.codes[...]).max() > 0


@pytest.mark.rotates
def test_a_position_is_not_told_from_itself_and_losses_sum_over_masked_ones():
    model = CONTRAST.build(nnx.Rngs(0))
    masked = np.zeros((2, model.cfg.backbone.front.frames(120)), bool)
    masked[:, 2:5] = True
    found = model(jnp.asarray(SAMPLES), masked=jnp.asarray(masked))
    itself = jnp.arange(masked.size).reshape(*masked.shape, 1)
    assert np.isneginf(model.logits(found, itself)[..., 1]).all()
    assert float(model.losses(found, itself, jnp.asarray(masked))[0]) == 0
    masked = jnp.asarray(masked)
    half = masked & (jnp.arange(2) == 0)[:, None]
    others = (itself + 1) % masked.size
    parts = [model.losses(found, others, each)[0] for each in (half, masked & ~half)]
    np.testing.assert_allclose(sum(parts), model.losses(found, others, masked)[0], rtol=1e-6)


@pytest.mark.rotates
def test_padding_changes_no_embedding():
    model = SPEAKER.build(nnx.Rngs(0))
    alone = model(jnp.asarray(SAMPLES[:1, :90]))
    noise = SAMPLES.copy()
    noise[0, 90:] = 3
    both = model(jnp.asarray(noise), mask=Mask(lengths=jnp.array([90, 120])))
    np.testing.assert_allclose(both[0], alone[0], rtol=1e-4, atol=1e-5)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="groups must divide code_width, got 3 and 4"):
        ContrastConfig(backbone=BACKBONE, groups=3, code_width=4)
    with pytest.raises(ValueError, match="a width, a window and a dilation each"):
        SpeakerHeadConfig(embed=6, widths=(4, 3), windows=(3,), dilations=(1, 1))
