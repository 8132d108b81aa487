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
# # 22. Efficient attention
#
# Self-attention compares every position with every other, so that its cost grows with the square of the length.
# Linear attention and windows grow with the length alone. What do they lose? Here each model must recall the value of
# a key among 32 pairs. The numbers are the FLOPs of the traced programs by length, and the share of values recalled.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.bench.flops import count_flops
from flax_transformer.nn import Trunk, TrunkConfig, transformer_block
from flax_transformer.ops import LinearAttention, LocalAttention, Mask, attention

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 400

# %% [markdown]
# ## The idea
#
# Attention is a mean of values, weighted by a similarity of queries and keys. That of softmax is
# $\exp(q \cdot k / \sqrt{H})$, and needs a weight for each of the $T^2$ pairs. If the similarity is a product of
# *features*, $\phi(q) \cdot \phi(k)$, the sums over keys can be made first (Katharopoulos et al. 2020):
#
# $$y_t = \frac{\sum_s \phi(q_t)^\top \phi(k_s)\, v_s}{\sum_s \phi(q_t)^\top \phi(k_s)}
#       = \frac{\phi(q_t)^\top \sum_s \phi(k_s)\, v_s^\top}{\phi(q_t)^\top \sum_s \phi(k_s)},
#   \qquad \phi(x) = \mathrm{elu}(x) + 1$$
#
# All keys and values are now in one matrix of $H \times H$ numbers, whatever the length. The cost is
# $\mathcal{O}(T H^2)$ instead of $\mathcal{O}(T^2 H)$. A *window* of $w$ positions on either side keeps the softmax
# and costs $\mathcal{O}(T w H)$, but sees nothing beyond.

# %% [markdown]
# ## Ten lines


# %%
def linear_attention(q, k, v):
    """Attend by features, without a mask; q, k and v are [T, H]."""
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    memory, total = k.T @ v, k.sum(0)  # all that is known of keys and values
    return (q @ memory) / (q @ total)[:, None]


def window_attention(q, k, v, window):
    """Attend to the positions at most `window` away."""
    scores = q @ k.T / jnp.sqrt(q.shape[-1])
    distance = jnp.abs(jnp.arange(len(q))[:, None] - jnp.arange(len(k)))
    return jax.nn.softmax(jnp.where(distance <= window, scores, -jnp.inf)) @ v


# %% [markdown]
# ## The library
#
# A variant of attention is a value that is called as `ops.attention` is. A block takes it as `attend`.

# %%
q, k, v = jax.random.normal(jax.random.key(0), (3, 300, 16))
whole = {"linear": linear_attention(q, k, v), "window": window_attention(q, k, v, 16)}
KINDS = {"softmax": attention, "linear": LinearAttention(), "window": LocalAttention(window=16)}
for name, by_hand in whole.items():
    found = KINDS[name](q[:, None], k[:, None], v[:, None])[:, 0]  # one head
    np.testing.assert_allclose(found, by_hand, atol=2e-5)
print("the same numbers")

# %% [markdown]
# ## What it costs
#
# `count_flops` walks the traced program and multiplies loops by their turns, which XLA's own count of a compiled
# program leaves out. Where there are no loops, both must agree.

# %%
H, LENGTHS = 32, (128, 256, 512, 1024, 2048, 4096)
flops = {name: [] for name in KINDS}
for name, attend in KINDS.items():
    for length in LENGTHS:
        x = jax.ShapeDtypeStruct((1, length, 1, H), jnp.float32)
        flops[name].append(count_flops(lambda q, k, v, attend=attend: attend(q, k, v), x, x, x).model)
x = jax.ShapeDtypeStruct((1, 512, 1, H), jnp.float32)
compiled = jax.jit(lambda q, k, v: attention(q, k, v)).lower(x, x, x).compile().cost_analysis()["flops"]
assert abs(compiled / flops["softmax"][2] - 1) < 0.1

