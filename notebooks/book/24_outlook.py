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
# # 24. Outlook
#
# What comes after the dense Transformer? Three directions run through recent models: more parameters than each token
# uses (mixtures of experts), a state of fixed size in place of all earlier tokens (recurrent and state-space layers),
# and longer contexts. This chapter measures the first: how many random facts a layer learns by heart, dense, or as
# eight experts of which a token uses one. The numbers are the share of facts and the FLOPs of a token, beside those
# of a dense layer with all the parameters of the experts.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.bench.flops import count_flops
from flax_transformer.nn import ExpertsConfig, FeedForwardConfig
from flax_transformer.ops import LinearState, linear_step
from flax_transformer.train import parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 1_500

# %% [markdown]
# ## The idea
#
# What a Transformer knows by heart is for the most part in its feed-forward layers, and grows with their parameters.
# So do the FLOPs of every token. A *mixture of experts* has $E$ such layers and a router, which sends each token to
# the best $A$ of them (Shazeer et al. 2017; Fedus et al. 2021 with $A = 1$):
#
# $$p = \mathrm{softmax}(x R), \qquad y = \sum_{e \in \mathrm{top}_A(p)} p_e\, \mathrm{FFN}_e(x)$$
#
# Parameters grow with $E$, FLOPs of a token with $A$. If the router sent all tokens to one expert, the others would
# learn nothing. With $f_e$ the share of tokens that go to expert $e$ and $\bar p_e$ its mean probability, the loss
# gets a term that is least where all are even:
#
# $$\mathcal{L}_{\text{balance}} = E \sum_e f_e\, \bar p_e$$

# %% [markdown]
# ## Ten lines


# %%
def one_expert(x, router, up, up_bias, down, down_bias):
    """Send each token [T, D] to the best of E experts, whose arrays have a leading axis of E."""
    probabilities = jax.nn.softmax(x @ router)
    best = probabilities.argmax(-1)
    inner = jax.nn.relu(jnp.einsum("td,tdf->tf", x, up[best]) + up_bias[best])
    y = jnp.einsum("tf,tfd->td", inner, down[best]) + down_bias[best]
    return jnp.take_along_axis(probabilities, best[:, None], axis=1) * y


def balance(probabilities):
    share = jax.nn.one_hot(probabilities.argmax(-1), probabilities.shape[-1]).mean(0)
    return probabilities.shape[-1] * (share * probabilities.mean(0)).sum()


# %% [markdown]
# ## The library
#
# `ExpertsConfig` stands wherever a `FeedForwardConfig` does, in any block of any model (`nn.with_experts`). With a
# `capacity` an expert takes a limited number of tokens, so that its work has a fixed shape; without, nothing is
# dropped.

# %%
D, F, E = 32, 32, 8
WIDTHS = {"embed": D, "activation": "relu"}
ONE_OF_EIGHT = ExpertsConfig(inner=F, experts=E, active=1, normalized=False, **WIDTHS)
experts = ONE_OF_EIGHT.build(nnx.Rngs(0))
x = jax.random.normal(jax.random.key(0), (20, D))
inside = experts.experts
by_hand = one_expert(x, experts.router.kernel[...], inside.up.kernel[...], inside.up.bias[...],
                     inside.down.kernel[...], inside.down.bias[...])  # fmt: skip
found, seen = experts.observe(x)
np.testing.assert_allclose(found, by_hand, atol=1e-5)
np.testing.assert_allclose(seen["balance"], balance(jax.nn.softmax(experts.router(x))), rtol=1e-5)
print(f"balance {float(seen['balance']):.2f}; 1 would be even")

# %% [markdown]
# ## Facts to learn by heart
#
# A fact is a pair of words and an answer that has nothing to do with them: one of 32, drawn once. There are 64 × 64
# pairs. The model adds the vectors of both words, applies one layer, and answers. Nothing can be generalised, so that
# the share of right answers on the facts themselves says how much the layer holds.

