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
# # 9. Training
#
# The recipe of 2017 has a rate that warms up, smoothed labels and dropout, and later models moved the norm. This
# chapter trains the same deep, narrow model at three learning rates with the norm before or after each sublayer, with a
# warmup and without. The number is how many of the rates train at all. Two more measure what dropout and smoothing do.

# %%
import math
import os
import pydoc_data.topics

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.text.plain import encode_documents, train_characters
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.ops import cross_entropy, dropout
from flax_transformer.train import ScheduleConfig, make_schedule

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 150

# %% [markdown]
# ## The idea
#
# *Warmup* (Vaswani et al. 2017): the rate rises for $w$ steps and then falls with the root of the step $s$. Adam's
# estimates of the first steps are of few gradients, and large steps made with them are hard to undo:
#
# $$\eta(s) = D^{-1/2} \min(s^{-1/2},\; s\, w^{-3/2})$$
#
# *Label smoothing*: of the target distribution $\epsilon$ goes to all $V$ tokens alike, so that a model gains nothing
# by being ever surer. *Dropout* sets each number to 0 with probability $r$ and divides the others by $1 - r$.
#
# *The place of the norm*: post-norm is $\operatorname{norm}(x + f(x))$, pre-norm $x + f(\operatorname{norm}(x))$. With
# post-norm, every path back from the loss goes through all norms above, and at the start gradients of the last layers
# are large; with pre-norm, the residual stream is one sum from end to end (Xiong et al. 2020).

# %% [markdown]
# ## Ten lines


# %%
def noam(step, width, warmup):
    return width**-0.5 * min(step**-0.5, step * warmup**-1.5)


def smoothed_loss(logits, label, epsilon):
    target = jnp.full(logits.shape[-1], epsilon / logits.shape[-1]).at[label].add(1 - epsilon)
    return -(target * jax.nn.log_softmax(logits)).sum()


def drop(x, rate, key):
    return jnp.where(jax.random.uniform(key, x.shape) < rate, 0, x / (1 - rate))


# %% [markdown]
# ## The library
#
# `make_schedule` counts steps as a run does: Optax calls it with the number of steps done before. `ops.dropout` draws
# other bits than ours, as many of them. A model drops only when it is given a key.

# %%
schedule = make_schedule(ScheduleConfig(name="noam", warmup=400, width=512), 1.0, 2_000)
for step in (1, 100, 400, 1_600):
    np.testing.assert_allclose(noam(step, 512, 400), schedule(step - 1), rtol=1e-5)

logits = jax.random.normal(jax.random.key(0), (9,))
total, count = cross_entropy(logits[None], jnp.array([4]), label_smoothing=0.1)
np.testing.assert_allclose(smoothed_loss(logits, 4, 0.1), total / count, rtol=1e-5)

ones = jnp.ones((200, 500))
for name, dropped in (("ours", drop(ones, 0.3, jax.random.key(1))), ("theirs", dropout(ones, 0.3, jax.random.key(1)))):
    print(f"{name:7} mean {float(dropped.mean()):.3f}, zeros {float((dropped == 0).mean()):.3f}")
    assert abs(dropped.mean() - 1) < 0.02
    assert abs((dropped == 0).mean() - 0.3) < 0.01

# %% [markdown]
# ## Gradients at the start
#
# A character model of twelve layers, 32 wide. Before any step: the norm of the gradient of each layer's feed-forward
# kernel.

# %%
text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
letters = train_characters([text])
codes = encode_documents([text], letters).flat.astype(np.int32)
cut = len(codes) * 9 // 10
train, test = codes[:cut], codes[cut:]
DEPTH = 12
base = with_fields(
    gpt2_tiny(vocab=letters.vocab_size), embed=32, heads=2, inner=64, depth=DEPTH, init_std=None, residual_init_std=None
)
norms = {"post-norm": with_fields(base, norm_position="post"), "pre-norm": with_fields(base, norm_position="pre")}


def windows(random, source, rows=16, length=33):
    starts = random.integers(0, len(source) - length, rows)
    return jnp.asarray(source[starts[:, None] + np.arange(length)])


