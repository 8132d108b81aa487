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
# # Compression: fewer bits, fewer values, fewer layers
#
# A trained Transformer holds more than it needs. This notebook trains a small language model on the sources of Python's
# own standard library, writes its kernels in eight and in four bits, looks at what that changes and why calibration
# helps, trains with rounded kernels, makes kernels zero, removes neurons, heads and layers, and writes the result as a
# checkpoint. It takes about two minutes on two CPU cores and downloads nothing.

# %%
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer import hub
from flax_transformer.compress import (
    Pruning,
    Quantization,
    head_importance,
    keep_layers,
    narrow_model,
    observe,
    prune_model,
    quantize_model,
    remove_heads,
)
from flax_transformer.compress.statistics import bin_edges
from flax_transformer.compress.straight_through import rounded_in_passing
from flax_transformer.data.text.plain import PlainText
from flax_transformer.hub.quantized.model import quantized_kernels
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}

# %% [markdown]
# ## A model to compress
#
# Four layers, 64 wide, of characters. The loss is that of the next character, in nats.

# %%
text = "".join(PlainText().read("train"))[:400_000]
letters = sorted(set(text))
codes = np.array([letters.index(each) for each in text], np.int32)
train, test = codes[:380_000], codes[380_000:]
config = with_fields(gpt2_tiny(vocab=len(letters), dropout=0.0), embed=64, heads=4, inner=256)
model = config.build(nnx.Rngs(0))


def windows(random, source, rows=16, length=64):
    starts = random.integers(0, len(source) - length - 1, rows)
    return jnp.asarray(source[starts[:, None] + np.arange(length + 1)])


def loss(model, tokens):
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def trained(model, steps, rate, change=lambda model: model):
    """Train a model; `change` is what becomes of it in every step, before it is called."""
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps), b2=0.99)

    @jax.jit
    def step(model, state, tokens):
        value, gradient = jax.value_and_grad(lambda model: loss(change(model), tokens))(model)
        updates, state = optimizer.update(gradient, state, model)
        return optax.apply_updates(model, updates), state, value

    random, state, losses = np.random.default_rng(0), optimizer.init(model), []
    for _ in range(steps):
        model, state, value = step(model, state, windows(random, train))
        losses.append(value)
    return model, np.array(losses)


held = windows(np.random.default_rng(1), test, rows=512)
score = jax.jit(loss)
model, losses = trained(model, 1_200, 5e-3)
whole = float(score(model, held))
print(f"{parameter_count(model):,} parameters, test loss {whole:.4f}")
figure, ax = plt.subplots(figsize=(4, 2))
ax.plot(losses)
_ = ax.set(xlabel="step", ylabel="loss")

# %% [markdown]
# ## Eight bits
#
# A kernel of few bits stands in the place of an array: whole numbers, and a scale for each output. Everything else is
# as before, `jit` and the scan over layers among it.

# %%
eight = quantize_model(model, Quantization(embeddings=True))
up = model.trunk.blocks.feedforward.up.kernel[...]
few = eight.trunk.blocks.feedforward.up.kernel.get_value()
print(few.values.dtype, few.values.shape, few.scale.shape)
print(f"loss {whole:.4f} before, {float(score(eight, held)):.4f} in eight bits")

column = np.s_[0, :, 3]
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.2))
left.hist(np.asarray(up[column]), 40)
left.set(title="weights of one output")
right.hist(np.asarray(few.values[column]), np.arange(-128, 129, 8))
_ = right.set(title="the same as whole numbers")

# %% [markdown]
# ## Four bits
#
# With sixteen values a scale for each output is too coarse; groups of inputs have one each. What a group costs is told
# by the bits of a weight, scales included.

# %%
bits, cost = {}, {}
for group in (None, 64, 32, 16, 8):
    small = quantize_model(model, Quantization(weights="int4", group=group))
    kernels = quantized_kernels(small).values()
    bits[group] = sum(each.bits * each.size for each in kernels) / sum(each.size for each in kernels)
    cost[group] = float(score(small, held)) - whole
    print(f"{'an output' if group is None else f'{group} inputs':10} {bits[group]:5.2f} bits   loss +{cost[group]:.4f}")

# %% [markdown]
# How values are chosen matters as much. `observe` runs the model on some text and sums up what each layer is given.
# With that, GPTQ rounds one input after the other and lets those to come make up for the error; AWQ gives inputs that
# are large a finer scale, and divides what comes before by as much. It is made for large language models, some of whose
# channels are a hundred times as large as others; here the largest is not, and it gains nothing.

# %%
calibration = [windows(np.random.default_rng(2), train, rows=32)]
statistics = observe(model, lambda model, tokens: model(tokens[:, :-1]), calibration, products=True)
size = statistics["trunk.blocks.feedforward.up.kernel"].magnitude
ratio = float((size.max(-1) / jnp.median(size, -1)).max())
print(f"the largest mean input is {ratio:.1f} times the median of its layer")
found = {}
for method in ("round", "mse", "awq", "gptq"):
    small = quantize_model(model, Quantization(weights="int4", group=32, method=method), statistics)
    found[method] = float(score(small, held)) - whole
    print(f"{method:6} loss +{found[method]:.4f}")
