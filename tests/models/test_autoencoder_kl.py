"""The autoencoder of latent diffusion: sizes as published, latents that are the inverse's, batches row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.preset import abstract
from flax_transformer.models.vision.autoencoder_kl import AutoencoderKLConfig, Gaussian, autoencoder_kl
from flax_transformer.train import parameter_count

pytestmark = pytest.mark.proves("latents of images", "rows alone, divergence by the formula, draws, gradients")

SMALL = AutoencoderKLConfig(image=(8, 8), latents=2, widths=(4, 8), depth=2, groups=2, scale=0.5, shift=0.25)


@pytest.fixture(scope="module")
def model():
    return SMALL.build(nnx.Rngs(0))


def test_the_published_size():
    assert parameter_count(abstract(autoencoder_kl())) == 83_653_863
    assert autoencoder_kl(512).shape == (64, 64, 4)


@pytest.mark.rotates
def test_rows_do_not_see_each_other(model):
    images = jax.random.normal(jax.random.key(0), (3, 8, 12, 3))
    whole = jax.jit(lambda m, x: m(x))(model, images)
    assert whole.shape == images.shape
    one = jax.vmap(lambda x: model(x))(images)
    np.testing.assert_allclose(one, whole, atol=2e-5)


@pytest.mark.rotates
def test_a_key_draws_latents_of_the_distribution(model):
    latents = model.encode(jnp.zeros((1, 8, 8, 3)))
    drawn = jax.vmap(latents.sample)(jax.random.split(jax.random.key(1), 4_000))
    deviation = jnp.exp(latents.log_variance / 2)
    assert np.abs((drawn.mean(0) - latents.mean) / deviation).max() < 0.1
    assert np.abs(drawn.std(0) / deviation - 1).max() < 0.1


def test_divergence_is_that_of_the_formula_and_nothing_at_the_normal_distribution():
    assert Gaussian(jnp.zeros((2, 1, 1, 3)), jnp.zeros((2, 1, 1, 3))).divergence().tolist() == [0, 0]
    one = Gaussian(jnp.full((1, 1, 1, 1), 3.0), jnp.full((1, 1, 1, 1), np.log(4.0)))
    np.testing.assert_allclose(one.divergence(), [(9 + 4 - 1 - np.log(4)) / 2], rtol=1e-6)


@pytest.mark.rotates
def test_latents_are_scaled_and_back(model):
    latents = jnp.asarray([[[0.25, 2.25]]])
    assert model.scaled(latents).tolist() == [[[0, 1]]]
    np.testing.assert_allclose(model.unscaled(model.scaled(latents)), latents)


@pytest.mark.rotates
def test_every_parameter_has_a_gradient(model):
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))

    def loss(model):
        latents = model.encode(images)
        restored = model.decode(latents.sample(jax.random.key(1)))
        return jnp.mean(jnp.abs(restored - images)) + 1e-3 * latents.divergence().mean()

    grads = jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(model))
    flat = [jax.tree_util.keystr(path) for path, grad in grads if not np.abs(grad).max() > 0]
    assert all("key" in path and "bias" in path for path in flat), flat  # a key's bias changes no probability


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"widths": (4, 7)}, r"widths must be multiples of the groups, got widths=\(4, 7\), groups=2"),
        ({"image": (9, 8)}, r"sides of images must be multiples of 2, got \(9, 8\)"),
        ({"scale": 0.0}, "scale must be above 0, got 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(wrong, message):
    sizes = {"image": (8, 8), "widths": (4, 8), "groups": 2}
    with pytest.raises(ValueError, match=message):
        AutoencoderKLConfig(**{**sizes, **wrong})


def test_images_that_do_not_fit_are_refused(model):
    with pytest.raises(ValueError, match="sides of images must be multiples of 2, got 8 × 7"):
        model.encode(jnp.zeros((1, 8, 7, 3)))
    with pytest.raises(ValueError, match="2"):
        model.decode(jnp.zeros((1, 4, 4, 3)))
