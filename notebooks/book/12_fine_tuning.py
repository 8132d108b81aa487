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
# # 12. Fine-tuning
#
# A model that was trained on much text learns a new kind of text from little. This chapter trains a language model on
# Python sources and adapts it to English prose of which there are 40,000 characters, by all its parameters, by low-rank
# changes (LoRA), and by a bias of its output alone, beside a model that starts from nothing. The numbers are the loss
# on unseen prose, and by how much each has forgotten the sources.

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

from flax_transformer.data.text.plain import PlainText, encode_documents, train_characters
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.train import LoraConfig, init_lora, merge_lora, parameter_count

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS, MORE = (10, 5) if SMALL else (450, 120)

# %% [markdown]
# ## The idea
#
# *Transfer*: parameters $\theta_0$ that were trained on one task are where training of another starts, and not far from
# where it ends. *Full* fine-tuning trains all of them. *LoRA* (Hu et al. 2021) leaves each kernel $W$ as it is and
# trains two thin matrices beside it:
#
# $$W' = W + \frac{\alpha}{r} A B, \qquad A \in \mathbb{R}^{D \times r},\; B \in \mathbb{R}^{r \times F}$$
#
# $B$ begins at zero, so that nothing changes at first, and $r (D + F)$ numbers are trained in place of $D F$. After
# training, $W'$ is a kernel as any other. A model that is trained on a new task alone forgets the old one; *multi-task*
# training mixes both.

# %% [markdown]
# ## Ten lines


# %%
def start(kernel, rank, key):
    """Return the factors of a kernel [D, F] that at first change nothing."""
    inputs, outputs = kernel.shape
    return jax.random.normal(key, (inputs, rank)) / jnp.sqrt(inputs), jnp.zeros((rank, outputs))


def adapted(kernel, a, b, alpha):
    return kernel + alpha / a.shape[1] * (a @ b)


def beside(x, kernel, a, b, alpha):
    """Return the same product without a kernel of its own: x W + α/r (x A) B."""
    return x @ kernel + alpha / a.shape[1] * ((x @ a) @ b)


# %% [markdown]
# ## The library
#
# `init_lora` makes factors for all kernels whose path matches a pattern, and `merge_lora` returns a model with them. It
# is differentiable: inside a loss, it trains the factors.

# %%
sources = "".join(PlainText().read("train"))[:400_000]
prose = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
letters = train_characters([sources, prose])
config = with_fields(gpt2_tiny(vocab=letters.vocab_size), embed=64, heads=4, inner=256, depth=2, output_bias=True)
model = config.build(nnx.Rngs(0))
lora_config = LoraConfig(rank=4, alpha=8.0, pattern=r"(query|key|value|out|up|down)\.kernel$")

lora = init_lora(model, lora_config, jax.random.key(0))
NAME = "trunk.blocks.feedforward.up.kernel"
a, b = lora[NAME].a[0], jax.random.normal(jax.random.key(1), lora[NAME].b[0].shape)
changed = {**lora, NAME: replace(lora[NAME], b=lora[NAME].b.at[0].set(b))}  # of the first layer
kernel, merged = (each.trunk.blocks.feedforward.up.kernel[...][0] for each in (model, merge_lora(model, changed)))
np.testing.assert_allclose(adapted(kernel, a, b, 8.0), merged, atol=1e-5)
x = jax.random.normal(jax.random.key(2), (5, 64))
np.testing.assert_allclose(beside(x, kernel, a, b, 8.0), x @ merged, atol=1e-4)
print(f"{parameter_count(model):,} parameters, {parameter_count(lora):,} of LoRA")

# %% [markdown]
# ## Little text
#
# The sources are Python's own, 360,000 characters to train on. The prose is that of `help()`.

# %%
old, new = (encode_documents([text], letters).flat.astype(np.int32) for text in (sources, prose))
old_train, old_test = old[:360_000], old[360_000:]
new_train, new_test = new[:40_000], new[-60_000:]
print(repr(prose[:90]))


def windows(random, source, rows=12, length=65):
    starts = random.integers(0, len(source) - length, rows)
    return source[starts[:, None] + np.arange(length)]


def loss(model, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens[:, :-1]), tokens[:, 1:]).mean()


held = {
    name: windows(np.random.default_rng(9), part, rows=200) for name, part in (("old", old_test), ("new", new_test))
}
score = jax.jit(loss)


def fit(parameters, make, draw, steps, rate):
    """Train parameters of which `make` makes a model, on what `draw` draws."""
    optimizer = optax.adamw(optax.cosine_onecycle_schedule(steps, rate, pct_start=0.1), b2=0.99)

    @jax.jit
    def step(parameters, state, tokens):
        gradient = jax.grad(lambda parameters: loss(make(parameters), tokens))(parameters)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state

    random, state = np.random.default_rng(0), optimizer.init(parameters)
    for _ in range(steps):
        parameters, state = step(parameters, state, draw(random))
    return make(parameters)


