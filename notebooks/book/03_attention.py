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
# # 3. Attention
#
# An encoder that hands on one vector has to squeeze a sentence of any length into it. Attention lets a decoder look
# back at every position instead. This chapter goes from the additive score of 2014 to the scaled dot product, and
# trains the same recurrent network with and without attention to write sequences from their end. The number is how
# many sequences of each length are written without a mistake.

# %%
import math
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.models.text.recurrent import lstm_seq2seq
from flax_transformer.models.text.recurrent_attention import RecurrentAttention, RecurrentAttentionConfig
from flax_transformer.nn import Precision, with_fields
from flax_transformer.ops import attention, capture

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 300

# %% [markdown]
# ## The idea
#
# A decoder in state $q$ scores each hidden state $m_s$ of the source, makes weights of the scores, and reads the
# weighted mean, the *context* $c$. Nothing is chosen; all is weighted, so that gradients flow everywhere. This is
# *soft* alignment (Bahdanau et al. 2015):
#
# $$a_s = \frac{\exp e(q, m_s)}{\sum_{r} \exp e(q, m_r)}, \qquad c = \sum_s a_s m_s$$
#
# What differs is the score $e$. Bahdanau's is a small network, Luong et al. (2015) multiply, and the Transformer
# (Vaswani et al. 2017) divides by $\sqrt{H}$, the width of a query, and reads *values* that are not the keys:
#
# $$e_{\text{additive}} = v^\top \tanh(W q + U m_s), \qquad e_{\text{general}} = q^\top W m_s, \qquad
# e_{\text{scaled}} = \frac{q^\top k_s}{\sqrt{H}}$$

# %% [markdown]
# ## Ten lines


# %%
def look(scores, values):
    """Return what queries read, by scores [T, S] of values [S, H]."""
    return jax.nn.softmax(scores, axis=-1) @ values


def additive(queries, memory, w, u, bias, v):
    return jnp.tanh((queries @ w)[:, None] + (memory @ u + bias)[None]) @ v


def general(queries, memory, w):
    return queries @ (memory @ w).T


def scaled(queries, keys):
    return queries @ keys.T / math.sqrt(queries.shape[-1])


# %% [markdown]
# ## The library
#
# `RecurrentAttention` has the scores of recurrent networks, `ops.attention` the scaled product, for any number of heads
# and with every kernel that a device has.

# %%
T, S, H = 4, 7, 16
queries, memory = jax.random.normal(jax.random.key(0), (T, H)), jax.random.normal(jax.random.key(1), (S, H))


def library(score):
    part = RecurrentAttention(RecurrentAttentionConfig(score=score), H, H, Precision(), rngs=nnx.Rngs(0))
    return part, part(queries[None], part.keys(memory[None]), memory[None], None, jnp.arange(T))[0][0]


part, found = library("additive")
scores = additive(queries, memory, part.state.kernel[...], part.memory.kernel[...], part.memory.bias[...],
                  part.score.kernel[..., 0])  # fmt: skip
np.testing.assert_allclose(look(scores, memory), found, atol=1e-5)
part, found = library("general")
np.testing.assert_allclose(look(general(queries, memory, part.memory.kernel[...]), memory), found, atol=1e-5)
one_head = attention(queries[:, None], memory[:, None], memory[:, None])[:, 0]
np.testing.assert_allclose(look(scaled(queries, memory), memory), one_head, atol=1e-5)

# %% [markdown]
# Why divide? A product of $H$ independent numbers of variance 1 has variance $H$. Without the division, softmax of wide
# queries puts almost all weight on one position before anything is learned, and its gradient is almost 0.

# %%
print("  H  largest weight, plain and scaled    mean gradient of a weight by its score, plain and scaled")
for width in (4, 64, 1024):
    q, k = jax.random.normal(jax.random.key(2), (2, 200, width))
    row = []
    for scores in (q @ k.T, scaled(q, k)):
        weights = jax.nn.softmax(scores)
        row.append((float(weights.max(-1).mean()), float((weights * (1 - weights)).mean())))
    print(f"{width:4} {row[0][0]:14.2f} {row[1][0]:6.2f} {row[0][1]:34.5f} {row[1][1]:10.5f}")
