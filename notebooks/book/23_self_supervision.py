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
# An encoder can learn from images without labels: two views of an image are to be found by each other among the views
# of other images. Is what it has learned of use for something else? The number that says so is the test accuracy of a
# linear classifier on its frozen features, a *probe*, with few labels, beside that of the same encoder as it was
# initialised.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.synthetic import SHAPES, draw_shape
from flax_transformer.models.vision.view_encoder import ProjectorConfig, ViewEncoderConfig
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import PatchConfig, transformer_block
from flax_transformer.objective import SimCLRLoss, ViewChange, Views
from flax_transformer.ops.norm import unit
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 400

# %% [markdown]
# ## The idea
#
# SimCLR (Chen et al. 2020) makes two *views* of each of $B$ images by random crops and changes of brightness. Encoder
# and projector make a vector of length 1 of each, $z_1, \dots, z_{2B}$. The other view $p(i)$ of the same image is to
# be found among all others, by their similarity and a temperature $\tau$:
#
# $$\mathcal{L} = -\frac{1}{2B} \sum_{i} \log
# \frac{\exp(z_i^\top z_{p(i)} / \tau)}{\sum_{j \ne i} \exp(z_i^\top z_j / \tau)}$$
#
# After this the projector is thrown away. A linear map of the encoder's features $Z$, fitted by least squares to few
# labels $Y$, is the probe:
#
# $$W = \mathrm{arg\,min}_W \|Z W - Y\|^2 + \lambda \|W\|^2 = (Z^\top Z + \lambda I)^{-1} Z^\top Y$$

# %% [markdown]
# ## Ten lines


# %%
def nt_xent(z, temperature):
    """Return the mean loss of vectors [2B, E] of length 1; row i and row i + B are views of one image."""
    scores = z @ z.T / temperature
    scores = jnp.where(jnp.eye(len(z), dtype=bool), -jnp.inf, scores)
    other = jnp.roll(jnp.arange(len(z)), len(z) // 2)
    return -jnp.mean(jax.nn.log_softmax(scores)[jnp.arange(len(z)), other])


# %% [markdown]
# ## The library
#
# `SimCLRLoss` makes the views on the device and computes the same; on a mesh all views of all devices are compared.

# %%
SIZE, WIDTH = 16, 48
objective = SimCLRLoss(
    temperature=0.2,
    views=Views(
        area=(0.5, 1.0), aspect=(0.5, 2.0), changes=(ViewChange(jitter=(0.3, 0.3, 0.0, 0.0), grey=0.0, blur=0.0),)
    ),
)  # fmt: skip
z = unit(jax.random.normal(jax.random.key(0), (8, 2, 16)))
total, metrics = objective.over(z, jnp.ones(8, bool))
np.testing.assert_allclose(total / metrics["count"], nt_xent(jnp.concatenate([z[:, 0], z[:, 1]]), 0.2), rtol=1e-5)
print("the same loss")

# %% [markdown]
# ## Learning without labels
#
# The images have one of four shapes, of any size from 6 to 10 pixels, somewhere on a noisy ground. The encoder is a ViT
# of two layers on 16 patches. Its features are the mean and the largest value of each channel over patches.


# %%
def draw(random, rows):
    images = random.normal(-0.5, 0.1, (rows, SIZE, SIZE, 1)).astype(np.float32)
    labels = random.integers(0, len(SHAPES), rows)
    for image, label in zip(images, labels, strict=True):
        height, width = random.integers(6, 11, 2)
        top, left = random.integers(SIZE - height + 1), random.integers(SIZE - width + 1)
        image[top : top + height, left : left + width, 0] += draw_shape(SHAPES[label], height, width)
    return images, labels


images, labels = draw(np.random.default_rng(0), 8_000)
test_images, test_labels = draw(np.random.default_rng(1), 1_000)
encoder = ViTConfig(
    patches=PatchConfig(embed=WIDTH, image=(SIZE, SIZE), patch=(4, 4), channels=1),
    block=transformer_block(embed=WIDTH, heads=4, inner=2 * WIDTH, norm_position="pre", activation="gelu"),
    depth=2,
)  # fmt: skip
untrained = ViewEncoderConfig(
    encoder=encoder, projector=ProjectorConfig(embed=WIDTH, outputs=32, hidden=96), pool="mean"
).build(nnx.Rngs(0))  # fmt: skip
print(f"{parameter_count(untrained):,} parameters")

schedule = optax.cosine_onecycle_schedule(400, 4e-3, pct_start=0.1)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.05))


