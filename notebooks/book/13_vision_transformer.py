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
# # 13. Vision Transformer
#
# To a Transformer an image is a sequence of patches. Nothing in it says that neighbouring patches belong together or
# that an object may be anywhere: it learns this from images, where a convolutional network has it built in. The test
# accuracy on drawn shapes, after training on 200 images and on 12,000, shows how much that costs, and what many images
# give back.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.synthetic import SHAPES, draw_shape
from flax_transformer.models.head import with_head
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import PatchConfig, transformer_block, with_fields
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 400

# %% [markdown]
# ## The idea
#
# An image of $H \times W$ pixels and $C$ channels is cut into $P = HW / p^2$ patches of $p \times p$ pixels. Each is
# flattened to a vector $x_i$ and mapped to the width $D$ of the model by one matrix $E$. A learned vector $c$, the
# *class token*, stands before them, and each of the $P + 1$ positions has a learned vector $u_i$ (Dosovitskiy et al.
# 2020):
#
# $$z = [\,c;\; x_1 E + b;\; \dots;\; x_P E + b\,] + u, \qquad E \in \mathbb{R}^{p^2 C \times D}$$
#
# The rest is an encoder as in text, without a mask. A linear layer reads the class of the image from the final state of
# the class token. Attention treats its inputs as a set: without $u$, patches in any order give the same class.

# %% [markdown]
# ## Ten lines
#
# From images to what the first block is given:


# %%
def embed(images, kernel, bias, token, positions, size):
    """Return the class token and the patches [B, 1 + P, D], with their positions."""
    B, H, W, C = images.shape
    cut = images.reshape(B, H // size, size, W // size, size, C)
    patches = cut.swapaxes(2, 3).reshape(B, -1, size * size * C)  # line by line
    x = patches @ kernel + bias
    token = jnp.broadcast_to(token, (B, 1, x.shape[-1]))
    return jnp.concatenate([token, x], axis=1) + positions


# %% [markdown]
# ## The library
#
# `ViTConfig` is a `PatchConfig`, a block and a depth; `with_head` puts a classifier on top. Published sizes such as
# ViT-B/16 are the same config with larger numbers. Our images have 16×16 pixels and one channel.

# %%
SIZE, PATCH, D = 16, 4, 48
patches = PatchConfig(embed=D, image=(SIZE, SIZE), patch=(PATCH, PATCH), channels=1)
block = transformer_block(embed=D, heads=4, inner=2 * D, norm_position="pre", activation="gelu")
config = with_head(ViTConfig(patches=patches, block=block, depth=3), outputs=len(SHAPES), pool="first")
vit = config.build(nnx.Rngs(0))

images = jax.random.normal(jax.random.key(0), (2, SIZE, SIZE, 1))
encoder = vit.backbone
by_hand = embed(images, encoder.patches.patch.kernel.reshape(-1, D), encoder.patches.patch.bias[...],
                encoder.class_token[...], encoder.positions[...], PATCH)  # fmt: skip
np.testing.assert_allclose(encoder.embed(images), by_hand, atol=1e-5)
print(f"{by_hand.shape[1]} vectors of width {D} an image; {parameter_count(vit):,} parameters")

# %% [markdown]
# ## Images to learn from
#
# One of four shapes, of any size between 6 and 10 pixels a side, anywhere, under noise. Background and shapes have the
# same intensity in all images, so that only the form tells the class.


# %%
def draw(random, rows):
    images = random.normal(0, 0.3, (rows, SIZE, SIZE, 1)).astype(np.float32)
    labels = random.integers(0, len(SHAPES), rows)
    for image, label in zip(images, labels, strict=True):
        height, width = random.integers(6, 11, 2)
        top, left = random.integers(SIZE - height + 1), random.integers(SIZE - width + 1)
        image[top : top + height, left : left + width, 0] += draw_shape(SHAPES[label], height, width)
    return images, labels.astype(np.int32)


IMAGES, LABELS = draw(np.random.default_rng(0), 12_000)
TEST_IMAGES, TEST_LABELS = draw(np.random.default_rng(1), 1_000)
figure, axes = plt.subplots(1, 8, figsize=(8, 1.3))
for axis, image, label in zip(axes, IMAGES, LABELS, strict=False):
    axis.imshow(image[..., 0], cmap="gray")
    axis.set_title(SHAPES[label])
    axis.axis("off")

# %% [markdown]
# ## Three models, few images and many
#
# Beside the ViT: a convolutional network of three layers, which takes the maximum over all places at its end, and a
# multilayer perceptron, which has a weight for each pixel. All three see as many batches; with 200 images, each one
# comes 128 times.


# %%
class Convolutions(nnx.Module):
    def __init__(self, *, rngs):
        self.one = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.two = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.three = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
        self.output = nnx.Linear(64, len(SHAPES), rngs=rngs)

    def __call__(self, x):
        for layer in (self.one, self.two, self.three):
            x = jax.nn.relu(layer(x))
        return self.output(x.max((1, 2)))


class Perceptron(nnx.Module):
    def __init__(self, *, rngs):
        self.one = nnx.Linear(SIZE * SIZE, 128, rngs=rngs)
        self.two = nnx.Linear(128, 128, rngs=rngs)
        self.output = nnx.Linear(128, len(SHAPES), rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.one(x.reshape(len(x), -1)))
        return self.output(jax.nn.relu(self.two(x)))


def vit_logits(model, images):
    return model.output(model.hidden_states(images))


def logits_of(model, images):
    return model(images)


def train(model, logits, count, rate):
    """Return a model trained on the first images, and its test accuracy."""
    schedule = optax.cosine_onecycle_schedule(STEPS, rate, pct_start=0.2)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.05))

    @jax.jit
    def step(model, state, images, labels):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(logits(model, images), labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(model), state, model)
        return optax.apply_updates(model, updates), state

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        chosen = random.integers(0, count, 64)
        model, state = step(model, state, IMAGES[chosen], LABELS[chosen])
    found = jax.jit(logits)(model, TEST_IMAGES).argmax(-1)
    return model, float((found == TEST_LABELS).mean())


