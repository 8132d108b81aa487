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
# # 5. Positions
#
# Attention does not know the order of what it reads: without positions, a permutation of the tokens permutes the
# outputs, and that is all. This chapter compares four ways to say where a token is. Models are trained on 16 tokens and
# tested on up to 64. The number is the accuracy by length: none goes on as if nothing had happened, and what has
# learned one rule for all distances that are far goes on best.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import with_head
from flax_transformer.nn import EmbeddingConfig, RelativeConfig, Rotary, transformer_block, with_fields
from flax_transformer.ops import LinearScaling, alibi, causal_relative_buckets, rotary, rotary_frequencies, sinusoidal

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 300

# %% [markdown]
# ## The idea
#
# Let $P$ be a permutation matrix. Projections work on each token alone, and softmax does not care for the order of the
# keys, so that an encoder $f$ without positions is *equivariant*:
#
# $$f(P x) = P f(x)$$
#
# Positions break this. *Sinusoidal* ones (Vaswani et al. 2017) are added to the embedding of the token at position $p$,
# with frequencies $\omega_i = 10000^{-2i/D}$:
#
# $$\text{PE}(p)_{2i} = \sin(\omega_i p), \qquad \text{PE}(p)_{2i+1} = \cos(\omega_i p)$$
#
# *Learned* ones are a table with a row for each $p$. *Rotary* positions (Su et al. 2021) rotate pairs of channels of
# every query and key by $\omega_i p$. As $R_p^\top R_s = R_{s-p}$, their product depends on the distance only:
#
# $$(R_p q)^\top (R_s k) = q^\top R_{s-p}\, k$$
#
# And a *relative bias* (Raffel et al. 2020, T5) adds a learned number $b_{s-p}$ to the score, one for each distance and
# head; large distances share one. Two are tried below: one whose distances up to 64 have numbers of their own, of which
# training uses those up to 15, and one in which all from 12 on share one.

# %% [markdown]
# ## Ten lines


# %%
def sines(positions, width):
    angles = positions[:, None] * 10_000 ** (-jnp.arange(0, width, 2) / width)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(len(positions), width)