assert row[0][0] > 0.8
assert row[1][0] < 0.2

# %% [markdown]
# ## Writing from the end
#
# Sequences of 3 to 12 symbols are to be written from their end. An LSTM reads them and another one writes, with the
# same sizes, steps and data; only the attention differs. Targets begin with a start symbol and stop with an end symbol.

# %%
KINDS, LONGEST, START, END = 16, 12, 16, 17


def draw(random, rows):
    lengths = random.integers(3, LONGEST + 1, rows)
    source = random.integers(0, KINDS, (rows, LONGEST))
    labels = np.full((rows, LONGEST + 1), END)
    for row, length in enumerate(lengths):
        labels[row, :length] = source[row, :length][::-1]
    target = np.concatenate([np.full((rows, 1), START), labels[:, :-1]], axis=1)
    weights = np.arange(LONGEST + 1) <= lengths[:, None]
    inputs = {"source": jnp.asarray(source), "target": jnp.asarray(target), "lengths": jnp.asarray(lengths)}
    return inputs, jnp.asarray(labels), jnp.asarray(weights)


config = with_fields(lstm_seq2seq(vocab=KINDS + 2), embed=64, hidden=64, depth=1)
looks = {
    "without attention": None,
    "additive": RecurrentAttentionConfig(score="additive"),
    "general": RecurrentAttentionConfig(score="general"),
}


def loss(model, inputs, labels, weights):
    losses = optax.softmax_cross_entropy_with_integer_labels(model(**inputs), labels)
    return (losses * weights).sum() / weights.sum()


def trained(model):
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_onecycle_schedule(STEPS, 1e-2, pct_start=0.1))
    )

    @jax.jit
    def step(model, state, *batch):
        value, gradient = jax.value_and_grad(loss)(model, *batch)
        updates, state = optimizer.update(gradient, state, model)
        return optax.apply_updates(model, updates), state, value

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        model, state, _ = step(model, state, *draw(random, 64))
    return model


inputs, labels, weights = draw(np.random.default_rng(1), 2_000)
lengths = np.asarray(inputs["lengths"])
models, exact = {}, {}
for name, look_config in looks.items():
    models[name] = trained(replace(config, look=look_config).build(nnx.Rngs(0)))
    right = np.asarray(jax.jit(lambda model: model(**inputs).argmax(-1))(models[name]) == labels)
    whole = (right | ~np.asarray(weights)).all(1)
    exact[name] = np.array([whole[lengths == length].mean() for length in range(3, LONGEST + 1)])
    print(f"{name:18} {whole.mean():.3f} of all, {exact[name][-1]:.3f} of those of {LONGEST} symbols")

# %% [markdown]
# A sequence counts where the symbol of greatest probability is right at every position, given the right ones before.
#
# ## Where it looks
#
# Nobody has told the decoder that it has to read from the end. `ops.capture` returns the weights that the model used on
# its way: [B, T, S] of the additive score. For each written symbol, is the greatest weight on the one it is a copy of?

# %%
_, (weights_used,) = capture(lambda model: model(**inputs), "attention_weights")(models["additive"])
used = np.asarray(weights_used[0, :, 0])
copied = lengths[:, None] - 1 - np.arange(LONGEST)  # the position of the source that each position of the target copies
written = copied >= 0
largest = used[:, :LONGEST].argmax(-1)
aligned, nearby = ((np.abs(largest - copied) <= far)[written].mean() for far in (0, 1))
print(f"the greatest weight is on the symbol that is written: {aligned:.3f}; on it or a neighbour: {nearby:.3f}")

