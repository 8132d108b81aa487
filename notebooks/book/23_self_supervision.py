# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 23. Self-supervision
#
# An encoder can learn from images without labels: half of the patches are hidden, and it must restore their pixels. Is
# what it has learned of use for something else? Two numbers say so: the test accuracy of a linear classifier on its
# frozen features, a *probe*, and that of the encoder trained on with few labels. Beside each stands the same with the
# encoder as it was initialised, which may well be better.

# %%
import os
from dataclasses import fields

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.synthetic import SHAPES, draw_shape
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.models.vision.vit_mae import MAEConfig, MAEEncoderConfig
from flax_transformer.nn import PatchConfig, TrunkConfig, transformer_block
from flax_transformer.objective import MAELoss
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 500

# %% [markdown]
# ## The idea
#
# A *masked autoencoder* (He et al. 2021) shows its encoder $f$ only the patches that are not masked. A small decoder
# $g$ gets their states, one learned vector for every masked patch, and all positions, and gives back pixels. Of the
# patches $x_i$, the masked ones $M$ count:
#
# $$\mathcal{L} = \frac{1}{|M|} \sum_{i \in M} \frac{1}{p^2 C} \big\| g\big(f(x_{\setminus M})\big)_i - x_i \big\|^2$$
#
# After this the decoder is thrown away. The encoder sees all patches, and a linear map of the mean of their states
# $z$, fitted by least squares to few labels, is the probe:
#
# $$W = \arg\min_W \|Z W - Y\|^2 + \lambda \|W\|^2 = (Z^\top Z + \lambda I)^{-1} Z^\top Y$$

# %% [markdown]
# ## Ten lines


# %%
def hide(noise, count):
    """Return which patches are masked: all but `count` of those with the least noise [B, P]."""
    return noise.argsort(1).argsort(1) >= count


def masked_loss(found, pixels, masked):
    """Return the mean squared error of masked patches; found and pixels are [B, P, pixels of a patch]."""
    errors = jnp.square(found - pixels).mean(-1)
    return ((errors * masked).sum(1) / masked.sum(1)).mean()


def probe(features, labels, test, strength=1.0):
    """Return the classes that a linear map, fitted to features [B, D] and labels, finds in others."""
    Z, others = (np.c_[each, np.ones(len(each))].astype(np.float64) for each in (features, test))
    W = np.linalg.solve(Z.T @ Z + strength * np.eye(Z.shape[1]), Z.T @ np.eye(labels.max() + 1)[labels])
    return (others @ W).argmax(1)


# %% [markdown]
# ## The library
#
# `MAEConfig` is an encoder, which is a ViT, and the trunk of a decoder. `MAELoss` masks and compares. Images have
# 16×16 pixels; eight of the sixteen patches are masked.

# %%
SIZE, PATCH, D = 16, 4, 48


def block_of(width):
    return transformer_block(embed=width, heads=4, inner=2 * width, norm_position="pre", activation="gelu")


patches = PatchConfig(embed=D, image=(SIZE, SIZE), patch=(PATCH, PATCH), channels=1)
vit = ViTConfig(patches=patches, block=block_of(D), depth=3, position="fixed")
encoder = MAEEncoderConfig(**{each.name: getattr(vit, each.name) for each in fields(vit)}, mask_ratio=0.5)
config = MAEConfig(encoder=encoder, decoder=TrunkConfig(block=block_of(32), depth=1))
untrained = config.build(nnx.Rngs(0))
objective = MAELoss(normalise=False)