# %%
WORDS, ANSWERS = 64, 32
FACTS = np.random.default_rng(0).integers(0, ANSWERS, (WORDS, WORDS)).astype(np.int32)


class Memory(nnx.Module):
    def __init__(self, config, *, rngs):
        self.first, self.second = nnx.Embed(WORDS, D, rngs=rngs), nnx.Embed(WORDS, D, rngs=rngs)
        self.norm = nnx.LayerNorm(D, rngs=rngs)
        self.layer = config.build(rngs)
        self.output = nnx.Linear(D, ANSWERS, rngs=rngs)

    def __call__(self, first, second):
        """Return scores, and how even experts are used."""
        x = self.norm(self.first(first) + self.second(second))
        if hasattr(self.layer, "observe"):
            y, seen = self.layer.observe(x)
            return self.output(x + y), seen["balance"].mean()
        return self.output(x + self.layer(x)), 0.0


def train(config):
    model = Memory(config, rngs=nnx.Rngs(0))
    optimizer = optax.adamw(optax.cosine_onecycle_schedule(STEPS, 1e-2, pct_start=0.1), weight_decay=0.0)

    @jax.jit
    def step(model, state, first, second, answers):
        def loss(model):
            scores, uneven = model(first, second)
            return optax.softmax_cross_entropy_with_integer_labels(scores, answers).mean() + 0.01 * uneven

        updates, state = optimizer.update(jax.grad(loss)(model), state, model)
        return optax.apply_updates(model, updates), state

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        first, second = random.integers(0, WORDS, (2, 512))
        model, state = step(model, state, first, second, FACTS[first, second])
    return model


first, second = (each.reshape(-1) for each in np.mgrid[:WORDS, :WORDS])
KINDS = {
    "dense": FeedForwardConfig(inner=F, **WIDTHS),
    "8 experts, 1 used": ONE_OF_EIGHT,
    "dense, 8 times as wide": FeedForwardConfig(inner=E * F, **WIDTHS),
}
share, used = {}, {}
tokens = jax.ShapeDtypeStruct((512, D), jnp.float32)
for name, config in KINDS.items():
    model = train(config)
    right = jax.jit(lambda model, *words: model(*words)[0].argmax(-1))(model, first, second) == FACTS.reshape(-1)
    share[name] = float(right.mean())
    limited = config if name.startswith("dense") else ExpertsConfig(
        inner=F, experts=E, active=1, normalized=False, capacity=1.25, **WIDTHS)  # fmt: skip
    used[name] = count_flops(lambda layer, x: layer(x), limited.build(nnx.Rngs(0)), tokens).model / 512
    size = parameter_count(model.layer)
    print(f"{name:23} {size:6,} parameters, {used[name]:7,.0f} FLOPs a token: {share[name]:.1%} of the facts")
    if hasattr(model.layer, "router"):
        mixture = model

figure, axis = plt.subplots(figsize=(4.5, 2.4))
for name in KINDS:
    axis.plot(used[name] / 1000, 100 * share[name], "o", label=name)
axis.set(xlabel="thousand FLOPs of the layer for a token", ylabel="facts in %", xlim=(0, None), ylim=(0, 103))
_ = axis.legend(fontsize=7)
more = share["8 experts, 1 used"] - share["dense"]
print(f"experts are worth {100 * more:+.1f} points beside the dense layer of the same width")
if not SMALL:
    assert more > 0.1

# %% [markdown]
# FLOPs are counted with a capacity of 1.25, as large models have it; sending tokens to experts by products with
# one-hot matrices is part of the count. The dense layer that holds as much does more work for each token.
#
# ## Which expert?
#
# Do experts share out the words? If the router went by one word of a pair alone, each row or column of this figure
# would have one colour.

# %%
states = mixture.norm(mixture.first(jnp.asarray(first)) + mixture.second(jnp.asarray(second)))
chosen = np.asarray(mixture.layer.router(states).argmax(-1)).reshape(WORDS, WORDS)
figure, axis = plt.subplots(figsize=(3, 2.8))
axis.imshow(chosen, cmap="tab10", interpolation="nearest")
axis.set(xlabel="second word", ylabel="first word")
counts = np.bincount(chosen.reshape(-1), minlength=E) / chosen.size
print("shares of the experts: " + ", ".join(f"{each:.0%}" for each in counts))

