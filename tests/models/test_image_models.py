"""Models of images: grid self-attention, stages of TransGAN, pixels of patches, discriminators of patches."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.vision.image_to_image import (
    AdversarialConfig,
    ImageToImageConfig,
    PatchDiscriminatorConfig,
    as_output,
    image_encoder,
)
from flax_transformer.models.vision.transgan import TransGANDiscriminatorConfig, TransGANGeneratorConfig
from flax_transformer.nn import Grid
from flax_transformer.nn.stack import layer
from flax_transformer.objective import CycleLoss, ImageLoss, PairedLoss, SampleLoss
from flax_transformer.ops import attention
from tests.task.image_recipes import ENCODER, GENERATOR, JUDGE

NOISE = TransGANGeneratorConfig(image=(8, 8), embed=16, noise=4, depths=(1, 1), heads=2, cell=4, classes=3)
CRITIC = TransGANDiscriminatorConfig(image=(8, 8), embed=4, depths=(1, 1), heads=2, cell=2, classes=3)


def test_grid_attention_is_full_attention_within_every_cell():
    """By brute force: attention of every place over all places of its own cell of 4 × 4, written out one by one."""
    windowed = NOISE.stages[1].block.attention.build(nnx.Rngs(0))  # 8 × 8 places, width 4
    x = jax.random.normal(jax.random.key(0), (2, 64, 4))
    y, inner = np.asarray(windowed(x, grid=Grid(8, 8))), windowed.attention
    bias = windowed.relative(Grid(4, 4))
    places = np.arange(64).reshape(8, 8)
    for top in (0, 4):
        for left in (0, 4):
            cell = places[top : top + 4, left : left + 4].ravel()
            q, k, v = (getattr(inner, name)(x[:, cell]) for name in ("query", "key", "value"))
            expected = inner.out(attention(q, k, v, bias=bias))
            np.testing.assert_allclose(y[:, cell], expected, rtol=1e-5, atol=1e-6)
    other = x.at[:, 0].add(1.0)
    changed = np.flatnonzero(np.abs(windowed(other, grid=Grid(8, 8)) - y).max(axis=(0, 2)) > 1e-7)
    assert set(changed) == set(places[:4, :4].ravel())


@pytest.mark.rotates
@pytest.mark.proves("transgan", "train", "classes by projection; differentiable augmentation, R1")
def test_a_generator_gives_images_of_its_size_by_noise_and_class():
    generator = NOISE.build(nnx.Rngs(0))
    noise = generator.noise(jax.random.key(0), 3)
    np.testing.assert_array_equal(generator.noise(jax.random.key(0), jnp.array([2, 0])), noise[jnp.array([2, 0])])
    one = generator(noise, jnp.array([0, 1, 2]))
    assert one.shape == (3, 8, 8, 3)
    assert float(jnp.abs(one).max()) <= 1
    other = generator(noise, jnp.array([0, 2, 2]))
    np.testing.assert_allclose(other[::2], one[::2], atol=1e-6)
    assert float(jnp.abs(other[1] - one[1]).max()) > 1e-4
    with pytest.raises(ValueError, match="must be told the classes"):
        generator(noise)
    plain = replace(NOISE, conditional=False).build(nnx.Rngs(0))
    np.testing.assert_array_equal(plain(noise, jnp.array([0, 1, 2])), plain(noise))


def _standard(x):
    """Layer normalisation without parameters."""
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)


@pytest.mark.rotates
def test_noise_and_class_modulate_every_residual_of_a_generator():
    """By hand: a block's f is added as gate · f((1 + scale) · norm(x) + shift), all three of a mapping of the noise."""
    generator = replace(NOISE, modulated=True, depths=(1,)).build(nnx.Rngs(0))
    noise, labels = generator.noise(jax.random.key(0), 2), jnp.array([0, 1])
    told = jnp.concatenate([noise, generator.classes[...][labels]], axis=-1)
    blocks = generator.stage0.blocks
    for number, each in enumerate((blocks.attention_residual, blocks.feedforward_residual)):
        kernel = each.modulation.kernel
        kernel.set_value(0.3 * jax.random.normal(jax.random.key(number), kernel.shape))
    block = layer(blocks, 0)
    x = generator.project(told).reshape(2, 64, 16) + generator.positions0[...]
    condition = generator.style0(jax.nn.silu(generator.mapping(told)))
    for each, sublayer in (
        (block.attention_residual, partial(block.attention, grid=Grid(8, 8))),
        (block.feedforward_residual, block.feedforward),
    ):
        shift, scale, gate = jnp.split(each.modulation(jax.nn.silu(condition))[:, None], 3, axis=-1)
        x = x + gate * sublayer(_standard(x) * (1 + scale) + shift)
    expected = jnp.tanh(generator.head(_standard(x))).reshape(2, 8, 8, 3)
    np.testing.assert_allclose(generator(noise, labels), expected, rtol=1e-4, atol=1e-5)