def pixels_of(images):
    cut = images.reshape(-1, SIZE // PATCH, PATCH, SIZE // PATCH, PATCH, 1).swapaxes(2, 3)
    return cut.reshape(len(images), -1, PATCH * PATCH)


@jax.jit
def restored(model, images, noise):
    encoded = model.encode(images, noise)
    return model.output(model.decode(encoded)), encoded.masked


images = jax.random.normal(jax.random.key(0), (4, SIZE, SIZE, 1))
noise = jax.random.uniform(jax.random.key(1), (4, 16))
found, masked = restored(untrained, images, noise)
np.testing.assert_array_equal(masked, hide(noise, 8))
total, sums = objective.over(found, pixels_of(images), masked, jnp.ones(4))
np.testing.assert_allclose(total / sums["count"], masked_loss(found, pixels_of(images), masked), rtol=1e-5)
print(f"encoder {parameter_count(untrained.encoder):,} parameters, all {parameter_count(untrained):,}")

# %% [markdown]
# ## Restoring shapes
#
# 12,000 images of one of four shapes, under noise; no labels are used.


# %%
def draw(random, rows):
    images = random.normal(0, 0.1, (rows, SIZE, SIZE, 1)).astype(np.float32)
    labels = random.integers(0, len(SHAPES), rows)
    for image, label in zip(images, labels, strict=True):
        height, width = random.integers(6, 11, 2)
        top, left = random.integers(SIZE - height + 1), random.integers(SIZE - width + 1)
        image[top : top + height, left : left + width, 0] += draw_shape(SHAPES[label], height, width)
    return images, labels


IMAGES, LABELS = draw(np.random.default_rng(0), 12_000)
TEST, TEST_LABELS = draw(np.random.default_rng(1), 1_000)
schedule = optax.cosine_onecycle_schedule(STEPS, 4e-3, pct_start=0.1)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.05))


@jax.jit
def step(model, state, images, key):
    def loss(model):
        batch = {"inputs": {"images": images}, "weights": jnp.ones(len(images))}
        total, sums = objective(model, batch, key=key)
        return total / sums["count"]

    value, gradient = jax.value_and_grad(loss)(model)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, value


random, model, state, losses = np.random.default_rng(2), untrained, optimizer.init(untrained), []
for number in range(STEPS):
    model, state, value = step(model, state, IMAGES[random.integers(0, len(IMAGES), 64)], jax.random.key(number))
    losses.append(float(value))
variance = float(pixels_of(TEST).var())
print(f"squared error {losses[0]:.3f} → {np.mean(losses[-50:]):.3f}; the variance of pixels is {variance:.3f}, "
      f"that of the noise 0.010")  # fmt: skip
if not SMALL:
    assert np.mean(losses[-50:]) < 0.8 * variance

# %%
noise = np.random.default_rng(3).random((6, 16), np.float32)
found, masked = (np.asarray(each) for each in restored(model, TEST[:6], noise))
seen = np.where(masked[..., None], 0.5, pixels_of(TEST[:6]))
whole = np.where(masked[..., None], found, pixels_of(TEST[:6]))
figure, axes = plt.subplots(3, 6, figsize=(7, 3.6))
for row, name, each in zip(axes, ("seen", "restored", "image"), (seen, whole, pixels_of(TEST[:6])), strict=True):
    for axis, patches in zip(row, each, strict=True):
        joined = patches.reshape(4, 4, PATCH, PATCH).swapaxes(1, 2).reshape(SIZE, SIZE)
        axis.imshow(joined, cmap="gray", vmin=-0.2, vmax=1.2)
        axis.set(xticks=[], yticks=[])
    row[0].set_ylabel(name)

# %% [markdown]
# ## The probe
#
# The encoder sees whole images; the mean and the maximum of the states of its patches are the features. The probe
# gets 100 to 3,000 labels. It works on features of any kind, and random ones are not bad. So the untrained encoder is
# what to compare with, and beside it the pixels themselves.


# %%
@jax.jit
def features(model, images):
    hidden = model.encode(images).hidden[:, 1:]
    return jnp.concatenate([hidden.mean(1), hidden.max(1)], axis=1)


kinds = {
    "pre-trained": [np.asarray(features(model, each)) for each in (IMAGES[:3_000], TEST)],
    "untrained": [np.asarray(features(untrained, each)) for each in (IMAGES[:3_000], TEST)],
    "pixels": [each.reshape(len(each), -1) for each in (IMAGES[:3_000], TEST)],
}
COUNTS = (100, 300, 1_000, 3_000)
accuracy = {}
for name, (train, test) in kinds.items():
    mean, deviation = train.mean(0), train.std(0) + 1e-6
    train, test = (train - mean) / deviation, (test - mean) / deviation
    accuracy[name] = [float((probe(train[:n], LABELS[:n], test, 3.0) == TEST_LABELS).mean()) for n in COUNTS]
    print(f"{name:11} " + "   ".join(f"{n:,}: {each:.1%}" for n, each in zip(COUNTS, accuracy[name], strict=True)))

figure, axis = plt.subplots(figsize=(4.5, 2.4))
for name, each in accuracy.items():
    axis.semilogx(COUNTS, [100 * one for one in each], "o-", label=name)