@jax.jit
def step(model, state, batch, key):
    def loss(model):
        total, metrics = objective(model, {"inputs": {"images": batch}, "weights": jnp.ones(len(batch))}, key=key)
        return total / metrics["count"], metrics["accuracy"] / metrics["count"]

    (value, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(model)
    updates, state = optimizer.update(grads, state, model)
    return optax.apply_updates(model, updates), state, value, accuracy


trained, state, random, losses = untrained, optimizer.init(untrained), np.random.default_rng(0), []
for number in range(STEPS):
    batch = images[random.integers(0, len(images), 128)]
    trained, state, value, accuracy = step(trained, state, batch, jax.random.key(number))
    losses.append(float(value))
print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}; by chance {np.log(255):.2f}")

# %% [markdown]
# ## The probe
#
# Nothing of the encoder changes any more. With 100 to 3,000 labels a linear map is fitted.


# %%
@jax.jit
def features(model, batch):
    hidden = model.hidden_states(batch)
    return jnp.concatenate([hidden.mean(1), hidden.max(1)], axis=1)


def probe(model, count, weight=3.0):
    """Return the test accuracy of a linear map fitted to `count` labels."""
    train, test = np.asarray(features(model, images[:count])), np.asarray(features(model, test_images))
    mean, deviation = train.mean(0), train.std(0) + 1e-6
    train, test = ((each - mean) / deviation for each in (train, test))
    train, test = (np.concatenate([each, np.ones((len(each), 1))], axis=1) for each in (train, test))
    matrix = np.linalg.solve(
        train.T @ train + weight * np.eye(train.shape[1]), train.T @ np.eye(len(SHAPES))[labels[:count]]
    )
    return float(((test @ matrix).argmax(1) == test_labels).mean())


COUNTS = 100, 300, 1_000, 3_000
found = {
    name: [probe(model, count) for count in COUNTS] for name, model in (("SimCLR", trained), ("untrained", untrained))
}
for name, each in found.items():
    print(f"{name:10}", "  ".join(f"{count:,} labels: {value:.1%}" for count, value in zip(COUNTS, each, strict=True)))
if not SMALL:
    assert found["SimCLR"][0] > found["untrained"][0] + 0.08
    assert found["SimCLR"][0] > found["untrained"][2] - 0.08

# %%
figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.2))
axes[0].plot(losses)
axes[0].set(xlabel="step", ylabel="loss")
for name, each in found.items():
    axes[1].semilogx(COUNTS, each, "o-", label=name)
axes[1].set_xticks(COUNTS, [f"{count:,}" for count in COUNTS])
axes[1].minorticks_off()
axes[1].set(xlabel="labels", ylabel="accuracy of the probe")
axes[1].legend()
plt.show()

# %% [markdown]
# With 100 labels the probe of the encoder that has seen no label while it learned does about as well as that of the
# untrained one with 1,000. What the views leave alone decides on what is learned: crops that keep half of the
# area or more leave shapes what they are. An untrained encoder is no low bar: random features with many labels go far.

# %% [markdown]
# ## Exercises
#
# 1. When all vectors are the same, no view can be found. What is the loss of $B$ images then?
#
#    ```python
#    def collapsed_loss(rows):
#        """Return the loss of `rows` images whose vectors are all equal."""
#    ```
#
# 2. BYOL compares two views of an image alone: the squared distance of vectors of length 1.
#
#    ```python
#    def byol_distance(one, other):
#        """Return the mean squared distance of vectors [B, E], after each has been given length 1."""
#    ```
#
# 3. How many directions do the vectors fill? The *effective rank* is the exponential of the entropy of the singular
#    values, each divided by their sum.
#
#    ```python
#    def effective_rank(vectors):
#        """Return the effective rank of vectors [N, D]."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def collapsed_loss(rows):
    return float(np.log(2 * rows - 1))


# %% tags=["check"]
assert abs(collapsed_loss(8) - float(nt_xent(jnp.ones((16, 4)) / 2, 0.5))) < 1e-5
assert abs(collapsed_loss(1)) < 1e-12


# %% tags=["solution"] jupyter={"source_hidden": true}
def byol_distance(one, other):
    one, other = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (one, other))
    return float(np.mean(np.sum((one - other) ** 2, axis=1)))


# %% tags=["check"]
assert abs(byol_distance(np.array([[2.0, 0.0]]), np.array([[0.0, 5.0]])) - 2) < 1e-6
assert abs(byol_distance(np.array([[1.0, 1.0]]), np.array([[3.0, 3.0]]))) < 1e-6


# %% tags=["solution"] jupyter={"source_hidden": true}
def effective_rank(vectors):
    values = np.linalg.svd(np.asarray(vectors), compute_uv=False)
    weights = values / values.sum()
    weights = weights[weights > 0]
    return float(np.exp(-np.sum(weights * np.log(weights))))


# %% tags=["check"]
assert abs(effective_rank(np.eye(5)) - 5) < 1e-5
assert abs(effective_rank(np.ones((7, 3))) - 1) < 1e-3
