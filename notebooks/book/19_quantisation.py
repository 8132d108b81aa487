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
# # 19. Quantisation
#
# A trained kernel needs far fewer than 32 bits a weight. A language model is trained and its kernels are rounded to
# eight bits and fewer; the loss on text that it has not seen says what is lost. Eight bits cost nothing, four bits
# cost something, and GPTQ, which chooses the same four bits by what the layer is given, costs less than rounding to
# the nearest value: the number is which fraction of the loss it wins back.

# %%
import os
import pydoc_data.topics

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.compress import Quantization, observe, quantize_model
from flax_transformer.compress.kernel import kernels_of, linear_kernels, map_kernels
from flax_transformer.data.text.plain import encode_documents, train_characters
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.nn.quantized import quantize
from flax_transformer.train import make_optimizer, muon_cosine

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 400

# %% [markdown]
# ## The idea
#
# A weight $w$ of $b$ bits is a whole number $q$ and a scale $s$ that many weights share. The scale lets the largest
# weight be represented:
#
# $$q = \mathrm{round}(w / s), \qquad s = \frac{\max |w|}{2^{b-1} - \tfrac12}, \qquad w \approx s\,q$$
#
# The error of a weight is at most $s / 2$, so that what a bit less costs is a factor of two in error. One large
# weight spoils the scale of all that share it; hence a scale for each output, or for groups of its inputs.
#
# What matters is not the error of the weights but that of the products. With inputs $x$ and $H = \sum x x^\top$:
#
# $$\sum_x \big\| (W - \hat W) x \big\|^2 = \mathrm{tr}\,(W - \hat W)\, H\, (W - \hat W)^\top$$
#
# GPTQ (Frantar et al. 2022) rounds one input of a kernel after the other, and changes those that are still to come so
# that they make up for the error made so far. That is possible as inputs are correlated, which $H$ knows.

# %% [markdown]
# ## Ten lines


# %%
def rounded(kernel, bits):
    """Return a kernel [inputs, outputs] of whole numbers, and a scale for each output."""
    half = 2 ** (bits - 1)
    scale = jnp.abs(kernel).max(0, keepdims=True) / (half - 0.5)
    return jnp.clip(jnp.round(kernel / scale), -half, half - 1), scale


def squared_error(kernel, other, products):
    """Return the squared error of all outputs, summed over the inputs that `products` [inputs, inputs] is of."""
    difference = kernel - other
    return jnp.einsum("io,ij,jo->", difference, products, difference)


# %% [markdown]
# ## The library
#
# `quantize` does this to one kernel, `quantize_model` to all kernels of a model. What it puts in their place is a
# pytree node that multiplies, so that the model is called, compiled and scanned as before.

# %%
kernel = jax.random.normal(jax.random.key(0), (64, 32))
for kind, bits in {"int8": 8, "int4": 4}.items():
    values, scale = rounded(kernel, bits)
    few = quantize(kernel, kind)
    np.testing.assert_array_equal(few.values.astype(jnp.float32), values)
    np.testing.assert_allclose(few.scale, scale, rtol=1e-6)
    print(f"{kind}: {few.bits:.2f} bits a weight with its part of the scale, "
          f"largest error {float(jnp.abs(kernel - few.dequantize()).max() / scale.max()):.2f} scales")  # fmt: skip

# %% [markdown]
# ## A model to quantise
#
# Two causal layers over characters, trained on the help texts of Python.

# %%
text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
letters = train_characters([text])
codes = encode_documents([text], letters).flat.astype(np.int32)
cut = len(codes) * 9 // 10
train, test = codes[:cut], codes[cut:]
config = with_fields(gpt2_tiny(vocab=letters.vocab_size, dropout=0.0), embed=64, heads=4, inner=256, depth=2)


def windows(random, source, rows, length=64):
    starts = random.integers(0, len(source) - length - 1, rows)
    return jnp.asarray(source[starts[:, None] + np.arange(length + 1)])


