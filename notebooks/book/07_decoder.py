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
# # 7. The decoder
#
# A decoder predicts every token of a text from those before it. A causal mask lets one pass train all positions at
# once, and a cache of keys and values lets it write one token after the other without computing anything twice. This
# chapter measures both: what the loss is after as many steps if only the last position of each row is trained, and what
# a token costs with a cache and without one.

# %%
import os
import pydoc_data.topics
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.data.text.plain import encode_documents, train_characters
from flax_transformer.decode import Greedy, greedy
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import Attention, transformer_block, with_fields
from flax_transformer.ops import Mask

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 300

# %% [markdown]
# ## The idea
#
# With a *causal* mask the output at position $t$ depends on inputs up to $t$ only:
#
# $$y_t = \sum_{s \le t} a_{ts} v_s, \qquad
# a_{ts} = \frac{\exp(q_t^\top k_s / \sqrt{H})}{\sum_{r \le t} \exp(q_t^\top k_r / \sqrt{H})}$$
#
# So a row of $T + 1$ tokens holds $T$ predictions, and their mean loss is trained by one pass (*teacher forcing*): each
# position is given the true tokens before it. In writing there are no true tokens, and they come one at a time. But
# $k_s$ and $v_s$ never change once they are computed, since position $s$ cannot see what comes later. A *cache* keeps
# them, and a new token costs one query against $t$ keys, where computing all again would cost $t$ queries.

# %% [markdown]
# ## Ten lines


# %%
def step_by_step(x, query, key, value, out):
    """Return causal attention's outputs for x [T, D], one position after the other, with a cache [T, N, H]."""
    cache = {"k": jnp.zeros((len(x), *key.shape[1:])), "v": jnp.zeros((len(x), *value.shape[1:]))}
    outputs = []
    for t, token in enumerate(x):
        cache["k"] = cache["k"].at[t].set(jnp.einsum("d,dnh->nh", token, key))
        cache["v"] = cache["v"].at[t].set(jnp.einsum("d,dnh->nh", token, value))
        scores = jnp.einsum("d,dnh,snh->ns", token, query, cache["k"]) / jnp.sqrt(key.shape[-1])
        weights = jax.nn.softmax(jnp.where(jnp.arange(len(x)) <= t, scores, -jnp.inf))
        outputs.append(jnp.einsum("ns,snh,nhd->d", weights, cache["v"], out))
    return jnp.stack(outputs)


# %% [markdown]
# ## The library
#
# The same numbers from one call of `nn.Attention` with a causal mask:

# %%
layer = Attention(transformer_block(embed=32, heads=4, inner=32, bias=False).attention, rngs=nnx.Rngs(0))
x = jax.random.normal(jax.random.key(0), (9, 32))
kernels = [part.kernel[...] for part in (layer.query, layer.key, layer.value, layer.out)]
np.testing.assert_allclose(step_by_step(x, *kernels), layer(x, mask=Mask(causal=True)), atol=1e-5)

# %% [markdown]
# A whole model has `prefill`, which reads a prompt at once, and `step`, which adds a token and returns the cache with
# it. Their logits are those of a pass over all tokens.

# %%
text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
letters = train_characters([text])
codes = encode_documents([text], letters).flat.astype(np.int32)
cut = len(codes) * 9 // 10
train, test = codes[:cut], codes[cut:]
config = with_fields(gpt2_tiny(vocab=letters.vocab_size), embed=64, heads=4, inner=256, depth=2, max_length=512)
model = config.build(nnx.Rngs(0))

tokens = jnp.asarray(test[:48])[None]
whole = model(tokens)
logits, cache = model.prefill(tokens[:, :40])
cache = cache.grow(48)
for t in range(40, 48):
    np.testing.assert_allclose(logits, whole[:, t - 1], atol=1e-4)
    logits, cache = model.step(cache, tokens[:, t])
np.testing.assert_allclose(logits, whole[:, -1], atol=1e-4)
print("eight steps with a cache give the logits of one pass")

# %% [markdown]
# ## All positions at once
#
# The same model, data, steps and rate. In one run every position of a row is a prediction; in the other one only the
# last, as it would be if each prediction needed a pass of its own.


# %%
def losses_at(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:])


def windows(random, source, rows=16, length=65):
    starts = random.integers(0, len(source) - length, rows)
    return jnp.asarray(source[starts[:, None] + np.arange(length)])


def trained(model, positions):
    optimizer = optax.adamw(optax.cosine_onecycle_schedule(STEPS, 1e-2, pct_start=0.1), b2=0.99, weight_decay=0.1)

    @jax.jit
    def step(model, state, tokens):
        loss, gradient = jax.value_and_grad(lambda model: losses_at(model, tokens)[:, positions].mean())(model)
        updates, state = optimizer.update(gradient, state, model)
        return optax.apply_updates(model, updates), state, loss

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        model, state, _ = step(model, state, windows(random, train))
    return model


