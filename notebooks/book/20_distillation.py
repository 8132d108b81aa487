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
# # 20. Distillation
#
# A model can learn from the answers of another one instead of labels. A convolutional network learns drawn shapes
# from 200 labelled images; its answers for 12,000 images without labels then teach a Vision Transformer. The number
# is the test accuracy of this student, beside that of the same ViT trained on the 200 labels: what the teacher knows
# by its construction passes to a student that is built otherwise.

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
from flax_transformer.nn import PatchConfig, transformer_block
from flax_transformer.objective import DistilLoss, LabelLoss
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 350

# %% [markdown]
# ## The idea
#
# A label says one class; a teacher's answer is a distribution. Which wrong classes it finds likely says what they
# have in common. A *temperature* $\tau > 1$ makes these small probabilities visible (Hinton et al. 2015). With the
# logits $z$ of the student and $t$ of the teacher:
#
# $$p_\tau(t) = \mathrm{softmax}(t / \tau), \qquad
#   \mathcal{L} = (1 - w)\, \mathcal{L}_{\text{label}}
#     + w\, \tau^2\, \mathrm{KL}\big(p_\tau(t) \,\big\|\, p_\tau(z)\big)$$
#
# The factor $\tau^2$ keeps gradients as large as they are at $\tau = 1$. *Hard* distillation takes the teacher's best
# class for a label, as DeiT does (Touvron et al. 2020). A teacher needs no labels: it answers for any image.

# %% [markdown]
# ## Ten lines


# %%
def soft_loss(scores, teacher, temperature):
    """Return the mean loss of scores [B, E] against those of a teacher."""
    student = jax.nn.log_softmax(scores / temperature)
    wanted = jax.nn.log_softmax(teacher / temperature)
    divergence = (jnp.exp(wanted) * (wanted - student)).sum(-1)
    return temperature**2 * divergence.mean()


# %% [markdown]
# ## The library
#
# `DistilLoss` is an objective like any other; a batch has the teacher's scores beside inputs and labels.


# %%
class GivenScores:
    """A model whose scores are its inputs."""

    def hidden_states(self, scores, *, key=None):
        return scores

    def output(self, hidden, *, key=None):
        return hidden


scores, teacher = jax.random.normal(jax.random.key(0), (2, 8, 4))
batch = {"inputs": {"scores": scores}, "labels": jnp.zeros(8, jnp.int32), "weights": jnp.ones(8),
         "teacher": {"logits": teacher}}  # fmt: skip
total, sums = DistilLoss(kind="soft", weight=1.0, temperature=3.0)(GivenScores(), batch)
np.testing.assert_allclose(total / sums["count"], soft_loss(scores, teacher, 3.0), rtol=1e-5)
total, _ = DistilLoss(kind="hard", weight=0.0)(GivenScores(), batch)
np.testing.assert_allclose(total, LabelLoss()(GivenScores(), batch)[0], rtol=1e-6)
print("the same loss; of weight 0 it is that of the labels")

# %% [markdown]
# ## A teacher
#
# One of four shapes, of any size and anywhere, under noise. 200 images have labels, 12,000 have none.

# %%
SIZE, D = 16, 48


def draw(random, rows):
    images = random.normal(0, 0.3, (rows, SIZE, SIZE, 1)).astype(np.float32)
    labels = random.integers(0, len(SHAPES), rows)
    for image, label in zip(images, labels, strict=True):
        height, width = random.integers(6, 11, 2)
        top, left = random.integers(SIZE - height + 1), random.integers(SIZE - width + 1)
        image[top : top + height, left : left + width, 0] += draw_shape(SHAPES[label], height, width)
    return images, labels.astype(np.int32)


LABELLED, LABELS = draw(np.random.default_rng(0), 200)
UNLABELLED, _ = draw(np.random.default_rng(1), 12_000)
TEST, TEST_LABELS = draw(np.random.default_rng(2), 1_000)


class Convolutions(nnx.Module):
    def __init__(self, *, rngs):
        self.one = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.two = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
        self.three = nnx.Conv(32, 64, (3, 3), strides=2, rngs=rngs)
        self.last = nnx.Linear(64, len(SHAPES), rngs=rngs)

    def hidden_states(self, images, *, key=None):
        for layer in (self.one, self.two, self.three):
            images = jax.nn.relu(layer(images))
        return images.max((1, 2))

    def output(self, hidden, *, key=None):
        return self.last(hidden)


def scores_of(model, images):
    return model.output(model.hidden_states(images))


def train(model, objective, images, labels, teacher=None, rate=3e-3):
    """Return a trained model and its test accuracy."""
    schedule = optax.cosine_onecycle_schedule(STEPS, rate, pct_start=0.2)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.05))

    @jax.jit
    def step(model, state, batch):
        def loss(model):
            total, sums = objective(model, batch)
            return total / sums["count"]

        updates, state = optimizer.update(jax.grad(loss)(model), state, model)
        return optax.apply_updates(model, updates), state

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        chosen = random.integers(0, len(images), 64)
        batch = {"inputs": {"images": images[chosen]}, "labels": labels[chosen], "weights": np.ones(64, np.float32)}
        batch |= {} if teacher is None else {"teacher": {"logits": teacher[chosen]}}
        model, state = step(model, state, batch)
    found = jax.jit(scores_of)(model, TEST).argmax(-1)
    return model, float((found == TEST_LABELS).mean())


