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
# # 16. Image generation
#
# An image is made from noise in steps. A small diffusion Transformer learns the velocity of straight paths from
# images to noise, and follows them back for a class that is asked for. A convolutional network that was trained on
# real images says whether the class can be told: the share of generated images that it takes for the class that was
# asked for is the number, by the number of steps.

# %%
import os
from itertools import pairwise

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.synthetic import SHAPES, draw_shape
from flax_transformer.decode.diffusion import Euler, denoise, guided
from flax_transformer.models.vision.dit import dit
from flax_transformer.objective import FlowMatchingLoss
from flax_transformer.train import make_optimizer, muon_cosine, parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 600

# %% [markdown]
# ## The idea
#
# Draw an image $x_0$, noise $\epsilon$ and a time $t$ between 0 and 1. On the straight path between them, the
# velocity is the same everywhere (Lipman et al. 2022, Liu et al. 2022):
#
# $$x_t = (1 - t)\, x_0 + t\, \epsilon, \qquad \frac{d x_t}{d t} = \epsilon - x_0, \qquad
#   \mathcal{L} = \mathbb{E}\, \big\| f(x_t, t, c) - (\epsilon - x_0) \big\|^2$$
#
# Where paths of several images cross, the model $f$ learns the mean of their velocities. Following these from noise
# at $t = 1$ to $t = 0$ by Euler's method, $x \leftarrow x + (t' - t) f(x, t, c)$, ends among images. With one step it
# ends at the mean of all images of the class; more steps choose one.
#
# *Guidance* goes further in the direction in which a class differs from no class (Ho & Salimans 2022):
# $f_\varnothing + s\,(f_c - f_\varnothing)$ with $s > 1$.

# %% [markdown]
# ## Ten lines


# %%
def flow_loss(predict, images, times, noise):
    """Return the loss of a predicted velocity; images and noise are [B, H, W, C]."""
    t = times[:, None, None, None]
    velocity = predict((1 - t) * images + t * noise, times)
    return jnp.square(velocity - (noise - images)).mean()


def euler(predict, x, steps):
    """Follow the velocity from noise to images."""
    times = jnp.linspace(1, 0, steps + 1)
    for now, then in pairwise(times):
        x = x + (then - now) * predict(x, jnp.full(len(x), now))
    return x


# %% [markdown]
# ## The library
#
# `dit` makes a diffusion Transformer (Peebles & Xie 2022): a ViT whose norms are scaled and shifted by what time and
# class are embedded to. `FlowMatchingLoss` is the loss, `denoise` the loop, of any sampler. The model is given times
# from 0 to 1000.

# %%
SIZE = 16
config = dit(64, 3, 4, image=SIZE, patch=4, channels=1, classes=len(SHAPES))
model = config.build(nnx.Rngs(0))
objective = FlowMatchingLoss()

images, noise = jax.random.normal(jax.random.key(0), (2, 8, SIZE, SIZE, 1))
uniform = jax.random.uniform(jax.random.key(1), (8,))
noised = objective.noised(images, uniform, noise)


def half(x, times):
    return x / 2


by_library = jnp.square(half(noised.images, noised.times) - noised.target).mean()
np.testing.assert_allclose(by_library, flow_loss(half, images, noised.times / 1000, noise), rtol=1e-5)
np.testing.assert_allclose(denoise(half, noise, Euler(steps=5)), euler(half, noise, 5), atol=1e-5)
print(f"{parameter_count(model):,} parameters; the same loss, the same images")

# %% [markdown]
# ## Training
#
# One of four shapes in white, of any size between 6 and 12 pixels and anywhere. In one of ten rows the class is left
# out, which teaches the model the velocity of no class.


# %%
def draw(random, rows):
    images, labels = np.full((rows, SIZE, SIZE, 1), -1, np.float32), random.integers(0, len(SHAPES), rows)
    for image, label in zip(images, labels, strict=True):
        height, width = random.integers(6, 13, 2)
        top, left = random.integers(SIZE - height + 1), random.integers(SIZE - width + 1)
        image[top : top + height, left : left + width, 0][draw_shape(SHAPES[label], height, width)] = 1
    return images, labels.astype(np.int32)


IMAGES, LABELS = draw(np.random.default_rng(0), 12_000)


def train(model, loss, optimizer, steps):
    @jax.jit
    def step(model, state, images, labels, key):
        value, gradient = jax.value_and_grad(loss)(model, images, labels, key)
        updates, state = optimizer.update(gradient, state, model)
        return optax.apply_updates(model, updates), state, value

    random, state, losses = np.random.default_rng(0), optimizer.init(model), []
    for number in range(steps):
        chosen = random.integers(0, len(IMAGES), 64)
        model, state, value = step(model, state, IMAGES[chosen], LABELS[chosen], jax.random.key(number))
        losses.append(float(value))
    return model, losses


def velocity_loss(model, images, labels, key):
    batch = {"inputs": {"images": images}, "labels": labels, "weights": jnp.ones(len(images))}
    total, sums = objective(model, batch, key=key)
    return total / sums["count"]


