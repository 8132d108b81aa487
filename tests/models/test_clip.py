"""CLIP's and SigLIP's presets have the published sizes; scores are scaled cosines, within bounds while training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.multimodal.clip import clip_text, clip_vision
from flax_transformer.models.multimodal.towers import Embedded, TwoTowers, TwoTowersConfig
from flax_transformer.models.preset import find_preset
from flax_transformer.train.state import parameter_count

PUBLISHED = {
    "clip_vit_base_patch32": 151_277_313, "clip_vit_base_patch16": 149_620_737, "clip_vit_large_patch14": 427_616_513,
    "clip_vit_large_patch14_336": 427_944_193, "siglip_base_patch16": 203_155_970,
    "siglip_so400m_patch14": 877_960_498,
}  # fmt: skip
SMALL = TwoTowersConfig(
    text=clip_text(6, vocab=20, embed=8, heads=2, depth=1, length=9),
    vision=clip_vision(6, image=8, patch=4, embed=8, heads=2, depth=1),
)


@pytest.fixture(scope="module")
def model():
    return TwoTowers(SMALL, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def inputs():
    return TwoTowers.example_batch(SMALL, 3)["inputs"]


@pytest.mark.rotates
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_sizes(name):
    config = find_preset(name)()
    assert parameter_count(nnx.eval_shape(lambda: config.build(nnx.Rngs(0)))) == PUBLISHED[name]


@pytest.mark.rotates
def test_scores_are_cosines_times_the_scale(model, inputs):
    embedded = model.hidden_states(**inputs)
    for side in embedded:
        np.testing.assert_allclose(jnp.linalg.norm(side, axis=-1), 1, rtol=1e-6)
    scale = SMALL.scale
    np.testing.assert_allclose(model.output(embedded), scale * embedded.first @ embedded.second.T, rtol=1e-5)


@pytest.mark.rotates
def test_a_limit_bounds_the_scale_and_not_its_gradient(model, inputs):
    embedded = model.hidden_states(**inputs)
    limited = model.output(embedded, limit=2.0)
    np.testing.assert_allclose(limited, 2 * embedded.first @ embedded.second.T, rtol=1e-5)
    gradient = jax.grad(lambda m: jnp.sum(m.output(embedded, limit=2.0) ** 2))(model).log_scale[...]
    np.testing.assert_allclose(gradient, 2 * jnp.sum(limited**2), rtol=1e-5)


def test_what_comes_after_a_text_says_nothing(model, inputs):
    lengths = np.array([4, 9, 6], np.int32)
    other = np.where(np.arange(9) < lengths[:, None], inputs["tokens"], 3)
    first, second = (model.embed_text(tokens, lengths=lengths) for tokens in (inputs["tokens"], other))
    np.testing.assert_allclose(first, second, rtol=1e-6)
    assert np.abs(first - model.embed_text(other, lengths=lengths - 1)).max() > 1e-3


def test_one_side_alone(model, inputs):
    assert model.hidden_states(images=inputs["images"]).first is None
    both = model.hidden_states(**inputs)
    np.testing.assert_allclose(model.hidden_states(images=inputs["images"]).second, both.second, rtol=1e-6)
    assert isinstance(both, Embedded)


def test_towers_of_two_widths_are_refused():
    with pytest.raises(ValueError, match=r"of one width, got \{'text': 6, 'vision': 5\}"):
        TwoTowersConfig(text=SMALL.text, vision=clip_vision(5, image=8, patch=4, embed=8, heads=2, depth=1))
