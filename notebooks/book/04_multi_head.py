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
# # 4. Multi-head attention
#
# One attention reads one weighted mean at each position. Several heads, each narrower, read several means at the same
# cost, so that a layer can fetch several things at once. This chapter gives one layer a task of three look-ups and
# trains it with one, two and four heads and the same number of parameters. The number is how often all three are right;
# which head does which is found by removing them.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import Attention, RelativeConfig, transformer_block, with_fields
from flax_transformer.ops import Mask, capture
from flax_transformer.ops import attention as dot_product_attention
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 300

# %% [markdown]
# ## The idea
#
# Softmax weights are positive and sum to 1: a head that has to see two positions gives each a part of its weight and
# gets a mean of their values. Multi-head attention (Vaswani et al. 2017) has $N$ sets of projections of width
# $H = D / N$, and mixes what they read by one more matrix:
#
# $$\text{head}_n = \operatorname{softmax}\left(\frac{x W^Q_n (x W^K_n)^\top}{\sqrt{H}}\right) x W^V_n, \qquad
# y = \sum_{n=1}^{N} \text{head}_n W^O_n$$
#
# The matrices have $D \cdot N H = D^2$ numbers each, whatever $N$ is. More heads are not more parameters but more,
# narrower looks.

# %% [markdown]
# ## Ten lines