model, losses = train(model, velocity_loss, make_optimizer(muon_cosine(1e-2, warmup=STEPS // 10), STEPS), STEPS)
figure, axis = plt.subplots(figsize=(4, 1.8))
axis.plot(losses)
axis.set(xlabel="step", ylabel="loss", ylim=(0, 1.5))
print(f"loss {np.mean(losses[-50:]):.3f}")

# %% [markdown]
# ## A judge
#
# Three convolutions, trained on real images under noise of all strengths up to half of their contrast, so that it
# does not care for fine detail. It never sees a generated image.


# %%
class Judge(nnx.Module):
    def __init__(self, *, rngs):
        self.one = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.two = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.three = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
        self.output = nnx.Linear(64, len(SHAPES), rngs=rngs)

    def __call__(self, x):
        for layer in (self.one, self.two, self.three):
            x = jax.nn.relu(layer(x))
        return self.output(x.max((1, 2)))


def judge_loss(judge, images, labels, key):
    one, two = jax.random.split(key)
    strength = jax.random.uniform(one, (len(images), 1, 1, 1))
    images = images + strength * jax.random.normal(two, images.shape)
    return optax.softmax_cross_entropy_with_integer_labels(judge(images), labels).mean()


half_as_many = STEPS // 2
optimizer = optax.adamw(optax.cosine_onecycle_schedule(half_as_many, 5e-3))
judge, _ = train(Judge(rngs=nnx.Rngs(1)), judge_loss, optimizer, half_as_many)
verdict = jax.jit(lambda judge, images: judge(images).argmax(-1))
real, real_labels = draw(np.random.default_rng(9), 400)
trust = float((verdict(judge, real) == real_labels).mean())
print(f"right about {trust:.1%} of real images")

# %% [markdown]
# ## How many steps, how much guidance
#
# 400 images, a hundred of each class, from the same noise. Beside the judge's verdict stands how far pixels are from
# black and white, 0 for real images: an image that is a mean of several is grey.

# %%
ASKED = jnp.asarray(np.tile(np.arange(4), 100))
NOISE = jax.random.normal(jax.random.key(5), (400, SIZE, SIZE, 1))


def generate(steps, scale, rows=400):
    @jax.jit
    def made(model, noise, asked):
        return denoise(guided(model.predict, asked, model.cfg.null, scale), noise, Euler(steps=steps))

    return np.asarray(made(model, NOISE[:rows], ASKED[:rows]))


found = {}
samples = {}
for steps, scale in ((1, 1.0), (2, 1.0), (4, 1.0), (16, 1.0), (16, 2.0)):
    samples[steps, scale] = images = generate(steps, scale)
    right = float((verdict(judge, images) == ASKED).mean())
    found[steps, scale] = right, float(np.abs(np.abs(np.clip(images, -1, 1)) - 1).mean())
    print(f"{steps:2} steps, guidance {scale:.0f}: class right for {right:.1%}, grey {found[steps, scale][1]:.2f}")

figure, axes = plt.subplots(len(samples), 12, figsize=(8, 3.5))
for row, ((steps, scale), images) in zip(axes, samples.items(), strict=True):
    for axis, image in zip(row, images, strict=False):
        axis.imshow(image[..., 0], cmap="gray", vmin=-1, vmax=1)
        axis.set(xticks=[], yticks=[])
    row[0].set_ylabel(f"{steps} × {scale:.0f}", fontsize=7)
best = found[16, 2.0][0]
print(f"with 16 steps and guidance the class is right for {best:.1%}; chance is 25 %")
if not SMALL:
    assert best > 0.5
    assert found[16, 1.0][1] < found[1, 1.0][1] - 0.1

# %% [markdown]
# ## Exercises
#
# 1. A point between Euler's method and better ones: Heun's goes along the mean of the velocities where a step begins
#    and where Euler's step would end.
#
#    ```python
#    def heun(predict, x, steps):
#        """Follow the velocity from noise to images, by two calls a step."""
#    ```
#
# 2. From a velocity the image can be read that the model expects: the $x_0$ of $x_t$.
#
#    ```python
#    def expected_image(x, velocity, time):
#        """Return x_0 of x_t and the velocity there."""
#    ```
#
# 3. Guidance as a function of two predictions.
#
#    ```python
#    def guide(of_class, of_none, scale):
#        """Return the guided velocity; 1 is that of the class, 0 that of none."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def heun(predict, x, steps):
    times = jnp.linspace(1, 0, steps + 1)
    for now, then in pairwise(times):
        first = predict(x, jnp.full(len(x), now))
        second = predict(x + (then - now) * first, jnp.full(len(x), then))
        x = x + (then - now) * (first + second) / 2
    return x


# %% tags=["check"]
def linear(x, times):
    return x  # dx/dt = x, so that x(0) = x(1) / e


one = jnp.ones((1, 2, 2, 1))
assert abs(float(heun(linear, one, 8)[0, 0, 0, 0]) - np.exp(-1)) < 2e-3
assert abs(float(euler(linear, one, 8)[0, 0, 0, 0]) - np.exp(-1)) > 1e-2


# %% tags=["solution"] jupyter={"source_hidden": true}
def expected_image(x, velocity, time):
    return x - time * velocity


# %% tags=["check"]
clean, dirt = jax.random.normal(jax.random.key(2), (2, 3, 4, 4, 1))
for time in (0.2, 0.9):
    np.testing.assert_allclose(expected_image((1 - time) * clean + time * dirt, dirt - clean, time), clean, atol=1e-5)


# %% tags=["solution"] jupyter={"source_hidden": true}
def guide(of_class, of_none, scale):
    return of_none + scale * (of_class - of_none)


# %% tags=["check"]
some, other = jax.random.normal(jax.random.key(3), (2, 5))
np.testing.assert_allclose(guide(some, other, 1.0), some, atol=1e-6)
np.testing.assert_allclose(guide(some, other, 0.0), other, atol=1e-6)
np.testing.assert_allclose(guide(jnp.array(3.0), jnp.array(1.0), 2.0), 5.0)