MODELS = {
    "convolutions": (lambda: Convolutions(rngs=nnx.Rngs(0)), logits_of, 3e-3),
    "ViT": (lambda: config.build(nnx.Rngs(0)), vit_logits, 3e-3),
    "perceptron": (lambda: Perceptron(rngs=nnx.Rngs(0)), logits_of, 2e-3),
}
COUNTS = (200, 12_000)
accuracy = {}
for name, (build, logits, rate) in MODELS.items():
    for count in COUNTS:
        trained, accuracy[name, count] = train(build(), logits, count, rate)
        if name == "ViT":
            vit = trained
    print(f"{name:12} {parameter_count(trained):6,} parameters   " + "   ".join(
        f"{count:6,} images: {accuracy[name, count]:.1%}" for count in COUNTS))  # fmt: skip

figure, axis = plt.subplots(figsize=(4.5, 2.4))
for number, name in enumerate(MODELS):
    axis.bar(np.arange(2) + 0.25 * number, [100 * accuracy[name, count] for count in COUNTS], 0.22, label=name)
axis.axhline(25, color="black", linewidth=0.8, linestyle=":")
axis.set(xticks=np.arange(2) + 0.25, xticklabels=[f"{count:,} images" for count in COUNTS], ylabel="test accuracy in %")
_ = axis.legend(loc="upper left", ncols=3, fontsize=7)
_ = axis.set_ylim(0, 118)

gaps = {count: accuracy["convolutions", count] - accuracy["ViT", count] for count in COUNTS}
print(f"the ViT is {100 * gaps[200]:.0f} points behind with 200 images, {100 * gaps[12_000]:.0f} with 12,000")
if not SMALL:
    assert gaps[12_000] + 0.1 < gaps[200]
    assert accuracy["ViT", 12_000] > accuracy["perceptron", 12_000]