def test_patches_of_a_discriminator_may_be_made_by_convolutions():
    config = replace(CRITIC, patch=4, stem=(3,))
    critic, images = config.build(nnx.Rngs(0)), jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    assert critic(images, jnp.zeros(2, jnp.int32)).shape == (2,)
    assert [critic.cfg.patches[i].grid for i in (0, 1)] == [(2, 2), (1, 1)]
    # A pixel beside a patch is seen by it too, which a linear layer of the patch itself does not see.
    seen = critic.patches0(images.at[:, 3, 3].add(1.0)) - critic.patches0(images)
    assert float(jnp.abs(seen[:, 3]).max()) > 1e-3
    with pytest.raises(ValueError, match="a stem of 2 convolutions makes patches of 4 pixels, got patch=2"):
        replace(CRITIC, stem=(3,))


@pytest.mark.rotates
def test_a_discriminator_tells_classes_by_a_product():
    """The difference between two classes is linear in what the last stage says (Miyato & Koyama 2018, eq. 3)."""
    critic = CRITIC.build(nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))
    told = jnp.stack([critic(images, jnp.full(2, label)) for label in range(3)])
    plain = critic.__class__(replace(CRITIC, conditional=False), rngs=nnx.Rngs(0))
    assert plain(images).shape == (2,)
    half = jax.tree.map(lambda leaf: leaf, critic)
    half.classes = nnx.Param(critic.classes[...] * 0)
    base = half(images, jnp.zeros(2, jnp.int32))
    half.classes = nnx.Param(critic.classes[...] * 2)
    doubled = jnp.stack([half(images, jnp.full(2, label)) for label in range(3)])
    np.testing.assert_allclose(doubled - base, 2 * (told - base), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="the discriminator's size, 8×8, got 12×12"):
        critic(jnp.zeros((1, 12, 12, 3)), jnp.zeros(1, jnp.int32))


@pytest.mark.rotates
def test_what_comes_out_is_added_to_what_came_in():
    model = GENERATOR.build(nnx.Rngs(0))
    images = jax.random.normal(jax.random.key(0), (2, 12, 12, 3))
    model.head.kernel.set_value(0 * model.head.kernel[...])
    np.testing.assert_allclose(model(images), images, atol=1e-6)
    larger = replace(GENERATOR, scale=2, output_channels=1).build(nnx.Rngs(0))
    assert larger(images).shape == (2, 24, 24, 1)
    grey = as_output(images, 1, 1)
    np.testing.assert_allclose(as_output(grey, 3, 1), np.repeat(images.mean(-1, keepdims=True), 3, -1), atol=1e-6)
    with pytest.raises(ValueError, match="multiples of the patch's, got 10×12"):
        model(images[:, :10])


