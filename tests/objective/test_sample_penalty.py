"""The penalty of some rows of a batch, and generators whose places are squares of pixels."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.vision.transgan import TransGANGeneratorConfig
from flax_transformer.objective import SampleLoss
from flax_transformer.ops.adversarial import r1_penalty
from tests.contract.objectives import case


def test_the_penalty_of_every_second_row_stands_for_all():
    _, model, batch = case("SampleLoss")
    batch = jax.tree.map(jnp.asarray, batch)
    loss, told = SampleLoss(penalty_every=2).discriminator_loss(model, batch, key=jax.random.key(0))
    images, labels = batch["inputs"]["images"][::2], batch["labels"][::2]
    weights = batch["weights"][::2]
    each = r1_penalty(lambda x: model.discriminator(x, labels), images)
    expected = jnp.sum(each * weights) / weights.sum() * batch["weights"].sum()
    np.testing.assert_allclose(told["penalty"], expected, rtol=1e-5)
    without, _ = SampleLoss(penalty="none").discriminator_loss(model, batch, key=jax.random.key(0))
    np.testing.assert_allclose(loss - without, expected, rtol=1e-4)
    with pytest.raises(ValueError, match=r"penalty_every at least 1, got 1\.0 and 0"):
        SampleLoss(penalty_every=0)


def test_both_bounds_the_gradient_at_generated_images_too():
    _, model, batch = case("SampleLoss")
    batch, key = jax.tree.map(jnp.asarray, batch), jax.random.key(0)
    penalties = {
        name: SampleLoss(penalty=name).discriminator_loss(model, batch, key=key)[1]["penalty"]
        for name in ("r1", "both")
    }
    labels = batch["labels"]
    made = model.generator(model.generator.noise(jax.random.split(key, 4)[0], len(labels)), labels)
    at_made = jnp.sum(r1_penalty(lambda x: model.discriminator(x, labels), made) * batch["weights"])
    assert at_made > 0
    np.testing.assert_allclose(penalties["both"], penalties["r1"] + at_made, rtol=1e-5)


@pytest.mark.parametrize("kind", ["SampleLoss", "PairedLoss", "CycleLoss"])
def test_the_generator_of_pairs_is_told_what_is_said_of_real_images(kind):
    """Its relativistic loss changes with them, another does not."""
    objective, model, batch = case(kind)
    batch, real = jax.tree.map(jnp.asarray, batch), "images" if kind == "SampleLoss" else "labels"
    other = {**batch, "inputs": dict(batch["inputs"])}
    place = other["inputs"] if real == "images" else other
    place[real] = jnp.flip(place[real], axis=1) * 0.5

    def adversarial(name, given):
        loss, told = replace(objective, loss=name)(model, given, key=jax.random.key(0))
        return float(told.get("adversarial", loss))

    assert adversarial("relativistic", batch) != adversarial("relativistic", other)
    if kind != "CycleLoss":  # of which the targets are sources of the other way
        assert adversarial("non-saturating", batch) == adversarial("non-saturating", other)


@pytest.mark.rotates
def test_a_place_becomes_a_square_of_pixels():
    """A row of what the head gives is a square, laid out as `pixel_shuffle` does."""
    config = TransGANGeneratorConfig(image=(12, 8), channels=1, embed=8, noise=4, depths=(1, 1), heads=2, patch=2)
    assert config.grid == (3, 2)
    images = config.build(nnx.Rngs(0))(jnp.ones((2, 4)), jnp.array([0, 0]))
    assert images.shape == (2, 12, 8, 1)
    with pytest.raises(ValueError, match="multiples of 4 for 2 stages, got 10×8"):
        TransGANGeneratorConfig(image=(10, 8), embed=8, depths=(1, 1), heads=2, patch=2)
