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
# # 6. The encoder
#
# An encoder reads a whole text at once and gives each token a vector that depends on all the others. Here it learns
# to tell grammatical sentences from ungrammatical ones in a small language in which a verb agrees with its noun,
# however many other nouns stand between them. The number is the accuracy by how many of those have the other number,
# beside a model that sees the same words without their order.

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
from flax_transformer.nn import Block, EmbeddingConfig, transformer_block
from flax_transformer.ops import Mask

plt.rcParams |= {"figure.dpi": 80, "figure.constrained_layout.use": True, "font.size": 9}
SMALL = bool(os.environ.get("BOOK_SMALL"))
STEPS = 10 if SMALL else 700

# %% [markdown]
# ## The idea
#
# A layer of an encoder has two parts, each with a residual connection and a norm. Attention moves what tokens know
# between positions, in both directions; a *feed-forward* network works on each position alone. In the order of the
# paper of 2017 and of BERT (Devlin et al. 2019), the norm comes last (*post-norm*):
#
# $$h = \operatorname{norm}(x + \operatorname{attention}(x)), \qquad
# y = \operatorname{norm}(h + W_2\, \phi(W_1 h + b_1) + b_2)$$
#
# For a task on whole texts BERT puts a token `[CLS]` before each. Its last vector, which has seen everything, goes
# through a dense layer with tanh, the *pooler*, and a linear classifier.

# %% [markdown]
# ## Ten lines


# %%
def norm(x, part):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * part.scale[...] + part.bias[...]


def encoder_layer(x, block):
    """Return what a post-norm block makes of x [T, D]."""
    a, f = block.attention, block.feedforward
    q, k, v = (jnp.einsum("td,dnh->tnh", x, p.kernel[...]) + p.bias[...] for p in (a.query, a.key, a.value))
    weights = jax.nn.softmax(jnp.einsum("tnh,snh->nts", q, k) / jnp.sqrt(q.shape[-1]), axis=-1)
    read = jnp.einsum("nts,snh,nhd->td", weights, v, a.out.kernel[...]) + a.out.bias[...]
    h = norm(x + read, block.attention_residual.norm)
    inner = jax.nn.gelu(h @ f.up.kernel[...] + f.up.bias[...], approximate=False)
    return norm(h + inner @ f.down.kernel[...] + f.down.bias[...], block.feedforward_residual.norm)


# %% [markdown]
# ## The library
#
# `nn.Block` is that layer. An `EncoderConfig` is an embedding and a stack of blocks, and `with_head` puts a classifier
# on it. What is padding, a mask of lengths says.

# %%
config = transformer_block(embed=64, heads=4, inner=128, activation="gelu")
block = Block(config, rngs=nnx.Rngs(0))
x = jax.random.normal(jax.random.key(0), (10, 64))
np.testing.assert_allclose(encoder_layer(x, block), block(x), atol=1e-5)
padded = jnp.concatenate([x, jnp.full((3, 64), 7.0)])
np.testing.assert_allclose(block(padded, mask=Mask(lengths=jnp.array(10)))[:10], block(x), atol=1e-5)

# %% [markdown]
# ## A small language
#
# A sentence is a noun phrase and a verb that agrees with its first noun. Behind the noun there may be phrases with
# nouns of their own, and a clause whose verb agrees with *its* noun:
#
# > the keys behind the old door that the king opens shine
#
# Half of the sentences have one verb in the wrong number. Agreement over such distances is a classical test of what
# sequence models know of grammar (Linzen et al. 2016).

# %%
NOUNS = ["key", "door", "king", "baker", "dog", "garden", "lamp", "house", "river", "teacher"]
VERBS = ["shine", "fall", "run", "sing", "wait"]
TRANSITIVE = ["open", "see", "like", "find", "hold"]
ADJECTIVES, PREPOSITIONS = ["old", "small", "red", "quiet"], ["behind", "near", "under", "beside"]
plural, singular = (lambda noun: noun + "s"), (lambda verb: verb + "s")