row = int(np.flatnonzero(lengths == 10)[0])
figure, (left, right_axis) = plt.subplots(1, 2, figsize=(8, 3))
left.imshow(used[row, :11, :10], cmap="Blues", vmin=0, vmax=1)
left.set(xlabel="source", ylabel="target", title="weights, additive score")
for name, values in exact.items():
    right_axis.plot(range(3, LONGEST + 1), values, "o-", label=name)
right_axis.set(xlabel="symbols", ylabel="without a mistake", ylim=(0, 1.05))
_ = right_axis.legend()

if not SMALL:
    assert exact["additive"][-1] > exact["without attention"][-1] + 0.2
    assert exact["general"][-1] > exact["without attention"][-1] + 0.2
    assert nearby > 0.8

# %% [markdown]
# Without attention the accuracy falls with length, as the state that is handed on does not grow. With it, length hardly
# matters, and the greatest weight is on the symbol that is being copied: an alignment that nobody has taught. In this
# task it can be read off. In others it need not be: the encoder's state at a position knows its neighbours, too, and a
# weight is not yet an explanation (chapter 4 removes parts instead of looking at them).

# %% [markdown]
# ## Exercises
#
# 1. Sources have padding, which must not be read. Write attention with lengths; a masked position gets no weight at
#    all, whatever its score.
#
#    ```python
#    def masked_weights(scores, length):
#        """Return weights [T, S] of scores [T, S] of which only the first `length` columns count."""
#    ```
#
# 2. Luong et al. also let a decoder see a window around one position $p$, with weights that fall off around it: those
#    of the window times $\exp(-2 (s - p)^2 / D^2)$, where $D$ is half of the window. Write it.
#
#    ```python
#    def local_weights(scores, p, half):
#        """Return weights [S] of scores [S]: softmax over |s - p| <= half, times the Gaussian, not normalised again."""
#    ```
#
# 3. A query that is scaled by $\beta$ makes softmax sharper. Find by how much a weight can be moved at all.
#
#    ```python
#    def largest_weight(scores, beta):
#        """Return the largest weight of a softmax of beta times scores [S]."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def masked_weights(scores, length):
    seen = jnp.arange(scores.shape[-1]) < length
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)


# %% tags=["check"]
scores = jnp.array([[1.0, 2.0, 50.0], [0.0, 0.0, 0.0]])
found = masked_weights(scores, 2)
np.testing.assert_allclose(found[:, 2], 0)
np.testing.assert_allclose(found[:, :2], jax.nn.softmax(scores[:, :2]), atol=1e-6)


# %% tags=["solution"] jupyter={"source_hidden": true}
def local_weights(scores, p, half):
    away = jnp.arange(len(scores)) - p
    weights = jax.nn.softmax(jnp.where(jnp.abs(away) <= half, scores, -jnp.inf))
    return weights * jnp.exp(-2 * (away / half) ** 2)


# %% tags=["check"]
config = RecurrentAttentionConfig(score="dot", local="predictive", window=2)
part = RecurrentAttention(config, H, H, Precision(), rngs=nnx.Rngs(0))
part.middle.kernel[...] = jnp.zeros_like(part.middle.kernel[...])  # the middle is then half of the length
theirs = part(queries[None, :1], memory[None], memory[None], None, jnp.arange(1))[1][0, 0]
np.testing.assert_allclose(local_weights(queries[0] @ memory.T, S / 2, 2), theirs, atol=1e-5)


# %% tags=["solution"] jupyter={"source_hidden": true}
def largest_weight(scores, beta):
    return jax.nn.softmax(beta * scores).max()


# %% tags=["check"]
scores = jnp.array([1.0, 2.0, 0.0])
np.testing.assert_allclose(largest_weight(scores, 0.0), 1 / 3, rtol=1e-6)
np.testing.assert_allclose(largest_weight(scores, jnp.log(2.0)), 4 / 7, rtol=1e-6)
assert largest_weight(scores, 100.0) > 0.999