assert found["gptq"] < found["round"]

# %% [markdown]
# ## Inputs in eight bits
#
# Where inputs are rounded as well, a product is one of whole numbers. Each row may have a scale of its own; cheaper is
# one that is known before, from what was observed. Where its best end lies is a matter of how large inputs are, and how
# often.

# %%
layers = {"attention.query": "behind a norm", "feedforward.down": "behind an activation"}
figure, axes = plt.subplots(1, 2, figsize=(7, 2.2))
for ax, (name, title) in zip(axes, layers.items(), strict=True):
    counts = np.asarray(statistics[f"trunk.blocks.{name}.kernel"].largest).sum(0)
    ax.stairs(counts[1:], bin_edges())
    ax.set(xscale="log", xlim=(1e-3, 20), title=f"inputs {title}", xlabel="absolute value")
for ranges in ("dynamic", "absmax", "percentile", "mse"):
    small = quantize_model(model, Quantization(activations="int8", ranges=ranges), statistics)
    print(f"{ranges:10} loss {float(score(small, held)) - whole:+.4f}")

# %% [markdown]
# ## Training with what will be
#
# In quantization-aware training the forward pass is that of the rounded model, and the gradient passes rounding by. A
# few steps from the trained model on win back part of what rounding costs. Beside it, the same steps in float32,
# rounded at their end.

# %%
rule = Quantization(weights="int4")
aware, _ = trained(model, 300, 5e-4, change=lambda model: rounded_in_passing(model, rule))
plain, _ = trained(model, 300, 5e-4)
trained_so, rounded_after = (float(score(quantize_model(each, rule), held)) for each in (aware, plain))
print(f"after 300 steps more: loss {float(score(plain, held)):.4f}")
print(f"rounded then {rounded_after:.4f}, trained with rounded kernels {trained_so:.4f}")
assert trained_so < rounded_after

# %% [markdown]
# ## Zeros
#
# The smallest values of a kernel hardly matter, up to a point. In a pattern of two of every four, which some chips
# multiply faster, the choice is smaller, and so the loss is larger than of any half.

# %%
shares = np.array([0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
by_share = [float(score(prune_model(model, Pruning(share=share)) if share else model, held)) for share in shares]
block = float(score(prune_model(model, Pruning(block=(2, 4))), held))
figure, ax = plt.subplots(figsize=(4, 2.2))
ax.plot(100 * shares, by_share, "o-", label="the smallest of each layer")
ax.plot(50, block, "s", label="two of every four")
ax.legend()
_ = ax.set(xlabel="zeros in %", ylabel="loss")

# %% [markdown]
# ## What is really removed
#
# Zeros are still multiplied. Neurons, heads and layers can be taken out, so that programs and files shrink. Neurons
# count by what they write on average; heads by how much the loss depends on each, the slope of a gate on its output
# (Michel et al. 2019).

# %%
importance = head_importance(model, lambda model, tokens: len(tokens) * loss(model, tokens), calibration)
(heads,) = importance.values()
figure, ax = plt.subplots(figsize=(3, 2.2))
ax.imshow(heads, cmap="Blues", vmin=0, vmax=1)
for (i, j), value in np.ndenumerate(np.asarray(heads)):
    ax.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else "black")
_ = ax.set(xticks=range(4), yticks=range(4), xlabel="head", ylabel="layer")

smaller = {
    "half the neurons": narrow_model(model, 0.5, statistics),
    "half the heads": remove_heads(model, 0.5, importance),
    "layers 0, 1 and 3": keep_layers(model, (0, 1, 3)),
}
for name, each in smaller.items():
    again, _ = trained(each, 300, 5e-4)
    size = parameter_count(each) / parameter_count(model)
    print(f"{name:18} {size:.2f} of the parameters   loss {float(score(each, held)):.3f} at once, "
          f"{float(score(again, held)):.3f} after 300 steps")  # fmt: skip
print(f"the whole model    after as many steps more {float(score(plain, held)):.3f}")

# %% [markdown]
# ## To a checkpoint
#
# `hub.save` writes kernels of few bits as compressed-tensors, which `transformers` reads, too;
# `flax-transformer compress` does all of this for any checkpoint, from the command line.

# %%
sizes = {}
for name, each in {"float32": model, "int8": eight, "int4": quantize_model(
    model, Quantization(weights="int4", group=32, method="gptq", embeddings=True), statistics
)}.items():  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        hub.save(hub.wrap(each, "GPT2LMHeadModel"), folder)
        sizes[name] = (Path(folder) / "model.safetensors").stat().st_size
        again = hub.load(folder).model
    same = all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(each), strict=True))
    print(f"{name:8} {sizes[name] / 1000:7.0f} kB  {sizes[name] / sizes['float32']:.2f}×  the same again: {same}")
    assert same