def phrase(random, many):
    adjective = [random.choice(ADJECTIVES)] if random.random() < 0.3 else []
    noun = random.choice(NOUNS)
    return ["the", *adjective, plural(noun) if many else noun]


def sentence(random):
    """Return the words of a sentence, 1 if it is grammatical, and how many nouns of the other number intervene."""
    many = random.random() < 0.5
    others = [random.random() < 0.5 for _ in range(random.integers(0, 3))]
    words, verbs = phrase(random, many), []
    for other in others:
        words += [random.choice(PREPOSITIONS), *phrase(random, other)]
    if random.random() < 0.5:
        inner = random.random() < 0.5
        others.append(inner)
        words += ["that", *phrase(random, inner), random.choice(TRANSITIVE)]
        verbs.append((len(words) - 1, inner))
    words.append(random.choice(VERBS))
    verbs.append((len(words) - 1, many))
    wrong = random.integers(len(verbs)) if random.random() < 0.5 else None
    for number, (at, several) in enumerate(verbs):
        if several == (number == wrong):
            words[at] = singular(words[at])
    return words, int(wrong is None), sum(other != many for other in others)


CLS, LONGEST = 0, 24
known = ["[CLS]", "the", "that", *ADJECTIVES, *PREPOSITIONS, *NOUNS, *map(plural, NOUNS)]
known += [form for verb in (*VERBS, *TRANSITIVE) for form in (verb, singular(verb))]
number_of = {word: at for at, word in enumerate(known)}


def make(seed, count):
    random = np.random.default_rng(seed)
    tokens, lengths = np.zeros((count, LONGEST), np.int32), np.zeros(count, np.int32)
    labels, between = np.zeros(count, np.int32), np.zeros(count, np.int32)
    for row in range(count):
        words, labels[row], between[row] = sentence(random)
        ids = [CLS, *(number_of[word] for word in words)]
        tokens[row, : len(ids)], lengths[row] = ids, len(ids)
    return {"tokens": tokens, "lengths": lengths}, labels, between


inputs, labels, between = make(0, 1_000 if SMALL else 30_000)
test, answers, test_between = make(1, 4_000)
for row in range(4):
    print(labels[row], " ".join(known[token] for token in inputs["tokens"][row, 1 : inputs["lengths"][row]]))

# %% [markdown]
# ## Reading with and without order
#
# The same encoder with positions, and without any layer or position: a mean of word embeddings, then the same head.

# %%
encoder = EncoderConfig(
    embedding=EmbeddingConfig(
        vocab=len(known), embed=64, position="learned", max_length=LONGEST, scaled=False, norm=1e-5
    ),
    block=config,
    depth=2,
)
bert = with_head(encoder, outputs=2, pool="first", dense="tanh")


def bag(parameters, tokens, lengths):
    seen = jnp.arange(LONGEST) < lengths[:, None]
    mean = (parameters["embed"][tokens] * seen[..., None]).sum(1) / lengths[:, None]
    return jax.nn.relu(mean @ parameters["w"]) @ parameters["out"]


def read(model, tokens, lengths):
    return model(tokens, mask=Mask(lengths=lengths))


keys = jax.random.split(jax.random.key(0), 3)
shapes = {"embed": (len(known), 64), "w": (64, 128), "out": (128, 2)}
words_alone = {name: jax.random.normal(key, shape) / 8 for key, (name, shape) in zip(keys, shapes.items(), strict=True)}


def trained(network, parameters, rate):
    optimizer = optax.adam(optax.cosine_onecycle_schedule(STEPS, rate, pct_start=0.1))

    @jax.jit
    def step(parameters, state, tokens, lengths, labels):
        def loss(parameters):
            logits = network(parameters, tokens, lengths)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradient = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    random, state = np.random.default_rng(0), optimizer.init(parameters)
    for _ in range(STEPS):
        rows = random.integers(0, len(labels), 64)
        parameters, state, _ = step(parameters, state, inputs["tokens"][rows], inputs["lengths"][rows], labels[rows])
    return parameters


