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
# # 21. Pruning
#
# Many weights of a trained model can be zero. A language model loses its smallest weights, at once or gradually while
# it is trained on, and its least important heads. The test loss shows what that costs. The numbers are how much of
# the cost of nine zeros in ten is won back by training on with them, and how much dearer the most important half of
# the heads is than the least important.

# %%
import os
import pydoc_data.topics
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.compress import Pruning, head_importance, prune_model, remove_heads
from flax_transformer.compress.kernel import kernels_of, linear_kernels, map_kernels
from flax_transformer.data.text.plain import encode_documents, train_characters
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.train import make_optimizer, muon_cosine, parameter_count
from flax_transformer.train.sparsity import SparsityConfig, share_at

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS, MORE = (10, 5) if SMALL else (400, 200)

# %% [markdown]
# ## The idea
#
# *Magnitude pruning* keeps the weights of a kernel that are at least as large as a threshold $\tau$, chosen so that a
# share $\rho$ becomes zero:
#
# $$\hat w = w \cdot [\,|w| \ge \tau\,], \qquad |\{w : |w| < \tau\}| = \rho\, n$$
#
# *Gradual* pruning (Zhu & Gupta 2017) raises the share during training, fast at first and ever more slowly, so that
# the rest can adapt. From step $t_0$ to $t_1$, with $u = (t - t_0)/(t_1 - t_0)$:
#
# $$\rho_t = \rho\, \big(1 - (1 - u)^3\big)$$
#
# Zeros are still stored and multiplied, unless the hardware can skip them. A *head* can be taken out, and the model
# is smaller. Which head? Multiply what a head gives by a gate $\xi$, which is 1. If the loss hardly depends on
# $\xi$, the head is not important (Michel et al. 2019):
#
# $$I = \mathbb{E}_x \left| \frac{\partial \ell(x)}{\partial \xi} \right|_{\xi = 1}$$

# %% [markdown]
# ## Ten lines


# %%
def prune(kernel, share):
    """Return a kernel whose smallest values are zero."""
    ordered = jnp.sort(jnp.abs(kernel).reshape(-1))
    least = ordered[int(share * kernel.size)]
    return jnp.where(jnp.abs(kernel) >= least, kernel, 0)


def share_of_step(step, begin, end, share):
    u = np.clip((step - begin) / (end - begin), 0, 1)
    return share * (1 - (1 - u) ** 3)


# %% [markdown]
# ## The library
#
# `prune_model` does it to all kernels of a model, to each layer of a stack by itself. In training it is a part of the
# optimizer: `SparsityConfig`.

# %%
text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
letters = train_characters([text])
codes = encode_documents([text], letters).flat.astype(np.int32)
cut = len(codes) * 9 // 10
train_codes, test_codes = codes[:cut], codes[cut:]
config = with_fields(gpt2_tiny(vocab=letters.vocab_size, dropout=0.0), embed=64, heads=4, inner=256, depth=2)
model = config.build(nnx.Rngs(0))

path = "trunk.blocks.feedforward.up.kernel"
before, after = kernels_of(model)[path], kernels_of(prune_model(model, Pruning(share=0.9)))[path]
np.testing.assert_array_equal(after, jnp.stack([prune(each, 0.9) for each in before]))
rule = SparsityConfig(share=0.9, begin=20, end=100)
for at in (0, 20, 60, 100, 150):
    np.testing.assert_allclose(share_at(rule, jnp.array(at), 200), share_of_step(at, 20, 100, 0.9), rtol=1e-5)
print(f"{float((after == 0).mean()):.1%} zeros")

# %% [markdown]
# ## A model to prune
#
# Two causal layers over characters, trained on the help texts of Python.


# %%
def windows(random, source, rows, length=64):
    starts = random.integers(0, len(source) - length - 1, rows)
    return jnp.asarray(source[starts[:, None] + np.arange(length + 1)])