def test_a_discriminator_of_patches_sees_what_the_generator_has_seen():
    judge, images = JUDGE.build(nnx.Rngs(0)), jax.random.normal(jax.random.key(0), (2, 12, 12, 3))
    told = judge(images, images)
    assert told.shape == (2, 9)
    assert float(jnp.abs(judge(images, 0 * images) - told).max()) > 1e-4
    with pytest.raises(ValueError, match="if it is conditional, got False and conditional=True"):
        judge(images)


def test_configs_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="must be multiples of the patch's, got 12×12 and 8×8"):
        ImageToImageConfig(encoder=image_encoder(image=12, patch=8, embed=8, heads=2, depth=1))
    with pytest.raises(ValueError, match="has no tokens, got"):
        PatchDiscriminatorConfig(encoder=replace(ENCODER, tokens=("class_token",)))
    with pytest.raises(ValueError, match="multiples of 4 for 3 stages, got 10×10"):
        TransGANGeneratorConfig(image=(10, 10))
    with pytest.raises(ValueError, match="heads must divide the width of every stage, got D=16, N=3"):
        replace(NOISE, embed=16, heads=3)
    for given, said in (
        (lambda: ImageLoss(similarity=-1.0), "similarity must not be negative"),
        (lambda: PairedLoss(discriminator_rate=0.0), "discriminator_rate must be positive"),
        (lambda: SampleLoss(changes=("blur",)), "changes must be of colour, translation, cutout, got blur"),
        (lambda: SampleLoss(penalty_weight=-1.0), "penalty_weight must not be negative"),
    ):
        with pytest.raises(ValueError, match=said):
            given()


# Losses of whole models, by hand.


class Scale(nnx.Module):
    """An image times a number."""

    def __init__(self, factor):
        self.factor = nnx.Param(jnp.float32(factor))

    def hidden_states(self, images, key=None):
        return images

    def output(self, hidden, key=None):
        return self.factor[...] * hidden


class Both(nnx.Module):
    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward


class Judge(nnx.Module):
    """Twice the mean of what is judged, and of what was seen beside it."""

    def __call__(self, images, seen=None, key=None):
        beside = 0 if seen is None else seen.mean(axis=(1, 2, 3))
        return (2 * images.mean(axis=(1, 2, 3)) + beside)[:, None]


class Players(nnx.Module):
    def __init__(self, generator, discriminator):
        self.generator, self.discriminator = generator, discriminator


def batch():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 4, 4, 1)).astype(np.float32)
    return {"inputs": {"images": x}, "labels": y, "weights": np.array([1, 1, 0], np.float32)}


def test_the_loss_of_pairs_is_its_formula():
    given = batch()
    x, y = given["inputs"]["images"][:2], given["labels"][:2]
    loss = PairedLoss(weight=0.1, loss="hinge")
    model = Players(Scale(0.5), Judge())
    mean = lambda a: a.mean(axis=(1, 2, 3))  # noqa: E731
    fake, real = 2 * mean(0.5 * x) + mean(x), 2 * mean(y) + mean(x)
    total, metrics = loss(model, given)
    assert float(total) == pytest.approx((mean(np.abs(0.5 * x - y)) - 0.1 * fake).sum(), rel=1e-5)
    assert float(metrics["count"]) == 2
    total, _ = loss.discriminator_loss(model, given)
    expected = (np.maximum(0, 1 - real) + np.maximum(0, 1 + fake)).sum() / 2
    assert float(total) == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_cycles_is_its_formula():
    given = batch()
    x, y = given["inputs"]["images"][:2], given["labels"][:2]
    there, back, mean = 0.5, 3.0, lambda a: a.mean(axis=(1, 2, 3))
    model = Players(Both(Scale(there), Scale(back)), Both(Judge(), Judge()))
    total, metrics = CycleLoss(cycle=10.0, identity=0.5)(model, given)
    adversarial = (2 * mean(there * x) - 1) ** 2 + (2 * mean(back * y) - 1) ** 2
    cycle = mean(np.abs(back * there * x - x)) + mean(np.abs(there * back * y - y))
    identity = mean(np.abs(there * y - y)) + mean(np.abs(back * x - x))
    assert float(total) == pytest.approx((adversarial + 10 * (cycle + 0.5 * identity)).sum(), rel=1e-5)
    assert float(metrics["cycle"]) == pytest.approx(cycle.sum(), rel=1e-5)
    total, _ = CycleLoss().discriminator_loss(model, given)
    parts = [(2 * mean(y) - 1) ** 2, (2 * mean(there * x)) ** 2, (2 * mean(x) - 1) ** 2, (2 * mean(back * y)) ** 2]
    assert float(total) == pytest.approx(sum(parts).sum() / 2, rel=1e-5)