# %% [markdown]
# With few images the ViT is no better than the perceptron: it learns its 200 images by heart. With many it leaves the
# perceptron behind, as all patches share $E$ and the blocks, but here it does not reach the convolutions. In the
# paper that took 14 million images and more.
#
# ## What positions have learned
#
# A ViT is told where patches are by a table of vectors that begin as noise. After training, each row of this table may
# be compared with the others: are those of near patches alike?

# %%
table = np.asarray(vit.backbone.positions[...])[1:]
table = table - table.mean(0)
table /= np.linalg.norm(table, axis=1, keepdims=True)
alike, side = table @ table.T, SIZE // PATCH
figure, axes = plt.subplots(side, side, figsize=(3, 3))
for axis, each in zip(axes.flat, alike, strict=True):
    axis.imshow(each.reshape(side, side), cmap="RdBu_r", vmin=-1, vmax=1)
    axis.axis("off")

rows, columns = np.divmod(np.arange(side * side), side)
distance = np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns)
near, far = alike[distance == 1].mean(), alike[distance >= 4].mean()
print(f"mean cosine of neighbours {near:+.2f}, of patches four steps or more apart {far:+.2f}")
if not SMALL:
    assert near > far

# %% [markdown]
# ## Exercises
#
# 1. Put images together from their patches: the inverse of the cutting in `embed`.
#
#    ```python
#    def join(patches, size):
#        """Return square images [B, H, H, C] of their patches [B, P, size * size * C], line by line."""
#    ```
#
# 2. Return images whose patches stand in another order. With it the check shows that a ViT without positions gives
#    the same logits, and one with positions others.
#
#    ```python
#    def shuffle(images, order, size):
#        """Return images whose patch i is patch order[i] of the given ones [B, H, H, C]."""
#    ```
#
# 3. How many times as many pairs of positions does self-attention compare if the sides of an image are multiplied by
#    `factor`, and patches stay as they are? Count the class token, too.
#
#    ```python
#    def more_pairs(side, patch, factor):
#        """Return the ratio of the numbers of pairs, after and before."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def join(patches, size):
    B, P, width = patches.shape
    side = int(P**0.5)
    cut = patches.reshape(B, side, side, size, size, width // size**2)
    return cut.swapaxes(2, 3).reshape(B, side * size, side * size, -1)


# %% tags=["check"]
numbers = jnp.arange(2 * 8 * 8 * 3.0).reshape(2, 8, 8, 3)
identity = embed(numbers, jnp.eye(48), 0, jnp.zeros(48), 0, 4)[:, 1:]  # the patches themselves
np.testing.assert_array_equal(join(identity, 4), numbers)


# %% tags=["solution"] jupyter={"source_hidden": true}
def shuffle(images, order, size):
    B, H, W, C = images.shape
    cut = images.reshape(B, H // size, size, W // size, size, C).swapaxes(2, 3)
    moved = cut.reshape(B, -1, size, size, C)[:, order].reshape(cut.shape)
    return moved.swapaxes(2, 3).reshape(images.shape)


# %% tags=["check"]
order = np.random.default_rng(0).permutation((SIZE // PATCH) ** 2)
moved = shuffle(TEST_IMAGES[:4], order, PATCH)
np.testing.assert_array_equal(shuffle(moved, np.argsort(order), PATCH), TEST_IMAGES[:4])
blind = with_fields(config, position="none").build(nnx.Rngs(1))
np.testing.assert_allclose(vit_logits(blind, moved), vit_logits(blind, TEST_IMAGES[:4]), atol=1e-5)
assert float(jnp.abs(vit_logits(vit, moved) - vit_logits(vit, TEST_IMAGES[:4])).max()) > 1e-3


# %% tags=["solution"] jupyter={"source_hidden": true}
def more_pairs(side, patch, factor):
    before, after = ((times * side // patch) ** 2 + 1 for times in (1, factor))
    return (after / before) ** 2


# %% tags=["check"]
assert abs(more_pairs(16, 4, 1) - 1) < 1e-6
assert abs(more_pairs(16, 4, 2) - (65 / 17) ** 2) < 1e-6
assert 15.5 < more_pairs(224, 16, 2) < 16