def loss(model, tokens, key=None, smoothing=0.0):
    total, count = cross_entropy(model(tokens[:, :-1], key=key), tokens[:, 1:], label_smoothing=smoothing)
    return total / count


figure, axis = plt.subplots(figsize=(5, 2.4))
ratio = {}
for name, config in norms.items():
    gradient = jax.grad(loss)(config.build(nnx.Rngs(0)), windows(np.random.default_rng(0), train))
    sizes = np.sqrt((np.asarray(gradient.trunk.blocks.feedforward.up.kernel[...]) ** 2).sum((1, 2)))
    ratio[name] = float(sizes[-1] / sizes[0])
    axis.semilogy(range(1, DEPTH + 1), sizes, "o-", label=f"{name}: last / first {ratio[name]:.2f}")
axis.set(xlabel="layer", ylabel="gradient")
_ = axis.legend()

# %% [markdown]
# ## What trains
#
# A task that is easy for one layer: say the symbol two positions before. It is given to twelve. A run has trained if
# its loss has halved; at first it is that of guessing among ten symbols. The rate is an argument of the step, so that
# one compiled program serves all rates, with a warmup and without.

# %%
KINDS, LENGTH, ADAM = 10, 12, optax.scale_by_adam(b2=0.98)
RATES = (1e-3, 3e-3, 1e-2)


@jax.jit
def recall_step(model, state, rate, tokens):
    def recall(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(tokens)[:, 2:], tokens[:, :-2]).mean()

    value, gradient = jax.value_and_grad(recall)(model)
    updates, state = ADAM.update(gradient, state, model)
    return jax.tree.map(lambda p, u: p - rate * u, model, updates), state, value


def final_loss(config, rate, warmup):
    model, random, losses = with_fields(config, vocab=KINDS).build(nnx.Rngs(0)), np.random.default_rng(0), []
    state = ADAM.init(model)
    for number in range(1, STEPS + 1):
        now = rate * (min(number / warmup, 1) if warmup else 1)
        model, state, value = recall_step(model, state, now, random.integers(0, KINDS, (16, LENGTH)))
        losses.append(value)
    last = float(np.mean(losses[-10:]))
    return last if math.isfinite(last) else 9.0