# %%
def multi_head(x, query, key, value, out):
    """Return y [T, D] of x [T, D]; the kernels are [D, N, H], and that of out [N, H, D]."""
    q, k, v = (jnp.einsum("td,dnh->nth", x, kernel) for kernel in (query, key, value))
    scores = jnp.einsum("nth,nsh->nts", q, k) / jnp.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones((len(x), len(x)), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return jnp.einsum("nts,nsh,nhd->td", weights, v, out)


# %% [markdown]
# ## The library
#
# `nn.Attention` has those four kernels; it may have biases, rotary positions and fewer heads of keys and values.

# %%
config = transformer_block(embed=64, heads=4, inner=64, bias=False)
layer = Attention(config.attention, rngs=nnx.Rngs(0))
x = jax.random.normal(jax.random.key(0), (10, 64))
kernels = [part.kernel[...] for part in (layer.query, layer.key, layer.value, layer.out)]
np.testing.assert_allclose(multi_head(x, *kernels), layer(x, mask=Mask(causal=True)), atol=1e-5)
for heads in (1, 2, 4, 8):
    layer = Attention(with_fields(config.attention, heads=heads), rngs=nnx.Rngs(0))
    print(f"{heads} heads: kernels {layer.query.kernel.shape}, {parameter_count(layer):,} parameters")

# %% [markdown]
# ## Three look-ups
#
# At each position, say what the symbols one, five and nine before were. One layer, whose heads know distances by a
# learned bias (chapter 5); nothing differs but the number of heads.

# %%
KINDS, LENGTH, BACK = 12, 24, (1, 5, 9)
base = with_fields(
    gpt2_tiny(vocab=KINDS), embed=64, heads=1, inner=128, depth=1, position="none", relative=RelativeConfig()
)


def draw(random, rows):
    return jnp.asarray(random.integers(0, KINDS, (rows, LENGTH)))


def logits(parameters, tokens):
    hidden = parameters["model"].hidden_states(tokens)[:, max(BACK) :]
    return jnp.einsum("btd,dke->btke", hidden, parameters["out"])


def answers(tokens):
    return jnp.stack([tokens[:, max(BACK) - back : LENGTH - back] for back in BACK], axis=-1)


def trained(heads, seed=0):
    out = jax.random.normal(jax.random.key(seed), (64, len(BACK), KINDS)) / 8
    parameters = {"model": with_fields(base, heads=heads).build(nnx.Rngs(seed)), "out": out}
    optimizer = optax.adam(optax.cosine_onecycle_schedule(STEPS, 1e-2, pct_start=0.1))

    @jax.jit
    def step(parameters, state, tokens):
        def loss(parameters):
            scores = logits(parameters, tokens)
            return optax.softmax_cross_entropy_with_integer_labels(scores, answers(tokens)).mean()

        value, gradient = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    random, state = np.random.default_rng(seed), optimizer.init(parameters)
    for _ in range(STEPS):
        parameters, state, _ = step(parameters, state, draw(random, 32))
    return parameters


held = draw(np.random.default_rng(100), 500)
right = jax.jit(lambda parameters: (logits(parameters, held).argmax(-1) == answers(held)).mean((0, 1)))
whole = jax.jit(lambda parameters: (logits(parameters, held).argmax(-1) == answers(held)).all(-1).mean())
models, all_three = {}, {}
for heads in (1, 2, 4):
    models[heads] = trained(heads)
    all_three[heads] = float(whole(models[heads]))
    each = ", ".join(f"{value:.2f}" for value in right(models[heads]))
    print(f"{heads} heads: all three right {all_three[heads]:.3f}; one, five and nine before {each}")

# %% [markdown]
# ## Who does what
#
# A head can be taken out by setting its kernel of `out` to zero. What is then lost was its work, as far as no other
# head does it, too (Michel et al. 2019). Beside it, where each head looks: its mean weight by distance.

# %%
heads = 4
parameters = models[heads]


def without(parameters, head):
    changed = jax.tree.map(lambda leaf: leaf, parameters)
    kernel = changed["model"].trunk.blocks.attention.out.kernel
    kernel[...] = kernel[...].at[0, head].set(0.0)
    return changed


full = np.asarray(right(parameters))
loss_of = np.stack([full - np.asarray(right(without(parameters, head))) for head in range(heads)])
_, (found,) = capture(lambda parameters: logits(parameters, held), "attention_weights")(parameters)
looks = np.asarray(found[0])  # [B, N, T, S], of the one layer
distances = np.stack([
    np.stack([np.diagonal(looks[:, head], -back, 1, 2)[:, -8:].mean() for back in range(12)]) for head in range(heads)
])  # fmt: skip

figure, (left, right_axis) = plt.subplots(1, 2, figsize=(8, 2.6))
for axis, values, title in ((left, loss_of, "accuracy lost without the head"), (right_axis, distances, "mean weight")):
    axis.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set(ylabel="head", yticks=range(heads), title=title)
left.set_xticks(range(len(BACK)), [f"{back} before" for back in BACK])
right_axis.set(xticks=range(12), xlabel="positions before")
owners = loss_of.argmax(0)
print("accuracy lost without each head (rows), of each look-up:", loss_of.round(2).tolist(), sep="\n")

if not SMALL:
    assert all_three[4] > 0.98
    assert all_three[1] < all_three[4] - 0.1
    assert loss_of.max(0).min() > 0.2  # every look-up depends on some head

# %% [markdown]
# With one head, the three symbols come as one mean, and the feed-forward layer has to tell them apart by the size of
# their weights. That can be learned, but slowly: after these steps it hardly ever has all three (a run of a third more
# steps had them two times in three). Two heads still have to share. With four heads two look-ups have one each, and the
# third has two. Heads are not assigned by anyone; which one does what depends on the seed.

# %% [markdown]
# ## Exercises
#
# 1. How many look-ups can one head do at most, if it is to be exact? Show how two values come out of a mean, when
#    their weights are 2/3 and 1/3 and each value is a one-hot vector.
#
#    ```python
#    def decode_mean(mean):
#        """Return (first, second), the indices of the values whose weights were 2/3 and 1/3, of mean [V]."""
#    ```
#
# 2. Grouped queries (Ainslie et al. 2023) let several heads of queries share one of keys and values. How many numbers
#    does a decoder then keep for each token of a layer?
#
#    ```python
#    def kept_numbers(embed, heads, kv_heads):
#        """Return how many numbers of keys and values a token has in one layer, with heads of width embed / heads."""
#    ```
#
# 3. Write attention of grouped queries.
#
#    ```python
#    def grouped(q, k, v):
#        """Return what queries [T, N, H] read of keys and values [S, K, H]; N / K heads in a row share one. No mask."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def decode_mean(mean):
    order = jnp.argsort(mean)[::-1]
    if mean[order[0]] > 0.9:  # both are the same
        return int(order[0]), int(order[0])
    return int(order[0]), int(order[1])


# %% tags=["check"]
values = jnp.eye(5)
for a, b in ((3, 1), (1, 3), (4, 4)):
    assert decode_mean(2 / 3 * values[a] + 1 / 3 * values[b]) == (a, b)


# %% tags=["solution"] jupyter={"source_hidden": true}
def kept_numbers(embed, heads, kv_heads):
    return 2 * kv_heads * (embed // heads)


# %% tags=["check"]
for kv_heads in (1, 2, 4):
    attention = Attention(with_fields(config.attention, kv_heads=kv_heads), rngs=nnx.Rngs(0))
    cache = attention.init_cache(batch=1, length=10)
    assert kept_numbers(64, 4, kv_heads) * 10 == cache.key.size + cache.value.size


# %% tags=["solution"] jupyter={"source_hidden": true}
def grouped(q, k, v):
    k, v = (jnp.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
    weights = jax.nn.softmax(jnp.einsum("tnh,snh->nts", q, k) / jnp.sqrt(q.shape[-1]), axis=-1)
    return jnp.einsum("nts,snh->tnh", weights, v)


# %% tags=["check"]
q, k, v = (jax.random.normal(jax.random.key(i), (6, n, 8)) for i, n in enumerate((4, 2, 2)))
np.testing.assert_allclose(grouped(q, k, v), dot_product_attention(q, k, v), atol=1e-5)