axis.axhline(25, color="black", linewidth=0.8, linestyle=":")
axis.set(xlabel="labels", ylabel="test accuracy in %")
axis.legend()
gain = accuracy["pre-trained"][2] - accuracy["untrained"][2]
print(f"for the probe with 1,000 labels pre-training is worth {100 * gain:+.1f} points")

# %% [markdown]
# Of a masked autoencoder the probe is a hard judge: what is needed to restore pixels need not lie in a mean of states,
# where a linear map could read it. The paper, too, reports probes far behind training all of the encoder.
#
# ## Training on
#
# The same linear layer on the same features, and now the encoder learns with it, from 300 labelled images.


# %%
TUNING = min(STEPS, 150)
tuner = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_onecycle_schedule(TUNING, 1e-3), weight_decay=0.05)
)


def class_scores(parts, images):
    encoder, kernel = parts
    return features(encoder, images) @ kernel


@jax.jit
def tuning_step(parts, state, images, labels):
    def loss(parts):
        return optax.softmax_cross_entropy_with_integer_labels(class_scores(parts, images), labels).mean()

    updates, state = tuner.update(jax.grad(loss)(parts), state, parts)
    return optax.apply_updates(parts, updates), state


tuned = {}
for name, start in {"pre-trained": model, "untrained": untrained}.items():
    parts, random = (start, jnp.zeros((2 * D, len(SHAPES)))), np.random.default_rng(4)
    state = tuner.init(parts)
    for _ in range(TUNING):
        chosen = random.integers(0, 300, 64)
        parts, state = tuning_step(parts, state, IMAGES[chosen], LABELS[chosen])
    tuned[name] = float((jax.jit(class_scores)(parts, TEST).argmax(-1) == TEST_LABELS).mean())
    print(f"{name:11} trained on with 300 labels: {tuned[name]:.1%}")
print(f"pre-training is worth {100 * (tuned['pre-trained'] - tuned['untrained']):+.1f} points")
if not SMALL:
    assert tuned["pre-trained"] > tuned["untrained"]

# %% [markdown]
# ## Exercises
#
# 1. What a patch has to be restored to is often normalised, so that its contrast does not count.
#
#    ```python
#    def normalised(pixels):
#        """Return patches [B, P, pixels] with mean 0 and variance 1 each, of n - 1 values, with 1e-6 added to it."""
#    ```
#
# 2. The encoder sees a part of the patches. How many times less does self-attention compute if a share is masked?
#    Count pairs of positions, without the class token.
#
#    ```python
#    def pairs_saved(ratio):
#        """Return pairs without masking, divided by those with it."""
#    ```
#
# 3. A probe without gradients or matrices: the class of the nearest training features by cosine.
#
#    ```python
#    def nearest(features, labels, test):
#        """Return the label of the nearest of features [B, D] for each row of test [C, D]."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def normalised(pixels):
    mean, variance = pixels.mean(-1, keepdims=True), pixels.var(-1, ddof=1, keepdims=True)
    return (pixels - mean) / jnp.sqrt(variance + 1e-6)


# %% tags=["check"]
truth = pixels_of(images)
other, masks = jax.random.normal(jax.random.key(2), truth.shape), jnp.asarray(hide(jnp.asarray(noise[:4]), 8))
total, sums = MAELoss(normalise=True).over(other, truth, masks, jnp.ones(4))
np.testing.assert_allclose(total / sums["count"], masked_loss(other, normalised(truth), masks), rtol=1e-4)


# %% tags=["solution"] jupyter={"source_hidden": true}
def pairs_saved(ratio):
    return 1 / (1 - ratio) ** 2


# %% tags=["check"]
assert abs(pairs_saved(0.75) - (196 / 49) ** 2) < 1e-6
assert abs(pairs_saved(0.0) - 1) < 1e-6


# %% tags=["solution"] jupyter={"source_hidden": true}
def nearest(features, labels, test):
    features, test = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (features, test))
    return labels[(test @ features.T).argmax(1)]


# %% tags=["check"]
three = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
assert nearest(three, np.array([5, 6, 7]), np.array([[9.0, 1.0], [0.1, 0.2], [-3.0, 0.0], [-1.0, 3.0]])).tolist() == [
    5,
    6,
    7,
    6,
]