figure, axis = plt.subplots(figsize=(6, 2.8))
trains = {}
for name, config in norms.items():
    for warmup in (0, STEPS // 3):
        label = f"{name}, {'warmup' if warmup else 'no warmup'}"
        final = np.array([final_loss(config, rate, warmup) for rate in RATES])
        trains[label] = int((final < math.log(KINDS) / 2).sum())
        axis.semilogx(RATES, np.minimum(final, 4), "o-", label=label)
        print(f"{label:21} {trains[label]} of {len(RATES)} rates train: {final.round(2)}")
axis.axhline(math.log(KINDS), color="gray", linestyle=":", label="guessing")
axis.set(xlabel="rate", ylabel="loss after the run")
_ = axis.legend(fontsize=7)

# %% [markdown]
# ## Dropout and smoothing
#
# Trained on 4,000 characters, a model of two layers is better on these than on others. With dropout it should be less
# so; the loss on other text says whether that helps. Smoothing is judged by how sure the model is: the mean of its
# greatest probability.

# %%
shallow = with_fields(base, depth=2, embed=64, heads=4, inner=128, norm_position="pre")


def few(rate, smoothing):
    """Return the loss on few and on other characters, and the mean greatest probability."""
    model = with_fields(shallow, dropout=rate).build(nnx.Rngs(0))
    optimizer = optax.adam(optax.cosine_onecycle_schedule(STEPS, 1e-2, pct_start=0.1))

    @jax.jit
    def step(model, state, tokens, key):
        gradient = jax.grad(loss)(model, tokens, key, smoothing)
        updates, state = optimizer.update(gradient, state, model)
        return optax.apply_updates(model, updates), state

    random, state = np.random.default_rng(0), optimizer.init(model)
    for number in range(STEPS):
        model, state = step(model, state, windows(random, train[:4_000]), jax.random.key(number))
    seen, unseen = (windows(np.random.default_rng(9), part, 200) for part in (train[:4_000], test))
    sure = jax.nn.softmax(model(unseen[:, :-1])).max(-1).mean()
    return float(loss(model, seen)), float(loss(model, unseen)), float(sure)


found = {}
for rate, smoothing in ((0.0, 0.0), (0.2, 0.0), (0.0, 0.1)):
    found[rate, smoothing] = few(rate, smoothing)
    seen, unseen, sure = found[rate, smoothing]
    name = f"dropout {rate}, smoothing {smoothing}"
    print(f"{name}: loss {seen:.2f} on the 4,000, {unseen:.2f} on others; greatest probability {sure:.2f}")
if not SMALL:
    assert trains["pre-norm, no warmup"] > trains["post-norm, no warmup"]
    assert trains["post-norm, warmup"] >= trains["post-norm, no warmup"]
    assert np.diff(found[0.2, 0.0][:2]) < np.diff(found[0.0, 0.0][:2])  # what is seen and what is not are nearer
    assert found[0.0, 0.1][2] < found[0.0, 0.0][2]

# %% [markdown]
# With the norm before each sublayer all three rates train, and a warmup changes little. With the norm after it,
# twelve layers train at none of them in so few steps; a warmup lets them begin to. This is why deep models moved the
# norm, and why the paper of 2017, of six post-norm layers, needed its warmup.
#
# Dropout brings the loss on what was seen and on what was not nearer to each other, which is what it is for. After so
# few steps it is no gain on other text yet: the model learns more slowly, and has not begun to know the 4,000
# characters by heart. Smoothing makes the model less sure and costs nothing on other text here.

# %% [markdown]
# ## Exercises
#
# 1. Smoothed labels have a loss that no model can go below. Write it.
#
#    ```python
#    def lowest_loss(vocab, epsilon):
#        """Return the least cross-entropy against smoothed labels."""
#    ```
#
# 2. Large gradients are clipped by their norm over all parameters. Write it for a dictionary of arrays.
#
#    ```python
#    def clip(gradients, largest):
#        """Return gradients, made smaller by one factor if their norm, of all together, exceeds the largest."""
#    ```
#
# 3. Write a rate that rises linearly to its peak in step `warmup` and falls to zero as half a cosine in the last step.
#
#    ```python
#    def cosine_rate(step, peak, warmup, steps):
#        """Return the rate of a step, counted from 1."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def lowest_loss(vocab, epsilon):
    target = np.full(vocab, epsilon / vocab)
    target[0] += 1 - epsilon
    return -(target * np.log(target)).sum()


# %% tags=["check"]
target = jnp.full(50, 0.1 / 50).at[7].add(0.9)
np.testing.assert_allclose(lowest_loss(50, 0.1), smoothed_loss(jnp.log(target), 7, 0.1), rtol=1e-5)
assert lowest_loss(50, 0.1) < lowest_loss(50, 0.2)


# %% tags=["solution"] jupyter={"source_hidden": true}
def clip(gradients, largest):
    norm = jnp.sqrt(sum((each**2).sum() for each in gradients.values()))
    factor = jnp.minimum(1, largest / norm)
    return {name: each * factor for name, each in gradients.items()}


# %% tags=["check"]
gradients = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}
for largest in (1.0, 10.0):
    clipper = optax.clip_by_global_norm(largest)
    theirs, _ = clipper.update(gradients, clipper.init(gradients))
    for name, each in clip(gradients, largest).items():
        np.testing.assert_allclose(each, theirs[name], rtol=1e-6)


# %% tags=["solution"] jupyter={"source_hidden": true}
def cosine_rate(step, peak, warmup, steps):
    if step <= warmup:
        return peak * step / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


# %% tags=["check"]
theirs = make_schedule(ScheduleConfig(name="cosine", warmup=20), 0.3, 100)
for step in (1, 10, 20, 50, 99, 100):
    np.testing.assert_allclose(cosine_rate(step, 0.3, 20, 100), theirs(step - 1), atol=1e-6)