def rotate(x, positions):
    """Rotate the channels i and i + H/2 of x [T, H], as complex numbers."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10_000 ** (-jnp.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * jnp.exp(1j * angles)
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


# %% [markdown]
# ## The library
#
# `ops.sinusoidal` and `ops.rotary` are the same functions. A model says in its config which it has: a kind of
# `EmbeddingConfig.position`, `rotary=Rotary()` of its attention, or `relative=RelativeConfig()` of its trunk.

# %%
positions = jnp.arange(30)
np.testing.assert_allclose(sines(positions, 64), sinusoidal(positions, 64), atol=1e-5)
x = jax.random.normal(jax.random.key(0), (30, 16))
library = rotary(x[:, None], positions, rotary_frequencies(16))[:, 0]
np.testing.assert_allclose(rotate(x, positions), library, atol=1e-5)

q, k = x[:2]
product = {(p, s): float((rotate(q[None], jnp.array([p])) @ rotate(k[None], jnp.array([s])).T)[0, 0])
           for p, s in ((2, 5), (12, 15), (2, 6))}  # fmt: skip
print({places: round(value, 4) for places, value in product.items()})
np.testing.assert_allclose(product[2, 5], product[12, 15], atol=1e-4)
assert abs(product[2, 5] - product[2, 6]) > 1e-3

# %% [markdown]
# And the equation above, of a whole encoder without positions:

# %%
KINDS, WIDTH = 10, 64
block = transformer_block(embed=WIDTH, heads=4, inner=128, norm_position="pre")
plain = EncoderConfig(
    embedding=EmbeddingConfig(vocab=KINDS, embed=WIDTH, position="none", max_length=64), block=block, depth=1
)
configs = {
    "none": plain,
    "learned": with_fields(plain, position="learned"),
    "sinusoidal": with_fields(plain, position="sinusoidal"),
    "rotary": with_fields(plain, rotary=Rotary()),
    "relative bias, to 64": with_fields(plain, relative=RelativeConfig(buckets=32, max_distance=64)),
    "relative bias, to 12": with_fields(plain, relative=RelativeConfig(buckets=16, max_distance=12)),
}
tokens, order = jnp.arange(12) % KINDS, jax.random.permutation(jax.random.key(1), 12)
for name, config in configs.items():
    encoder = config.build(nnx.Rngs(0))
    gap = float(jnp.abs(encoder(tokens[order]) - encoder(tokens)[order]).max())
    print(f"{name:20} permuted inputs change outputs by up to {gap:.0e}")
    assert (gap < 1e-5) == (name == "none")

# %% [markdown]
# ## Longer than ever seen
#
# Each position is to say which symbol stands three positions before it, in rows of 16 symbols. Then the same model is
# given rows of 32 and 64.

# %%
BACK = 3


def draw(random, rows, length):
    tokens = random.integers(0, KINDS, (rows, length))
    return jnp.asarray(tokens), jnp.asarray(np.roll(tokens, BACK, axis=1))


def trained(config, seed=0):
    model = with_head(config, outputs=KINDS).build(nnx.Rngs(seed))
    optimizer = optax.adam(optax.cosine_onecycle_schedule(STEPS, 5e-3, pct_start=0.1))

    @jax.jit
    def step(model, state, tokens, labels):
        def loss(model):
            logits = model(tokens)[:, BACK:]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels[:, BACK:]).mean()

        value, gradient = jax.value_and_grad(loss)(model)
        updates, state = optimizer.update(gradient, state, model)
        return optax.apply_updates(model, updates), state, value

    random, state = np.random.default_rng(seed), optimizer.init(model)
    for _ in range(STEPS):
        model, state, _ = step(model, state, *draw(random, 32, 16))
    return model


@jax.jit
def right(model, tokens, labels):
    return model(tokens).argmax(-1) == labels


accuracy = {}
for name, config in configs.items():
    model = trained(config)
    for length in (16, 32, 64):
        found = np.asarray(right(model, *draw(np.random.default_rng(9), 200, length)))
        accuracy[name, length] = found.mean(0)  # of each position; the first ones have nothing before them
    means = (f"{length}: {accuracy[name, length][BACK:].mean():.3f}" for length in (16, 32, 64))
    print(f"{name:20}", "   ".join(means))

# %%
figure, axis = plt.subplots(figsize=(7, 2.8))
for name in configs:
    axis.plot(range(BACK, 64), accuracy[name, 64][BACK:], label=name)
axis.axvline(15.5, color="gray", linestyle=":")
axis.text(16, 1.02, "never seen in training", fontsize=8)
axis.set(xlabel="position", ylabel="accuracy", ylim=(0, 1.12))
_ = axis.legend(loc="upper right", fontsize=7)

if not SMALL:
    beyond = {name: accuracy[name, 64][BACK:].mean() for name in configs}
    assert accuracy["none", 16][BACK:].mean() < 0.4
    assert all(accuracy[name, 16][BACK:].mean() > 0.9 for name in configs if name != "none")
    shared = beyond.pop("relative bias, to 12")
    assert shared > beyond["relative bias, to 64"] + 0.15
    assert shared > max(beyond.values()) + 0.05

# %% [markdown]
# Within the length of training every kind of position is as good as the others, and without any the model can only
# guess among the symbols that the row has. Beyond it the kinds differ. Learned rows that were never trained say
# nothing, and sinusoids, although they are defined everywhere, are hardly better. Rotary positions and the bias up to
# 64 know their distance of three everywhere, but a longer row has more keys, at distances that were never seen, and
# nothing has taught the model to give those no weight. Where all far distances share one number, that number was
# trained, and the model goes on best. It degrades, too: 52 far keys get some weight even if each gets little. That is
# why models for long texts are trained on long texts at last, and why rotary frequencies are scaled.

# %% [markdown]
# ## Exercises
#
# 1. ALiBi (Press et al. 2022) adds a bias that falls linearly with distance, with a slope for each head. Write it for a
#    power of two of heads, whose slopes are $2^{-8 n / N}$ for $n = 1 \dots N$.
#
#    ```python
#    def linear_bias(heads, length):
#        """Return the bias [N, T, T] of a causal model's heads; entries of the future do not matter."""
#    ```
#
# 2. T5 gives distances up to half of a direction's buckets one each. The rest share buckets, of distances that grow
#    logarithmically. Write the bucket of a distance to the past.
#
#    ```python
#    def bucket(distance, buckets, max_distance):
#        """Return the bucket, 0 to buckets - 1, of a distance >= 0: the first half exact, the rest logarithmic."""
#    ```
#
# 3. A model was trained on rotary positions up to some length and is to read texts that are `factor` times as long.
#    Scale positions down so that none is outside of what it knows (position interpolation, Chen et al. 2023).
#
#    ```python
#    def interpolated(x, positions, factor):
#        """Return x [T, H], rotated by positions that are so many times smaller."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def linear_bias(heads, length):
    slopes = 2.0 ** (-8 * jnp.arange(1, heads + 1) / heads)
    distance = jnp.arange(length)[:, None] - jnp.arange(length)
    return -slopes[:, None, None] * distance


# %% tags=["check"]
past = jnp.tril(jnp.ones((6, 6)))
np.testing.assert_allclose(linear_bias(8, 6) * past, alibi(8, 6, 6) * past, atol=1e-6)


# %% tags=["solution"] jupyter={"source_hidden": true}
def bucket(distance, buckets, max_distance):
    exact = buckets // 2
    if distance < exact:
        return int(distance)
    share = np.log(distance / exact) / np.log(max_distance / exact)
    return min(exact + int(share * (buckets - exact)), buckets - 1)


# %% tags=["check"]
for distance in (0, 3, 15, 16, 17, 30, 60, 100, 500):
    assert bucket(distance, 32, 128) == causal_relative_buckets(jnp.array([-distance]))[0], distance


# %% tags=["solution"] jupyter={"source_hidden": true}
def interpolated(x, positions, factor):
    return rotate(x, positions / factor)


# %% tags=["check"]
scaling = LinearScaling(factor=4.0)
theirs = rotary(x[:, None], positions, scaling(16, 10_000.0))[:, 0]
np.testing.assert_allclose(interpolated(x, positions, 4), theirs, atol=1e-4)