held = windows(np.random.default_rng(1), test, 400)
last_loss = jax.jit(lambda model: losses_at(model, held)[:, -1].mean())
after = {}
for name, positions in (("every position", slice(None)), ("the last position alone", slice(-1, None))):
    result = trained(model, positions)
    after[name] = float(last_loss(result))
    print(f"trained on {name:24} loss of the last position {after[name]:.3f}")
    if name == "every position":
        language_model = result
if not SMALL:
    assert after["every position"] < after["the last position alone"] - 0.1

# %% [markdown]
# ## What a cache saves
#
# Write with the cache, and by passing everything through the model again for each token. The texts are the same; the
# time of a token is not.

# %%
LENGTHS = (32, 64) if SMALL else (32, 128, 384)
prompt = jnp.asarray(test[:16])[None]


@jax.jit
def next_token(model, tokens, length):
    return model(tokens)[0, length - 1].argmax()


def write_again(model, count):
    tokens = jnp.zeros((1, 16 + count), jnp.int32).at[:, :16].set(prompt)
    for t in range(16, 16 + count):
        tokens = tokens.at[0, t].set(next_token(model, tokens, t))
    return tokens[0, 16:]


def write_cached(model, count):
    _, cache = model.prefill(prompt[:, :-1])
    decoded = greedy(model.step, cache.grow(16 + count), prompt[:, -1], Greedy(max_length=count, eos=()))
    return decoded.tokens[0, 0]


seconds = {"again": [], "cached": []}
for count in LENGTHS:
    texts = {}
    for name, write in (("again", write_again), ("cached", jax.jit(write_cached, static_argnums=1))):
        texts[name] = np.asarray(write(language_model, count))  # compiles
        began = time.perf_counter()
        write(language_model, count).block_until_ready()
        seconds[name].append((time.perf_counter() - began) / count)
    assert (texts["again"] == texts["cached"]).mean() > 0.9  # a tie may be decided otherwise
    again, cached = (1e3 * seconds[name][-1] for name in ("again", "cached"))
    print(f"{count:4} tokens: {again:6.2f} ms a token again, {cached:6.2f} ms cached")

print(repr(letters.decode([texts["cached"][:120]])[0]))
figure, axis = plt.subplots(figsize=(5, 2.4))
for name, values in seconds.items():
    axis.plot(LENGTHS, 1e3 * np.array(values), "o-", label=name)
axis.set(xlabel="tokens written", ylabel="ms a token", yscale="log")
_ = axis.legend()
if not SMALL:
    assert seconds["again"][-1] > 3 * seconds["cached"][-1]

# %% [markdown]
# Sixty-four predictions a row for the price of one pass is what made the Transformer a language model: a recurrent
# network has as many predictions, but computes them one after the other. And the cache makes a token's cost hardly grow
# with length, where passing everything again makes it grow in proportion; what it costs is memory, which chapter 4's
# grouped heads make smaller. The text that was written here is nothing but spaces: greedy search of a model that was
# trained for seconds. Chapter 10 is about choosing better.

# %% [markdown]
# ## Exercises
#
# 1. Make rows of a long stream for teacher forcing, so that each token but the first is a label exactly once.
#
#    ```python
#    def rows_of(stream, length):
#        """Return inputs and labels [R, length] of a stream [N]; what is left over at the end is dropped."""
#    ```
#
# 2. How many products of a query and a key does it take to write $T$ tokens, with a cache and without?
#
#    ```python
#    def products(length, cached):
#        """Return how many query-key products a head computes to write so many tokens, after an empty prompt."""
#    ```
#
# 3. Several documents lie in one row. Write the mask that hides the future and the other documents.
#
#    ```python
#    def packed_mask(segments):
#        """Return which keys (columns) each query (row) sees [T, T], by the documents' numbers [T]."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def rows_of(stream, length):
    count = (len(stream) - 1) // length
    inputs, labels = stream[: count * length], stream[1 : count * length + 1]
    return inputs.reshape(count, length), labels.reshape(count, length)


# %% tags=["check"]
given, wanted = rows_of(np.arange(12), 5)
assert given.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
assert wanted.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
assert rows_of(np.arange(11), 5)[0].shape == (2, 5)


# %% tags=["solution"] jupyter={"source_hidden": true}
def products(length, cached):
    return sum(t if cached else t * (t + 1) // 2 for t in range(1, length + 1))


# %% tags=["check"]
assert products(3, cached=True) == 1 + 2 + 3
assert products(3, cached=False) == 1 + (1 + 2) + (1 + 2 + 3)


# %% tags=["solution"] jupyter={"source_hidden": true}
def packed_mask(segments):
    segments = jnp.asarray(segments)
    return jnp.tril(segments[:, None] == segments)


# %% tags=["check"]
numbers = jnp.array([1, 1, 1, 2, 2, 3])
theirs = (Mask(causal=True) & Mask(segments=(numbers[None], numbers[None]))).materialize(6, 6)
np.testing.assert_array_equal(packed_mask(numbers), theirs.reshape(6, 6))