figure, axis = plt.subplots(figsize=(4.5, 2.6))
for name, counts in flops.items():
    axis.loglog(LENGTHS, counts, "o-", label=name)
    growth = np.log2(counts[-1] / counts[-2])
    print(f"{name:8} {counts[-1] / 1e6:8.1f} MFLOPs at {LENGTHS[-1]:,} positions; twice as long: {2**growth:.1f} times")
axis.set(xlabel="positions", ylabel="FLOPs of a head", xticks=LENGTHS, xticklabels=LENGTHS)
axis.minorticks_off()
axis.legend()
assert flops["softmax"][-1] == 4 * flops["softmax"][-2]
assert flops["linear"][-1] == 2 * flops["linear"][-2]

# %% [markdown]
# ## What is lost
#
# A sequence has 32 pairs, each a vector of a key and a value; then the same keys in another order, without their
# values. The model, of one layer, answers with the value of each. Keys are 32 of 64, values one of 16, so that
# guessing is right in one of 16. There is nothing to learn by heart: pairs are drawn anew. Heads have a width of 8;
# linear attention is also tried with heads of 32.

# %%
KEYS, VALUES, PAIRS = 64, 16, 32


def draw(random, rows):
    keys = random.permuted(np.tile(np.arange(KEYS), (rows, 1)), axis=1)[:, :PAIRS]
    values = random.integers(0, VALUES, (rows, PAIRS))
    order = random.permuted(np.tile(np.arange(PAIRS), (rows, 1)), axis=1)
    asked, answers = (np.take_along_axis(each, order, axis=1) for each in (keys, values))
    inputs = np.zeros((rows, 2 * PAIRS, KEYS + VALUES), np.float32)
    inputs[..., :KEYS] = np.eye(KEYS)[np.concatenate([keys, asked], axis=1)]
    inputs[:, :PAIRS, KEYS:] = np.eye(VALUES)[values]
    return inputs, answers, PAIRS + np.arange(PAIRS) - order  # the last is how far each pair is from its question


class Recall(nnx.Module):
    def __init__(self, attend, D, heads, *, rngs):
        block = transformer_block(
            embed=D, heads=heads, inner=2 * D, norm_position="pre", activation="gelu", attend=attend
        )
        self.embed = nnx.Linear(KEYS + VALUES, D, rngs=rngs)
        self.trunk = Trunk(TrunkConfig(block=block, depth=1), rngs=rngs)
        self.output = nnx.Linear(D, VALUES, rngs=rngs)

    def __call__(self, inputs):
        return self.output(self.trunk(self.embed(inputs))[:, PAIRS:])


def train(attend, D, heads):
    model = Recall(attend, D, heads, rngs=nnx.Rngs(0))
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_onecycle_schedule(STEPS, 1e-2, pct_start=0.2))
    )

    @jax.jit
    def step(model, state, inputs, answers):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(inputs), answers).mean()

        updates, state = optimizer.update(jax.grad(loss)(model), state, model)
        return optax.apply_updates(model, updates), state

    random, state = np.random.default_rng(0), optimizer.init(model)
    for _ in range(STEPS):
        inputs, answers, _ = draw(random, 32)
        model, state = step(model, state, inputs, answers)
    return model


inputs, answers, distance = draw(np.random.default_rng(1), 500)
right = {}
runs = {name: (attend, 32, 4) for name, attend in KINDS.items()} | {"linear, wide": (KINDS["linear"], 64, 2)}
for name, (attend, D, heads) in runs.items():
    model = train(attend, D, heads)
    right[name] = np.asarray(jax.jit(lambda model, x: model(x))(model, inputs).argmax(-1) == answers)
    print(f"{name:12} {heads} heads of {D // heads:2}: recalls {right[name].mean():6.1%} of the values")