@pytest.mark.rotates
@pytest.mark.proves("transgan", "train", "an auxiliary classifier of real and generated images of every class")
def test_an_auxiliary_classifier_tells_real_and_generated_images_of_every_class_apart():
    """By Optax's cross-entropy of 2E classes, of which the generator's half is minimised and maximised (ADC-GAN)."""
    model = AdversarialConfig(generator=NOISE, discriminator=replace(CRITIC, auxiliary=True)).build(nnx.Rngs(0))
    labels, weights = jnp.array([0, 2, 1]), jnp.array([1.0, 1.0, 0.0])
    images = jax.random.normal(jax.random.key(1), (3, 8, 8, 3))
    given = {"inputs": {"images": images}, "labels": labels, "weights": weights}
    made = model.generator(model.generator.noise(jax.random.split(jax.random.key(0), 4)[0], 3), labels)
    entropy = optax.softmax_cross_entropy_with_integer_labels
    (_, real), (_, fake) = (model.discriminator.logits(each, labels) for each in (images, made))
    assert real.shape == (3, 6)
    plain, auxiliary = SampleLoss(loss="hinge"), SampleLoss(loss="hinge", auxiliary=0.5)
    total, metrics = auxiliary.discriminator_loss(model, given)
    expected = float((weights * (entropy(real, labels) + entropy(fake, labels + 3))).sum())
    assert float(metrics["auxiliary"]) == pytest.approx(expected, rel=1e-5)
    assert float(total) == pytest.approx(float(plain.discriminator_loss(model, given)[0]) + 0.5 * expected, rel=1e-5)

    made = model.generator(model.generator.noise(jax.random.split(jax.random.key(0), 2)[0], 3), labels)
    fake = model.discriminator.logits(made, labels)[1]
    expected = float((weights * (entropy(fake, labels) - entropy(fake, labels + 3))).sum())
    assert float(auxiliary(model, given)[0]) == pytest.approx(float(plain(model, given)[0]) + 0.5 * expected, rel=1e-5)

    model = AdversarialConfig(generator=NOISE, discriminator=CRITIC).build(nnx.Rngs(0))
    with pytest.raises(ValueError, match="a TransGANDiscriminator without"):
        auxiliary(model, given)
    with pytest.raises(ValueError, match="auxiliary must not be negative"):
        SampleLoss(auxiliary=-1.0)


def test_a_discriminator_is_not_trained_by_what_the_generator_minimises():
    """Nor does a generator get gradients of the discriminator's loss."""
    given = batch()
    model = Players(Scale(0.5), Judge())
    slope = jax.grad(lambda model: PairedLoss().discriminator_loss(model, given)[0])(model)
    assert float(slope.generator.factor[...]) == 0
    assert float(jax.grad(lambda model: PairedLoss()(model, given)[0])(model).generator.factor[...]) != 0


@pytest.mark.rotates
def test_both_players_make_one_model():
    pair = AdversarialConfig(generator=NOISE, discriminator=CRITIC).build(nnx.Rngs(0))
    assert pair.generator.cfg == NOISE
    assert pair.discriminator.cfg == CRITIC
