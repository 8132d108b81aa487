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
# # 15. MLP-Mixer
#
# Patches of an image can exchange what they know without attention: by a matrix over positions, the same for every
# image. What does attention add? Its weights depend on what is in the image. Two tasks on drawn images tell the
# difference: naming a shape, and finding the patch that has the same colour as another one. The numbers are the test
# accuracies of a Mixer and a Vision Transformer of as many layers on both.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.bench.flops import count_flops
from flax_transformer.data.synthetic import COLOURS, SHAPES, draw_shape
from flax_transformer.models.head import with_head
from flax_transformer.models.vision.mixer import mixer
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import PatchConfig, layer, transformer_block
from flax_transformer.train import make_optimizer, muon_cosine, parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 350

# %% [markdown]
# ## The idea
#
# The states of an image are a matrix $X$ of $P$ patches and $D$ channels. A feed-forward layer mixes the channels of
# each patch. A Mixer's block (Tolstikhin et al. 2021) has another one that mixes the patches of each channel, with
# $W_1 \in \mathbb{R}^{P \times F}$ and $W_2 \in \mathbb{R}^{F \times P}$:
#
# $$X \leftarrow X + \Big(\sigma\big(\mathrm{norm}(X)^\top W_1\big) W_2\Big)^\top, \qquad
#   X \leftarrow X + \mathrm{FFN}\big(\mathrm{norm}(X)\big)$$
#
# Attention mixes patches by $\mathrm{softmax}(Q K^\top / \sqrt H)$, made anew for each image. The Mixer's
# matrices are learned once. They cost less, they need no positions, since each position has its own weights, and they
# are of one size of images only.

# %% [markdown]
# ## Ten lines


# %%
def norm(x, scale, bias, eps=1e-6):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + eps) * scale + bias


def feed_forward(x, up, up_bias, down, down_bias):
    return jax.nn.gelu(x @ up + up_bias, approximate=False) @ down + down_bias


def mixer_block(x, tokens, channels, token_norm, channel_norm):
    """Return the states [P, D] after a block; tokens and channels are the arrays of two feed-forward layers."""
    x = x + feed_forward(norm(x, *token_norm).T, *tokens).T
    return x + feed_forward(norm(x, *channel_norm), *channels)


# %% [markdown]
# ## The library
#
# `mixer` makes the config. Its blocks are those of any trunk, with a feed-forward layer over patches where a
# Transformer has attention.

# %%
SIZE, PATCH, D, DEPTH = 16, 4, 48, 2
MIXER = mixer(embed=D, depth=DEPTH, tokens=32, inner=2 * D, image=SIZE, patch=PATCH)
blocks = MIXER.build(nnx.Rngs(0)).trunk.blocks
first = layer(blocks, 0)


def arrays(part):
    return [each[...] for each in (part.up.kernel, part.up.bias, part.down.kernel, part.down.bias)]


def norm_arrays(part):
    return [part.norm.scale[...], part.norm.bias[...]]