def accuracy_by_count(network, parameters):
    right = np.asarray(jax.jit(network)(parameters, **test).argmax(-1)) == answers
    return right.mean(), np.array([right[test_between == count].mean() for count in range(4)])


found = {}
for name, network, parameters, rate in (
    ("encoder", read, bert.build(nnx.Rngs(0)), 2e-3),
    ("words without order", bag, words_alone, 1e-2),
):
    whole, found[name] = accuracy_by_count(network, trained(network, parameters, rate))
    print(f"{name:20} {whole:.3f}   with 0, 1, 2, 3 nouns of the other number: {found[name].round(3)}")

# %%
figure, axis = plt.subplots(figsize=(5, 2.6))
for name, values in found.items():
    axis.plot(range(4), values, "o-", label=name)
axis.axhline(0.5, color="gray", linestyle=":")
axis.set(xlabel="nouns of the other number between", ylabel="accuracy", xticks=range(4), ylim=(0.3, 1.05))
_ = axis.legend()

if not SMALL:
    assert found["encoder"][2:].min() > 0.6
    assert found["encoder"][2] > found["words without order"][2] + 0.1
    assert found["words without order"][0] > 0.95  # where all nouns agree, counting is enough

# %% [markdown]
# Where all nouns have the same number, words alone say whether the verb fits, and the simple model is the better one.
# With every noun of the other number it gets worse, down to guessing and below. The encoder has learned which noun
# counts: it is worse than counting where counting is enough, and far better where it is not. It is not perfect after so
# few steps, and it is worse with more nouns, as people are.

# %% [markdown]
# ## Exercises
#
# 1. Instead of `[CLS]`, many encoders take the mean of the hidden states. Padding must not count.
#
#    ```python
#    def mean_pool(hidden, lengths):
#        """Return the mean [B, D] of the first `lengths` [B] of hidden states [B, T, D]."""
#    ```
#
# 2. Write which outputs of a function depend on which inputs, by its Jacobian: everything in an encoder, a triangle in
#    a decoder.
#
#    ```python
#    def dependence(f, x):
#        """Return booleans [T, T]: whether output t (row) of f depends on input s (column), for x [T, D]."""
#    ```
#
# 3. BERT reads two sentences as one row, `[CLS] a [SEP] b [SEP]`, with a type for each token: 0 up to the first
#    `[SEP]`, 1 after it.
#
#    ```python
#    def join(a, b, cls, sep):
#        """Return (tokens, types) of two lists of tokens."""
#    ```


# %% tags=["solution"] jupyter={"source_hidden": true}
def mean_pool(hidden, lengths):
    seen = jnp.arange(hidden.shape[1]) < lengths[:, None]
    return (hidden * seen[..., None]).sum(1) / lengths[:, None]


# %% tags=["check"]
hidden = jnp.array([[[1.0], [3.0], [90.0]], [[1.0], [2.0], [6.0]]])
np.testing.assert_allclose(mean_pool(hidden, jnp.array([2, 3])), [[2.0], [3.0]])


# %% tags=["solution"] jupyter={"source_hidden": true}
def dependence(f, x):
    return (jnp.abs(jax.jacobian(f)(x)) > 0).any((1, 3))


# %% tags=["check"]
assert dependence(block, x[:4]).all()
causal = dependence(lambda x: block(x, mask=Mask(causal=True)), x[:4])
np.testing.assert_array_equal(causal, np.tril(np.ones((4, 4), bool)))


# %% tags=["solution"] jupyter={"source_hidden": true}
def join(a, b, cls, sep):
    return [cls, *a, sep, *b, sep], [0] * (len(a) + 2) + [1] * (len(b) + 1)


# %% tags=["check"]
assert join([5, 6], [7], 1, 2) == ([1, 5, 6, 2, 7, 2], [0, 0, 0, 0, 1, 1])