def loss(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()


def train(model, steps, rate, sparsity=SparsityConfig(), seed=0):
    optimizer = make_optimizer(replace(muon_cosine(rate, warmup=steps // 10), sparsity=sparsity), steps)

    @jax.jit
    def step(model, state, tokens):
        updates, state = optimizer.update(jax.grad(loss)(model, tokens), state, model)
        return optax.apply_updates(model, updates), state

    random, state = np.random.default_rng(seed), optimizer.init(model)
    for _ in range(steps):
        model, state = step(model, state, windows(random, train_codes, 16))
    return model


def zeros(model):
    kernels = [kernel for path, kernel in kernels_of(model).items() if path in linear_kernels(model)]
    return sum(int((kernel == 0).sum()) for kernel in kernels) / sum(kernel.size for kernel in kernels)


held = windows(np.random.default_rng(1), test_codes, 400)
score = jax.jit(loss)
model = train(model, STEPS, 1.5e-2)
whole = float(score(model, held))
print(f"{parameter_count(model):,} parameters, test loss {whole:.3f}")

# %% [markdown]
# ## How many may be zero?
#
# First without any training after it. Beside the smallest weights, the same share of random ones, so that it is clear
# whether their size says anything.


# %%
def prune_at_random(model, share):
    """Return a model with random zeros."""
    random, paths = np.random.default_rng(0), linear_kernels(model)

    def change(path, kernel):
        return jnp.where(jnp.asarray(random.random(kernel.shape)) < share, 0, kernel) if path in paths else kernel

    return map_kernels(change, model)


shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
smallest = [float(score(prune_model(model, Pruning(share=share)), held)) for share in shares]
at_random = [float(score(prune_at_random(model, share), held)) for share in shares]
figure, axis = plt.subplots(figsize=(4.5, 2.4))
axis.plot([0, *(100 * np.array(shares))], [whole, *smallest], "o-", label="the smallest")
axis.plot([0, *(100 * np.array(shares))], [whole, *at_random], "s-", label="random ones")
axis.set(xlabel="zeros in %", ylabel="test loss")
axis.legend()
free = max((share for share, each in zip(shares, smallest, strict=True) if each < whole + 0.02), default=0)
print(f"the smallest {free:.0%} of weights can be zero for less than 0.02 nats")
if not SMALL:
    assert smallest[2] < at_random[0]

# %% [markdown]
# ## At once, or gradually
#
# Nine of ten weights become zero, and the model is trained on. At once: the zeros are there from the first of these
# steps and stay (`keep`). Gradually: the share grows over half of them. And the same steps without zeros.

# %%
SHARE = 0.9
at_once = prune_model(model, Pruning(share=SHARE))
ways = {
    "no zeros": (model, SparsityConfig()),
    "at once": (at_once, SparsityConfig(keep=True)),
    "gradually": (model, SparsityConfig(share=SHARE, end=MORE // 2, every=max(MORE // 40, 1))),
}
found = {"before": whole, "at once, no training": float(score(at_once, held))}
for name, (start, sparsity) in ways.items():
    trained = train(start, MORE, 5e-3, sparsity, seed=1)
    found[name] = float(score(trained, held))
    print(f"{name:10} {zeros(trained):5.1%} zeros, test loss {found[name]:.3f}")
    assert name == "no zeros" or abs(zeros(trained) - SHARE) < 0.01
gain = found["at once"] - found["gradually"]
print(f"gradually is {gain:+.3f} nats better than at once; {found['at once, no training']:.2f} without training")
figure, axis = plt.subplots(figsize=(4.5, 1.8))
axis.barh(list(found), list(found.values()))
axis.invert_yaxis()
_ = axis.set(xlabel="test loss")

# %% [markdown]
# Beside the model that was trained on without zeros, nine zeros in ten cost 1.35 nats, and training with them wins back
# 0.94. The paper on gradual pruning reports more for it; here training is short, and the two ways differ by little
# beside what either wins back.
#
# ## Heads
#
# Half of the heads are really removed: those with the smallest importance, or those with the largest. If the
# importance says nothing, both cost as much.

# %%
calibration = [windows(np.random.default_rng(2), train_codes, 64)]
importance = head_importance(model, lambda model, tokens: len(tokens) * loss(model, tokens), calibration)
inverse = {name: -each for name, each in importance.items()}
smaller = {"least important": remove_heads(model, 0.5, importance), "most important": remove_heads(model, 0.5, inverse)}
without = {}
for name, each in smaller.items():
    without[name] = float(score(each, held)) - whole
    print(f"without the {name} heads: {parameter_count(each):,} parameters, loss {without[name]:+.3f}")
if not SMALL:
    assert without["least important"] < without["most important"]

# %% [markdown]
# ## Exercises
#
# 1. Patterns that some chips multiply faster: of each `many` consecutive inputs of an output, keep the `few` largest.
#
#    ```python
#    def prune_pattern(kernel, few, many):
#        """Return a kernel [inputs, outputs] with a pattern of zeros."""
#    ```
#
# 2. A sparse kernel in memory has a bit for each place and the values that are not zero. From which share of zeros on
#    is that smaller than the dense kernel?
#
#    ```python
#    def worth_it_from(bits):
#        """Return the share of zeros at which both have the same size; a value has so many bits."""
#    ```
#
# 3. The importance of a head by finite differences: how does the loss of one row change with a gate?
#
#    ```python
#    def gate_slope(loss_of_gate, step=1e-2):
#        """Return |d loss / d gate| at gate = 1 from two calls of `loss_of_gate`, one at each side."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def prune_pattern(kernel, few, many):
    groups = kernel.reshape(-1, many, kernel.shape[-1])
    rank = jnp.argsort(jnp.argsort(-jnp.abs(groups), axis=1), axis=1)
    return jnp.where(rank < few, groups, 0).reshape(kernel.shape)


# %% tags=["check"]
one = kernels_of(prune_model(model, Pruning(block=(2, 4))))[path][0]
np.testing.assert_array_equal(prune_pattern(kernels_of(model)[path][0], 2, 4), one)
assert float((prune_pattern(kernels_of(model)[path][0], 1, 4) == 0).mean()) == 0.75


# %% tags=["solution"] jupyter={"source_hidden": true}
def worth_it_from(bits):
    return 1 / bits


# %% tags=["check"]
for bits in (4, 8, 32):
    share = worth_it_from(bits)
    assert abs(1 + (1 - share) * bits - bits) < 1e-6


# %% tags=["solution"] jupyter={"source_hidden": true}
def gate_slope(loss_of_gate, step=1e-2):
    return abs(loss_of_gate(1 + step) - loss_of_gate(1 - step)) / (2 * step)


# %% tags=["check"]
assert abs(gate_slope(lambda gate: (gate - 3) ** 2) - 4) < 1e-3
assert abs(gate_slope(lambda gate: gate**3) - 3) < 1e-2