# %%
edges = np.arange(1, 2 * PAIRS, 4)
figure, axis = plt.subplots(figsize=(4.5, 2.6))
for name, each in right.items():
    axis.plot(edges + 1.5, [each[(distance >= low) & (distance < low + 4)].mean() for low in edges], "o-", label=name)
axis.axhline(1 / VALUES, color="black", linewidth=0.8, linestyle=":")
axis.set(xlabel="positions between a pair and its question", ylabel="share recalled", ylim=(0, 1.05))
_ = axis.legend()
near, far = right["window"][distance <= 16].mean(), right["window"][distance > 16].mean()
print(f"the window recalls {near:.1%} within 16 positions and {far:.1%} beyond, where chance is {1 / VALUES:.1%}")
if not SMALL:
    assert right["softmax"].mean() > right["linear"].mean() + 0.05
    assert right["linear, wide"].mean() > right["linear"].mean() + 0.05
    assert near > far + 0.3

# %% [markdown]
# Each loses something else. The window recalls as softmax does, of what is near, and guesses beyond. Linear attention
# loses evenly over the whole sequence: its memory has $H^2$ numbers a head, and pairs whose keys are not orthogonal
# blur each other. Wider heads have a larger memory and recall more; more distance does not hurt.

# %% [markdown]
# ## Exercises
#
# 1. Causal linear attention as a recurrence: carry the memory and the total from position to position.
#
#    ```python
#    def recurrent(q, k, v):
#        """Return what each position [T, H] sees of itself and those before."""
#    ```
#
# 2. Count multiplications alone. From which length on is linear attention cheaper than that of softmax, without a
#    mask?
#
#    ```python
#    def cheaper_from(width):
#        """Return the length at which both need as many multiplications, for heads of this width."""
#    ```
#
# 3. Layers of windows see further, one on top of the other. How many are needed until a position can depend on one
#    that is `distance` away?
#
#    ```python
#    def layers_needed(distance, window):
#        """Return the least number of layers of windows of `window` positions on either side."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def recurrent(q, k, v):
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1

    def step(carried, each):
        memory, total = carried
        q, k, v = each
        memory, total = memory + jnp.outer(k, v), total + k
        return (memory, total), (q @ memory) / (q @ total)

    start = jnp.zeros((k.shape[-1], v.shape[-1])), jnp.zeros(k.shape[-1])
    return jax.lax.scan(step, start, (q, k, v))[1]


# %% tags=["check"]
q, k, v = jax.random.normal(jax.random.key(1), (3, 40, 8))
causal = LinearAttention()(q[:, None], k[:, None], v[:, None], Mask(causal=True))[:, 0]
np.testing.assert_allclose(recurrent(q, k, v), causal, atol=1e-5)


# %% tags=["solution"] jupyter={"source_hidden": true}
def cheaper_from(width):
    return width  # 2 T² H beside 2 T H², apart from the normalisers


# %% tags=["check"]
for width in (32, 64):
    at = cheaper_from(width)
    assert 2 * at**2 * width == 2 * at * width**2
x = jax.ShapeDtypeStruct((4 * cheaper_from(H), 1, H), jnp.float32)
ratio = count_flops(lambda q, k, v: attention(q, k, v), x, x, x).model / count_flops(LinearAttention(), x, x, x).model
assert 3.5 < ratio < 4.5


# %% tags=["solution"] jupyter={"source_hidden": true}
def layers_needed(distance, window):
    return -(-distance // window)


# %% tags=["check"]
def reaches(layers, window, length=60):
    def last(x):
        for _ in range(layers):
            x = window_attention(jnp.zeros((length, 1)), jnp.zeros((length, 1)), x, window)
        return x[-1, 0]

    seen = jax.grad(last)(jnp.ones((length, 1)))[:, 0] > 0
    return int(seen[::-1].cumsum().max()) - 1


for distance, window in ((5, 5), (6, 5), (40, 7)):
    layers = layers_needed(distance, window)
    assert reaches(layers, window) >= distance > reaches(layers - 1, window)