# %% [markdown]
# ## A state in place of a cache
#
# A causal Transformer that writes keeps keys and values of all tokens. A layer with a recurrent form (chapter 22:
# linear attention; state-space layers are another kind) keeps a state. What a head of width 64 has to keep:

# %%
state = LinearState.empty((), heads=1, features=64, width=64)
q, k, v = jnp.ones((3, 1, 64))
_, after = linear_step(state, q, k, v)
numbers = sum(each.size for each in jax.tree.leaves(after))
for length in (64, 1_024, 16_384):
    print(f"after {length:6,} tokens: {2 * 64 * length:9,} numbers in a cache, {numbers:,} in a state")
assert numbers == 64 * 64 + 64

# %% [markdown]
# The state is the smaller one from 33 tokens on, and what it forgets chapter 22 has measured. Many recent models have
# both: mostly layers with a state, and a few that see everything.

# %% [markdown]
# ## Exercises
#
# 1. How many tokens do experts with a capacity refuse? An expert takes at most `capacity * T / E` tokens, rounded
#    down, of the T tokens of a row.
#
#    ```python
#    def refused(chosen, experts, capacity):
#        """Return the share of tokens that find no place; chosen [T] are the numbers of their experts."""
#    ```
#
# 2. State-space layers compute $h_t = a_t h_{t-1} + b_t$. Compute all $h_t$ in $\mathcal{O}(\log T)$ parallel steps,
#    by `jax.lax.associative_scan`: what do two steps $(a, b)$ and $(a', b')$ make together?
#
#    ```python
#    def recurrence(a, b):
#        """Return h [T] for a and b [T], where h before the first step is 0."""
#    ```
#
# 3. With keys and values of `kv_heads` heads and 2 bytes a number, how long a context fits into some memory?
#
#    ```python
#    def longest(memory, layers, kv_heads, width):
#        """Return the whole number of tokens whose keys and values fit into so many bytes."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def refused(chosen, experts, capacity):
    places = int(capacity * len(chosen) / experts)
    counts = np.bincount(chosen, minlength=experts)
    return np.maximum(counts - places, 0).sum() / len(chosen)


# %% tags=["check"]
assert abs(refused(np.array([0, 0, 0, 1]), 2, 1.0) - 0.25) < 1e-9
assert refused(np.array([0, 1, 0, 1]), 2, 1.0) == 0
tight = ExpertsConfig(inner=F, experts=E, active=1, normalized=False, capacity=1.0, **WIDTHS).build(nnx.Rngs(0))
x = jax.random.normal(jax.random.key(1), (64, D))
np.testing.assert_allclose(
    refused(np.asarray(tight.router(x).argmax(-1)), E, 1.0), tight.observe(x)[1]["dropped"], atol=1e-6
)


# %% tags=["solution"] jupyter={"source_hidden": true}
def recurrence(a, b):
    def together(one, other):
        return one[0] * other[0], other[0] * one[1] + other[1]

    return jax.lax.associative_scan(together, (a, b))[1]


# %% tags=["check"]
a, b = jax.random.uniform(jax.random.key(2), (2, 50))
h, wanted = 0.0, []
for one, other in zip(a.tolist(), b.tolist(), strict=True):
    h = one * h + other
    wanted.append(h)
np.testing.assert_allclose(recurrence(a, b), wanted, rtol=1e-4)


# %% tags=["solution"] jupyter={"source_hidden": true}
def longest(memory, layers, kv_heads, width):
    return memory // (2 * 2 * layers * kv_heads * width)


# %% tags=["check"]
assert longest(2 * 2 * 3 * 4 * 64 * 100 + 5, 3, 4, 64) == 100
assert longest(16 * 2**30, 32, 8, 128) == 131_072
