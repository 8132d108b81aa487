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
# # 2. Recurrent networks
#
# A recurrent network reads one token after the other and keeps what it has read in a state of fixed size. Gradients
# that vanish keep a simple network from learning to hold much; an LSTM learns to hold more, and not all. This chapter
# measures it: networks read 20 symbols and are then asked for some of them. The number is the accuracy by how long ago
# the symbol was read.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.models.text.recurrent_layer import Recurrent, RecurrentConfig
from flax_transformer.nn import with_fields

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 600

# %% [markdown]
# ## The idea
#
# A simple recurrent network (Elman 1990) has a state $h_t$ that is a function of the state before and of the input:
#
# $$h_t = \tanh(W x_t + U h_{t-1} + b)$$
#
# How the state at the end depends on an input $k$ steps before is a product of $k$ Jacobians. It shrinks or grows
# exponentially with $k$, and with it the gradient that training has (Bengio et al. 1994). The LSTM (Hochreiter &
# Schmidhuber 1997) adds a *cell* $c_t$ that is updated by a sum, under gates between 0 and 1:
#
# $$c_t = f_t \odot c_{t-1} + i_t \odot \tanh(g_t), \qquad h_t = o_t \odot \tanh(c_t)$$
#
# where $f_t, i_t, o_t$ are sigmoids of linear functions of $x_t$ and $h_{t-1}$, and $g_t$ is another linear function of
# them. Where $f_t$ is near 1, the cell stays as it is, and so does the gradient.

# %% [markdown]
# ## Ten lines


# %%
def lstm(w, u, b, x):
    """Return the hidden state after each position of x [T, E]; the gates are i, f, g, o."""

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros(u.shape[0])
    return jax.lax.scan(step, (zero, zero), x)[1]


def elman(w, u, b, x):
    def step(h, x):
        h = jnp.tanh(x @ w + h @ u + b)
        return h, h

    return jax.lax.scan(step, jnp.zeros(u.shape[0]), x)[1]


# %% [markdown]
# ## The library
#
# `Recurrent` is a stack of LSTM or GRU layers, in one direction or both, with the parameters of `torch.nn.LSTM`. A
# layer multiplies all its inputs at once; only what recurs is a scan.

# %%
E, H = 32, 64
layer = Recurrent(RecurrentConfig(embed=E, hidden=H), rngs=nnx.Rngs(0))
cell = layer.forward[0]
x = jax.random.normal(jax.random.key(0), (30, E))
bias = cell.input.bias[...] + cell.recurrent.bias[...]
by_hand = lstm(cell.input.kernel[...], cell.recurrent.kernel[...], bias, x)
np.testing.assert_allclose(layer(x)[0], by_hand, atol=1e-5)

# %% [markdown]
# How much of the last state depends on an input $k$ steps before, in both networks before any training?


# %%
def slope(network):
    """Return the norm of the gradient of the last state by each input."""
    jacobian = jax.jacobian(lambda x: network(x)[-1])(x)
    return jnp.sqrt((jacobian**2).sum((0, 2)))[::-1]


w, u = (jax.random.normal(key, shape) / np.sqrt(shape[0]) for key, shape in zip(
    jax.random.split(jax.random.key(1)), ((E, H), (H, H)), strict=True
))  # fmt: skip
slopes = {
    "simple": slope(lambda x: elman(w, u, jnp.zeros(H), x)),
    "LSTM": slope(lambda x: layer(x)[0]),
    "LSTM, forget gates begin open": slope(
        lambda x: lstm(cell.input.kernel[...], cell.recurrent.kernel[...], bias.at[H : 2 * H].add(2.0), x)
    ),
}
figure, axis = plt.subplots(figsize=(5, 2.4))
for name, values in slopes.items():
    axis.semilogy(values / values[0], label=name)
    print(f"{name:30} after 20 steps {float(values[20] / values[0]):.1e} of what it is at the last input")
axis.set(xlabel="steps before the end", ylabel="gradient, relative")
_ = axis.legend()
assert slopes["LSTM, forget gates begin open"][20] / slopes["LSTM, forget gates begin open"][0] > 1e-2
assert slopes["LSTM"][20] / slopes["LSTM"][0] < 1e-3

# %% [markdown]
# The LSTM forgets by default, too: with gates at one half, half of the cell is gone after every step. A bias that opens
# the forget gates at the beginning (Gers et al. 2000) is what makes it remember, and it is used below.

# %% [markdown]
# ## What is forgotten
#
# Read 20 symbols of eight kinds, then answer eight questions, each for the symbol at one position. A recurrent network
# does not know what it will be asked for, and so has to keep everything in 64 numbers. A small causal Transformer
# (chapter 7) sees all positions at every time, and looks up what it is asked for.

# %%
READ, ASK, KINDS, WIDTH = 20, 8, 8, 64


def draw(random, rows):
    symbols = random.integers(0, KINDS, (rows, READ))
    asked = random.permuted(np.tile(np.arange(READ), (rows, 1)), axis=1)[:, :ASK]
    tokens = np.concatenate([symbols, KINDS + asked], axis=1)
    return jnp.asarray(tokens), jnp.asarray(np.take_along_axis(symbols, asked, 1)), asked


def normal(key, *shape):
    return jax.random.normal(jax.random.key(key), shape) / np.sqrt(shape[0])


def make_simple():
    return {"embed": normal(1, KINDS + READ, WIDTH) * 5, "w": normal(2, WIDTH, WIDTH), "u": normal(3, WIDTH, WIDTH),
            "b": jnp.zeros(WIDTH), "out": normal(4, WIDTH, KINDS)}  # fmt: skip