x = jax.random.normal(jax.random.key(0), ((SIZE // PATCH) ** 2, D))
by_hand = mixer_block(x, arrays(first.tokens), arrays(first.feedforward), norm_arrays(first.tokens_residual),
                      norm_arrays(first.feedforward_residual))  # fmt: skip
np.testing.assert_allclose(first(x), by_hand, atol=1e-5)
print(f"a block of {parameter_count(first):,} parameters")

# %% [markdown]
# ## Two tasks
#
# Both have images of 16×16 pixels in colour, 16 patches. In the first there is one shape, anywhere, of any colour;
# its class is wanted. In the second the four patches of the upper row have a colour each, without a mark. The same
# colours are in four of the twelve patches below, each with one of four marks, among patches of other colours. Of
# each patch of the upper row, which mark has the patch of its colour?

# %%
INKS = np.array(list(COLOURS.values()), np.float32)
INKS = np.concatenate([INKS, [[245, 140, 30], [120, 70, 30]]]) / np.float32(127.5) - 1
y, x = np.mgrid[:PATCH, :PATCH]
MARKS = np.stack([y < 2, x < 2, (y + x) % 2 == 0, (y % 3 == 0) | (x % 3 == 0)])


def draw_shapes(random, rows):
    images, labels = np.empty((rows, SIZE, SIZE, 3), np.float32), random.integers(0, len(SHAPES), rows)
    for image, label in zip(images, labels, strict=True):
        image[:] = random.uniform(-0.2, 0.2, 3)
        height, width = random.integers(6, 11, 2)
        top, left = random.integers(SIZE - height + 1), random.integers(SIZE - width + 1)
        place = image[top : top + height, left : left + width]
        place[draw_shape(SHAPES[label], height, width)] = INKS[random.integers(len(INKS))]
    return images + random.normal(0, 0.15, images.shape).astype(np.float32), labels.astype(np.int32)


def draw_matches(random, rows):
    colours = random.permuted(np.tile(np.arange(8), (rows, 1)), axis=1)
    marks = random.integers(0, len(MARKS), (rows, 8))
    places = 4 + random.permuted(np.tile(np.arange(12), (rows, 1)), axis=1)[:, :8]
    patches = np.full((rows, 16, PATCH, PATCH, 3), -0.8, np.float32)
    inks = INKS[colours]  # [rows, 8, 3]
    patches[:, :4] = inks[:, :4, None, None]
    inside = MARKS[marks][..., None]
    np.put_along_axis(patches, places[..., None, None, None], np.where(inside, inks[:, :, None, None], -0.8), axis=1)
    images = patches.reshape(rows, 4, 4, PATCH, PATCH, 3).swapaxes(2, 3).reshape(rows, SIZE, SIZE, 3)
    return images + random.normal(0, 0.15, images.shape).astype(np.float32), marks[:, :4].astype(np.int32)


TASKS = {"shape": draw_shapes, "match": draw_matches}
DATA = {name: (draw(np.random.default_rng(0), 12_000), draw(np.random.default_rng(1), 1_000))
        for name, draw in TASKS.items()}  # fmt: skip
figure, axes = plt.subplots(1, 8, figsize=(8, 1.3))
for axis, image in zip(axes, [*DATA["shape"][0][0][:4], *DATA["match"][0][0][:4]], strict=True):
    axis.imshow(np.clip((image + 1) / 2, 0, 1))
    axis.axis("off")

# %% [markdown]
# ## The claim
#
# The head reads the mean of all patches in the first task, and each patch of the upper row by itself in the second.

# %%
block = transformer_block(embed=D, heads=4, inner=2 * D, norm_position="pre", activation="gelu")
patches = PatchConfig(embed=D, image=(SIZE, SIZE), patch=(PATCH, PATCH))
BACKBONES = {"Mixer": MIXER, "ViT": ViTConfig(patches=patches, block=block, depth=DEPTH, tokens=(), table_std=0.2)}
POOLS = {"shape": "mean", "match": "every"}


def logits_of(model, images):
    found = model.output(model.hidden_states(images))
    return found[:, :4] if found.ndim == 3 else found


def train(model, images, labels):
    optimizer = make_optimizer(muon_cosine(1e-2, warmup=STEPS // 10), STEPS)

    @jax.jit
    def step(model, state, images, labels):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(logits_of(model, images), labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(model), state, model)
        return optax.apply_updates(model, updates), state

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        chosen = random.integers(0, len(images), 64)
        model, state = step(model, state, images[chosen], labels[chosen])
    return model


accuracy, trained = {}, {}
for task, (data, (images, labels)) in DATA.items():
    for name, backbone in BACKBONES.items():
        model = with_head(backbone, outputs=4, pool=POOLS[task]).build(nnx.Rngs(0))
        trained[task, name] = model = train(model, *data)
        accuracy[task, name] = float((jax.jit(logits_of)(model, images).argmax(-1) == labels).mean())
        cost = count_flops(logits_of, model, images[:1]).model
        print(f"{task}: {name:5} {parameter_count(model):6,} parameters, {cost / 1e6:.2f} MFLOPs an image, "
              f"test accuracy {accuracy[task, name]:.1%}")  # fmt: skip

figure, axis = plt.subplots(figsize=(4.5, 2.2))
for number, name in enumerate(BACKBONES):
    axis.bar(np.arange(2) + 0.3 * number, [100 * accuracy[task, name] for task in TASKS], 0.27, label=name)
axis.axhline(25, color="black", linewidth=0.8, linestyle=":")
axis.set(xticks=np.arange(2) + 0.15, xticklabels=["naming a shape", "matching colours"], ylabel="test accuracy in %")
axis.legend()
extra = {task: accuracy[task, "ViT"] - accuracy[task, "Mixer"] for task in TASKS}
print(", ".join(f"attention adds {100 * each:+.0f} points for the task {task!r}" for task, each in extra.items()))
if not SMALL:
    assert extra["match"] > 0.15 + extra["shape"]

# %% [markdown]
# Where an answer depends on what is where, and not on which patch equals which, mixing by position is enough. To find
# the patch that is like another one, weights must be made of the patches themselves.

# %% [markdown]
# ## Exercises
#
# 1. How many weights of an image does a Mixer's block share with the same channel at another position? Count the
#    parameters of the layer over patches, with biases.
#
#    ```python
#    def token_parameters(patches, inner):
#        """Return the number of parameters of the feed-forward layer over patches."""
#    ```
#
# 2. Attention whose weights do not depend on the image: a learned matrix of scores, a softmax over keys, for each
#    head.
#
#    ```python
#    def fixed_attention(values, scores):
#        """Return the mixed values [P, N, H] of N heads; scores are [N, P, P]."""
#    ```
#
# 3. Is a function of patches indifferent to their order? Return whether permuting the rows of its input permutes its
#    output in the same way.
#
#    ```python
#    def is_equivariant(function, x, order):
#        """Return whether function(x[order]) equals function(x)[order]; x is [P, D]."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def token_parameters(patches, inner):
    return patches * inner + inner + inner * patches + patches


# %% tags=["check"]
assert token_parameters(16, 32) == parameter_count(first.tokens)
assert token_parameters(196, 384) == 151_108  # Mixer-B/16


# %% tags=["solution"] jupyter={"source_hidden": true}
def fixed_attention(values, scores):
    return jnp.einsum("npq,qnh->pnh", jax.nn.softmax(scores, axis=-1), values)


# %% tags=["check"]
values = jax.random.normal(jax.random.key(1), (5, 2, 3))
np.testing.assert_allclose(
    fixed_attention(values, jnp.zeros((2, 5, 5))), jnp.broadcast_to(values.mean(0), (5, 2, 3)), atol=1e-6
)
own = 100 * jnp.eye(5) * jnp.ones((2, 1, 1))
np.testing.assert_allclose(fixed_attention(values, own), values, atol=1e-6)


# %% tags=["solution"] jupyter={"source_hidden": true}
def is_equivariant(function, x, order):
    return bool(jnp.allclose(function(x[order]), function(x)[order], atol=1e-5))


# %% tags=["check"]
order = np.random.default_rng(0).permutation(16)
states = jax.random.normal(jax.random.key(2), (16, D))
assert is_equivariant(layer(trained["match", "ViT"].backbone.trunk.blocks, 0), states, order) is True
assert is_equivariant(layer(trained["match", "Mixer"].backbone.trunk.blocks, 0), states, order) is False