def whole(model):
    return model


def from_old(random):
    return windows(random, old_train)


def from_new(random):
    return windows(random, new_train)


def from_both(random):
    return np.concatenate([windows(random, old_train, 6), windows(random, new_train, 6)])


base = fit(model, whole, from_old, STEPS, 1e-2)


def biased(bias):
    """Return the model that was trained before, with another bias of its logits."""
    model = jax.tree.map(lambda leaf: leaf, base)
    model.output_bias[...] = bias
    return model


results = {"before": base}
results["from nothing"] = fit(model, whole, from_new, MORE, 5e-3)
results["output bias"] = fit(base.output_bias[...], biased, from_new, MORE, 1e-1)
results["LoRA"] = fit(lora, lambda lora: merge_lora(base, lora), from_new, MORE, 1e-2)
results["all parameters"] = fit(base, whole, from_new, MORE, 3e-3)
results["all, both texts"] = fit(base, whole, from_both, MORE, 3e-3)
trained_count = {"before": 0, "output bias": letters.vocab_size, "LoRA": parameter_count(lora)}
scores = {}
for name, each in results.items():
    found = {part: float(score(each, rows)) for part, rows in held.items()}
    scores[name] = found
    count = trained_count.get(name, parameter_count(model))
    print(f"{name:16} {count:7,} trained   prose {found['new']:.3f}   sources {found['old']:.3f}")

# %%
figure, axis = plt.subplots(figsize=(5.5, 3))
for name, each in scores.items():
    axis.scatter(each["old"], each["new"])
    axis.annotate(name, (each["old"], each["new"]), fontsize=8, xytext=(4, 4), textcoords="offset points")
_ = axis.set(xlabel="loss on sources (what was learned before)", ylabel="loss on prose (what is learned now)")

if not SMALL:
    prose_loss, old_loss = ({name: each[part] for name, each in scores.items()} for part in ("new", "old"))
    assert prose_loss["all parameters"] < prose_loss["from nothing"] - 0.2  # transfer
    assert prose_loss["LoRA"] < prose_loss["before"] - 0.15
    assert old_loss["all parameters"] > old_loss["before"] + 0.05  # forgetting
    assert old_loss["all, both texts"] < old_loss["all parameters"] - 0.05

# %% [markdown]
# With so little text a start from nothing is far behind every other run. All parameters and LoRA learn the prose
# equally well, and LoRA trains a twelfth of the numbers. Both forget: what is learned for the prose is not for the
# sources, LoRA a little less. A bias of the output, which can only say how frequent each character is, gains almost
# nothing. Training on both texts at once forgets next to nothing, and is no worse on the prose, although half of every
# batch is of the other text.

# %% [markdown]
# ## Exercises
#
# 1. How many numbers does LoRA train? Count them for kernels of given sizes.
#
#    ```python
#    def lora_size(kernels, rank):
#        """Return how many numbers the factors of kernels, pairs (inputs, outputs), have."""
#    ```
#
# 2. A change of a kernel that was found by full fine-tuning can be made low-rank afterwards. Write the best
#    approximation of rank r, by singular values.
#
#    ```python
#    def closest(change, rank):
#        """Return (a, b) of the given rank, whose product is as near to change [D, F] as can be."""
#    ```
#
# 3. Multi-task training has to choose how often each task is drawn. With sizes $n_i$ and a temperature $\tau$ it is in
#    proportion to $n_i^{1/\tau}$ (Raffel et al. 2020). Write it.
#
#    ```python
#    def mixture(sizes, temperature):
#        """Return the probability of each task."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def lora_size(kernels, rank):
    return sum(rank * (inputs + outputs) for inputs, outputs in kernels)


# %% tags=["check"]
both_layers = [(64, 64), (64, 64), (64, 64), (64, 64), (64, 256), (256, 64)] * 2
assert lora_size(both_layers, 4) == parameter_count(lora)


# %% tags=["solution"] jupyter={"source_hidden": true}
def closest(change, rank):
    u, s, v = jnp.linalg.svd(change, full_matrices=False)
    return u[:, :rank] * s[:rank], v[:rank]


# %% tags=["check"]
change = jax.random.normal(jax.random.key(3), (6, 9))
found_a, found_b = closest(change, 2)
assert found_a.shape == (6, 2)
rest = jnp.linalg.svd(change, compute_uv=False)[2:]
np.testing.assert_allclose(((change - found_a @ found_b) ** 2).sum(), (rest**2).sum(), rtol=1e-4)


# %% tags=["solution"] jupyter={"source_hidden": true}
def mixture(sizes, temperature):
    scaled = np.asarray(sizes, float) ** (1 / temperature)
    return scaled / scaled.sum()


# %% tags=["check"]
np.testing.assert_allclose(mixture([900, 100], 1), [0.9, 0.1])
np.testing.assert_allclose(mixture([900, 100], 2), [0.75, 0.25])