def loss(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()


model = config.build(nnx.Rngs(0))
optimizer = make_optimizer(muon_cosine(1.5e-2, warmup=STEPS // 10), STEPS)


@jax.jit
def step(model, state, tokens):
    value, gradient = jax.value_and_grad(loss)(model, tokens)
    updates, state = optimizer.update(gradient, state, model)
    return optax.apply_updates(model, updates), state, value


random, state = np.random.default_rng(0), optimizer.init(model)
for _ in range(STEPS):
    model, state, value = step(model, state, windows(random, train, 16))
held = windows(np.random.default_rng(1), test, 400)
score = jax.jit(loss)
whole = float(score(model, held))
print(f"training loss {float(value):.3f}, test loss {whole:.4f}")

# %% [markdown]
# ## How many bits?
#
# By the ten lines every number of bits can be tried: all kernels are rounded and multiplied out again. Kernels of a
# stack have an axis of layers in front, and those of attention several axes of inputs or outputs; `kernels_of` and
# `linear_kernels` say which are which.

# %%
axes = linear_kernels(model)


def each_rounded(model, bits):
    def change(path, kernel):
        if path not in axes:
            return kernel
        layers, inputs = axes[path].layers, axes[path].inputs
        shape = (*kernel.shape[:layers], int(np.prod(kernel.shape[layers : layers + inputs])), -1)
        values, scale = jax.vmap(lambda each: rounded(each, bits))(kernel.reshape(shape))
        return (values * scale).reshape(kernel.shape)

    return map_kernels(change, model)


by_bits = {bits: float(score(each_rounded(model, bits), held)) - whole for bits in (8, 7, 6, 5, 4, 3, 2)}
library = float(score(quantize_model(model, Quantization(weights="int4")), held)) - whole
np.testing.assert_allclose(library, by_bits[4], atol=1e-3)
for bits, more in by_bits.items():
    print(f"{bits} bits: loss {more:+.4f}")
if not SMALL:
    assert by_bits[8] < 0.01 < by_bits[3]

# %% [markdown]
# ## The nearest value is not the best
#
# `observe` runs the model on a little training text and sums the products of inputs of every layer. Given these, the
# same four bits are chosen in three ways: the nearest value, the nearest with the scale of the least squared error,
# and GPTQ. Beside them groups of 16 inputs, whose scales take two bits more a weight.

# %%
calibration = [windows(np.random.default_rng(2), train, 64)]
statistics = observe(model, lambda model, tokens: model(tokens[:, :-1]), calibration, products=True)
rules = {
    "nearest": Quantization(weights="int4"),
    "least squared error": Quantization(weights="int4", method="mse"),
    "GPTQ": Quantization(weights="int4", method="gptq"),
    "nearest, groups of 16": Quantization(weights="int4", group=16),
    "GPTQ, groups of 16": Quantization(weights="int4", group=16, method="gptq"),
}
cost, products = {}, {}
path = "trunk.blocks.feedforward.up.kernel"
for name, rule in rules.items():
    few = quantize_model(model, rule, statistics)
    cost[name] = float(score(few, held)) - whole
    kernel, other = kernels_of(model)[path], kernels_of(few)[path].dequantize()
    products[name] = float(squared_error(kernel[1], other[1], statistics[path].products[1]))
    print(f"{name:22} loss {cost[name]:+.4f}   squared error of the last layer's first products {products[name]:10.1f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.5))
left.semilogy(list(by_bits), np.maximum(list(by_bits.values()), 1e-5), "o-")
left.set(xlabel="bits a weight", ylabel="loss added")
right.barh(list(cost), list(cost.values()))
right.invert_yaxis()
_ = right.set(xlabel="loss added by four bits")

back = 1 - cost["GPTQ"] / cost["nearest"]
print(f"GPTQ wins back {back:.0%} of what rounding to the nearest of four bits costs")
if not SMALL:
    assert cost["nearest"] > 0.005
    assert back > 0.15
    assert products["GPTQ"] < products["nearest"]

# %% [markdown]
# GPTQ has larger errors in its weights than rounding, by definition, and smaller ones in what the layer computes.
# Groups gain little here: this small model has no weights that are much larger than the others of an output.

# %% [markdown]
# ## Exercises
#
# 1. How many bits a weight has in all, where each group of inputs of an output has a scale of 32 bits?
#
#    ```python
#    def bits_in_all(bits, group):
#        """Return the bits of a weight with its part of the scale."""
#    ```
#
# 2. Round in groups: as `rounded`, with a scale for each group of consecutive inputs, and return the kernel that the
#    result stands for.
#
#    ```python
#    def in_groups(kernel, bits, group):
#        """Return a kernel [inputs, outputs] as it is after rounding in groups of inputs."""
#    ```
#
# 3. The step of GPTQ, for two inputs. The first weight has been rounded to `value`. What should the second weight be,
#    before it is rounded, so that the squared error of $w_1 x_1 + w_2 x_2$ over all inputs is least?
#
#    ```python
#    def made_up_for(first, value, second, products):
#        """Return the second weight; products [2, 2] are the sums of the products of the inputs."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def bits_in_all(bits, group):
    return bits + 32 / group


# %% tags=["check"]
few = quantize(jnp.ones((64, 8)), "int4", group=16)
assert abs(bits_in_all(4, 16) - few.bits) < 1e-6
assert abs(bits_in_all(8, 64) - 8.5) < 1e-6


# %% tags=["solution"] jupyter={"source_hidden": true}
def in_groups(kernel, bits, group):
    inputs, outputs = kernel.shape
    values, scale = jax.vmap(lambda part: rounded(part, bits))(kernel.reshape(-1, group, outputs))
    return (values * scale).reshape(inputs, outputs)


# %% tags=["check"]
kernel = jax.random.normal(jax.random.key(1), (64, 8))
np.testing.assert_allclose(in_groups(kernel, 4, 16), quantize(kernel, "int4", group=16).dequantize(), atol=1e-6)
fine, coarse = (float(jnp.abs(in_groups(kernel, 4, group) - kernel).mean()) for group in (8, 64))
assert fine < coarse


# %% tags=["solution"] jupyter={"source_hidden": true}
def made_up_for(first, value, second, products):
    return second + (first - value) * products[0, 1] / products[1, 1]


# %% tags=["check"]
inputs = np.random.default_rng(0).normal(size=(1_000, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
products = inputs.T @ inputs
best = made_up_for(0.4, 0.0, 0.7, products)


def error_with(second):
    return ((inputs @ np.array([0.4, 0.7]) - inputs @ np.array([0.0, second])) ** 2).sum()


assert all(error_with(best) < error_with(best + each) for each in (-0.01, 0.01))
assert error_with(best) < 0.5 * error_with(0.7)