teacher, taught = train(Convolutions(rngs=nnx.Rngs(0)), LabelLoss(), LABELLED, LABELS)
ANSWERS = np.asarray(jax.jit(scores_of)(teacher, UNLABELLED))
print(f"the teacher: {parameter_count(teacher):,} parameters, {taught:.1%} of the test images")

# %% [markdown]
# What it says of some images, at two temperatures. At the higher one a student sees which shapes look alike.

# %%
figure, axes = plt.subplots(2, 6, figsize=(8, 2.8))
for (top, below), image, logits in zip(axes.T, UNLABELLED, ANSWERS, strict=False):
    top.imshow(image[..., 0], cmap="gray")
    top.axis("off")
    for shift, temperature in ((-0.2, 1), (0.2, 4)):
        below.bar(np.arange(4) + shift, jax.nn.softmax(logits / temperature), 0.4, label=f"τ = {temperature}")
    below.set(ylim=(0, 1), xticks=range(4), yticks=[])
    below.set_xticklabels(SHAPES, rotation=90, fontsize=7)
_ = axes[1, 0].legend(fontsize=6)

# %% [markdown]
# ## Three students
#
# The same ViT learns from the 200 labels, from the teacher's best classes for the 12,000 images, and from its
# distributions. All see as many batches.

# %%
patches = PatchConfig(embed=D, image=(SIZE, SIZE), patch=(4, 4), channels=1)
block = transformer_block(embed=D, heads=4, inner=2 * D, norm_position="pre", activation="gelu")
config = with_head(ViTConfig(patches=patches, block=block, depth=3), outputs=len(SHAPES), pool="first")
nothing = np.zeros(len(UNLABELLED), np.int32)
ways = {
    "200 labels": (LabelLoss(), LABELLED, LABELS, None),
    "hard answers": (DistilLoss(kind="hard", weight=1.0), UNLABELLED, nothing, ANSWERS),
    "soft answers": (DistilLoss(kind="soft", weight=1.0, temperature=2.0), UNLABELLED, nothing, ANSWERS),
}
accuracy, agreement = {"the teacher": taught}, {}
own = jax.jit(scores_of)(teacher, TEST).argmax(-1)
for name, each in ways.items():
    student, accuracy[name] = train(config.build(nnx.Rngs(0)), *each)
    agreement[name] = float((jax.jit(scores_of)(student, TEST).argmax(-1) == own).mean())
    print(f"{name:13} {accuracy[name]:.1%} of the test images right, as the teacher says {agreement[name]:.1%}")
figure, axis = plt.subplots(figsize=(4.5, 1.8))
axis.barh(list(accuracy), [100 * each for each in accuracy.values()])
axis.axvline(25, color="black", linewidth=0.8, linestyle=":")
axis.invert_yaxis()
_ = axis.set(xlabel="test accuracy in %")

gain = accuracy["soft answers"] - accuracy["200 labels"]
print(f"the teacher's answers are worth {100 * gain:.0f} points to the ViT; it stays "
      f"{100 * (taught - accuracy['soft answers']):.0f} behind its teacher")  # fmt: skip
if not SMALL:
    assert gain > 0.1

# %% [markdown]
# The student was never told a label, and the teacher's labels are the same 200. What it has learned is that a shape
# is the same anywhere, as far as the teacher's answers show it.

# %% [markdown]
# ## Exercises
#
# 1. The entropy of an answer at a temperature, in nats: how much a distribution says beyond its best class.
#
#    ```python
#    def entropy_at(logits, temperature):
#        """Return the entropy of each row of logits [B, E]."""
#    ```
#
# 2. The gradient of the loss with respect to the scores of one row, by hand.
#
#    ```python
#    def gradient_of(scores, teacher, temperature):
#        """Return the gradient of `soft_loss` of one row; both are [E]."""
#    ```
#
# 3. Several teachers: the mean of their distributions at a temperature, as logits whose softmax at that temperature
#    it is.
#
#    ```python
#    def committee(logits, temperature):
#        """Return logits [B, E] of the answers [teachers, B, E]."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def entropy_at(logits, temperature):
    log = jax.nn.log_softmax(logits / temperature)
    return -(jnp.exp(log) * log).sum(-1)


# %% tags=["check"]
np.testing.assert_allclose(entropy_at(jnp.zeros((2, 4)), 3.0), np.log(4), rtol=1e-6)
np.testing.assert_allclose(entropy_at(jnp.array([[2 * np.log(3.0), 0.0]]), 2.0), 0.562335, rtol=1e-4)
assert entropy_at(ANSWERS, 4.0).mean() > entropy_at(ANSWERS, 1.0).mean()


# %% tags=["solution"] jupyter={"source_hidden": true}
def gradient_of(scores, teacher, temperature):
    return temperature * (jax.nn.softmax(scores / temperature) - jax.nn.softmax(teacher / temperature))


# %% tags=["check"]
one, other = jax.random.normal(jax.random.key(1), (2, 4))
for temperature in (1.0, 3.0):
    by_jax = jax.grad(lambda scores, t=temperature: soft_loss(scores[None], other[None], t))(one)
    np.testing.assert_allclose(gradient_of(one, other, temperature), by_jax, atol=1e-5)


# %% tags=["solution"] jupyter={"source_hidden": true}
def committee(logits, temperature):
    return temperature * jnp.log(jax.nn.softmax(logits / temperature).mean(0))


# %% tags=["check"]
several = jax.random.normal(jax.random.key(2), (3, 5, 4))
mean = jax.nn.softmax(several / 2).mean(0)
np.testing.assert_allclose(jax.nn.softmax(committee(several, 2.0) / 2), mean, rtol=1e-4)