def simple(p, tokens):
    return jax.vmap(lambda x: elman(p["w"], p["u"], p["b"], x))(p["embed"][tokens]) @ p["out"]


def make_lstm():
    layer = Recurrent(RecurrentConfig(embed=WIDTH, hidden=WIDTH), rngs=nnx.Rngs(0))
    layer.forward[0].input.bias[...] = layer.forward[0].input.bias[...].at[WIDTH : 2 * WIDTH].add(2.0)
    return {"embed": normal(1, KINDS + READ, WIDTH) * 5, "layer": layer, "out": normal(4, WIDTH, KINDS)}


def with_lstm(p, tokens):
    return p["layer"](p["embed"][tokens])[0] @ p["out"]


def make_transformer():
    return with_fields(gpt2_tiny(vocab=KINDS + READ), embed=WIDTH, heads=4, inner=WIDTH, depth=2).build(nnx.Rngs(0))


def transformer(model, tokens):
    return model(tokens)[..., :KINDS]


def trained(network, parameters, rate):
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_onecycle_schedule(STEPS, rate, pct_start=0.1))
    )

    def loss(parameters, tokens, answers):
        logits = network(parameters, tokens)[:, READ:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, answers).mean()

    @jax.jit
    def step(parameters, state, tokens, answers):
        value, gradient = jax.value_and_grad(loss)(parameters, tokens, answers)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    random, state = np.random.default_rng(0), optimizer.init(parameters)
    for _ in range(STEPS):
        parameters, state, _ = step(parameters, state, *draw(random, 64)[:2])
    return parameters


def by_age(network, parameters):
    """Return the accuracy by how many symbols ago the symbol was read, 1 for the last one."""
    tokens, answers, asked = draw(np.random.default_rng(1), 1_000)
    right = np.asarray(jax.jit(network)(parameters, tokens)[:, READ:].argmax(-1) == answers)
    return np.array([right[asked == READ - age].mean() for age in range(1, READ + 1)])


accuracy = {}
for name, network, make, rate in (
    ("simple", simple, make_simple, 3e-3),
    ("LSTM", with_lstm, make_lstm, 1e-2),
    ("Transformer", transformer, make_transformer, 3e-3),
):
    accuracy[name] = by_age(network, trained(network, make(), rate))
    recent, first = accuracy[name][:4].mean(), accuracy[name][-4:].mean()
    print(f"{name:12} {recent:.2f} of the last four symbols, {first:.2f} of the first four")

# %%
figure, axis = plt.subplots(figsize=(6, 2.8))
for name, values in accuracy.items():
    axis.plot(range(1, READ + 1), values, ".-", label=name)
axis.axhline(1 / KINDS, color="gray", linestyle=":", label="without reading")
axis.set(xlabel="symbols ago", ylabel="accuracy", ylim=(0, 1.05))
_ = axis.legend()
if not SMALL:
    assert accuracy["LSTM"].mean() > accuracy["simple"].mean() + 0.1
    assert accuracy["LSTM"][0] > accuracy["LSTM"][5:15].mean() + 0.2
    assert accuracy["Transformer"].min() > 0.95

# %% [markdown]
# The simple network knows little of any symbol. The LSTM knows the last one almost always, and the last and the first
# few far better than those between: everything has to go into one state, and what comes in covers what was there. With
# more training it learns to hold more, but never more than its state has room for. The Transformer forgets nothing,
# since it does not have to: what it keeps grows with what it reads. That is the exchange that the rest of this book is
# about: memory and work that grow with length, against a state that does not.

# %% [markdown]
# ## Exercises
#
# 1. The GRU (Cho et al. 2014) has two gates and no cell. Of what the input and the state give, each split in three,
#    $r$ and $z$ are sigmoids of sums, $n = \tanh(x_n + r \odot h_n)$, and the new state is
#    $(1 - z) \odot n + z \odot h$. Write a step.
#
#    ```python
#    def gru(h, given, again):
#        """Return the state after h [H], by what the input and the state give, both [3H]: r, z, n."""
#    ```
#
# 2. How a state of the simple network depends on the first one is a product of matrices. Write it, without `jax.grad`.
#
#    ```python
#    def chain(u, states):
#        """Return the Jacobian [H, H] of the last of states [T, H] by the first, where h_t = tanh(… + h_{t-1} u)."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def gru(h, given, again):
    (xr, xz, xn), (hr, hz, hn) = jnp.split(given, 3), jnp.split(again, 3)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    return (1 - z) * jnp.tanh(xn + r * hn) + z * h


# %% tags=["check"]
theirs = Recurrent(RecurrentConfig(embed=E, hidden=H, cell="gru"), rngs=nnx.Rngs(0)).forward[0]
state = jnp.tanh(jax.random.normal(jax.random.key(3), (H,)))
given = theirs.project(x[:1])[0]
np.testing.assert_allclose(gru(state, given, theirs.recurrent(state)), theirs((state,), given)[0], atol=1e-5)


# %% tags=["solution"] jupyter={"source_hidden": true}
def chain(u, states):
    product = jnp.eye(u.shape[0])
    for h in states[1:]:
        product = (u * (1 - h**2)).T @ product
    return product


# %% tags=["check"]
small = 0.3 * jax.random.normal(jax.random.key(4), (5, 5))


def last(h):
    states = [h]
    for _ in range(6):
        states.append(jnp.tanh(states[-1] @ small))
    return states[-1], jnp.stack(states)


jacobian, states = jax.jacobian(last, has_aux=True)(jnp.linspace(-0.5, 0.5, 5))
np.testing.assert_allclose(chain(small, states), jacobian, atol=1e-5)
